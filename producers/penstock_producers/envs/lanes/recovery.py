"""Which envs are down, when each is to be tried again, and when that is given up."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.containment import Containment

_LOG = logging.getLogger(__name__)
_LONGEST_BACKOFF_S = 30.0
# Doubling that often is longer than the longest already, and no overflow.
_MOST_DOUBLINGS = 60
# An env that never ends an episode is in health again too.
_HEALTHY_STEPS = 1000


class Recovery:
    """Books faults against each env's budget, and says which env is due to be tried again.

    Args:
        num_envs: N.
        name: of the environment, for errors and the log.
        containment: the back-off and the budget.
        clock: seconds that never go back.
        can_rebuild: whether an env that failed is made anew. One that cannot be is reset; it is parked where that fails
            too, or where its budget is used up.

    Attributes:
        parked: the envs that are left out for good: given up, or left out by `park`.
        failure: why the envs cannot go on; None while they can.
    """

    def __init__(
        self, num_envs: int, *, name: str, containment: Containment, clock: Callable[[], float], can_rebuild: bool
    ) -> None:
        self.parked: set[int] = set()
        self.failure: EnvError | None = None
        self._num_envs = num_envs
        self._name = name
        self._containment = containment
        self._clock = clock
        self._can_rebuild = can_rebuild
        self._due: dict[int, float] = {}
        # When was last looked whose time has come.
        self._looked = clock()
        # Of each env that is not in health: its faults in a row, and its good steps since the last of them.
        self._in_a_row: Counter[int] = Counter()
        self._good_steps = np.zeros(num_envs, np.int64)
        # Envs that a reset is to mend.
        self._on_trial: set[int] = set()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, env: int) -> bool:
        return env in self._due

    def failed(self, env: int, reason: str) -> None:
        """Take an env down, to be tried again after its back-off, or give it up."""
        count = self._in_a_row[env] = self._in_a_row[env] + 1
        self._good_steps[env] = 0
        if count > self._containment.max_rebuilds or env in self._on_trial:
            self._give_up(env, reason)
            return
        wait = min(self._containment.backoff * 2.0 ** min(count - 1, _MOST_DOUBLINGS), _LONGEST_BACKOFF_S)
        self._due[env] = self._clock() + wait
        _LOG.warning("environment %s: env %d: %s; next try in %g s", self._name, env, reason, wait)

    def due(self) -> list[int]:
        """The envs whose time has come, ascending."""
        self._looked = self._clock()
        return sorted(env for env, due in self._due.items() if due <= self._looked)

    def next_due(self) -> float | None:
        """The earliest time at which an env is due that `due` has not told yet."""
        return min((due for due in self._due.values() if due > self._looked), default=None)

    def backs_off(self, env: int) -> bool:
        """Whether an env is down, and its time has not come."""
        return env in self._due and self._due[env] > self._clock()

    def park(self, env: int) -> None:
        """Leave an env out for good, which is no failure."""
        self._due.pop(env, None)
        self.parked.add(env)

    def begin(self, env: int) -> None:
        """Take an env off the list: it is being tried again."""
        del self._due[env]
        if not self._can_rebuild:
            self._on_trial.add(env)

    def begun(self, envs: NDArray[Any]) -> None:
        """Take envs as up again: they were reset."""
        if self._on_trial:
            self._on_trial.difference_update(envs.tolist())

    def stepped(self, envs: NDArray[Any]) -> None:
        """Count good steps of envs, each at most once; enough of them in a row give back the whole budget."""
        if self._in_a_row:
            self._good_steps[envs] += 1
            self._forget([env for env in self._in_a_row if self._good_steps[env] >= _HEALTHY_STEPS])

    def ended(self, envs: NDArray[Any]) -> None:
        """Give envs whose episodes ended by themselves their whole budget again."""
        if self._in_a_row:
            self._forget(envs.tolist())

    def _forget(self, envs: Iterable[int]) -> None:
        for env in envs:
            self._in_a_row.pop(env, None)

    def _give_up(self, env: int, reason: str) -> None:
        if self._can_rebuild:
            self.failure = self.failure or EnvError(
                f"environment {self._name}: env {env} failed {self._in_a_row[env]} times in a row without an episode "
                f"that ended by itself between, or {_HEALTHY_STEPS} good steps, the last time with {reason}; mend the "
                f"environment, or allow more rebuilds than {self._containment.max_rebuilds}"
            )
            return
        self.parked.add(env)
        _LOG.error("environment %s: env %d: %s; it cannot be made anew, so it is parked", self._name, env, reason)
        if len(self.parked) == self._num_envs:
            self.failure = EnvError(
                f"environment {self._name}: all {self._num_envs} envs are parked, env {env} as the last one with "
                f"{reason}; mend them, or hand over a factory, which can make them anew"
            )
