"""What each env is to do next, and what was wished for one that is busy or down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.envs.lanes.lane import Begin, Order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class Wish(NamedTuple):
    """An episode that is to begin in an env out of turn, and why the open one ends."""

    reason: str
    begin: Begin


class Agenda:
    """Collects what N envs are to do, until their lanes take orders.

    Args:
        starts: the index of each lane's first env.
        num_envs: N.

    Attributes:
        lane_of: (N,) the number of each env's lane.
        lanes: the numbers of the lanes whose envs are to do anything.
        wishes: by env, until it waits for an action or is made anew.
        options: the options of resets that were ordered and are to be answered, as JSON, by env.
    """

    def __init__(self, starts: Sequence[int], num_envs: int) -> None:
        self._bounds = [*starts, num_envs]
        self.lane_of = np.repeat(np.arange(len(starts)), np.diff(self._bounds))
        self.lanes: set[int] = set()
        # Whether an action lies in the block that the env's lane has not been told of.
        self._given = np.zeros(num_envs, np.bool_)
        self.wishes: dict[int, Wish] = {}
        self.options: dict[int, str] = {}
        self._begin: dict[int, Begin] = {}
        # With which settings of its own an env is made.
        self._changed: dict[int, dict[str, Any]] = {}

    def act(self, envs: NDArray[np.int32] | None) -> None:
        """Have envs take the actions that lie in the block; None for all."""
        if envs is None:
            self._given[:] = True
            self.lanes.update(range(len(self._bounds) - 1))
        else:
            self._given[envs] = True
            self.lanes.update(self.lane_of[envs].tolist())

    def order(self, lane: int, *, hold: bool) -> Order | None:
        """Take off what the envs of a lane are to do; None where that is nothing.

        With `hold` those whose episodes end wait for an order to begin.
        """
        self.lanes.discard(lane)
        start, stop = self._bounds[lane : lane + 2]
        given = self._given[start:stop]
        step = given.nonzero()[0].tolist()
        given[:] = False
        begin = {}
        if self._begin:
            begin = {env - start: self._begin.pop(env) for env in range(start, stop) if env in self._begin}
            self.options.update({start + at: one.options for at, one in begin.items() if one.options is not None})
        return Order(step, begin, hold) if step or begin else None

    def without_options(self, lane: int) -> Sequence[int]:
        """Of the envs of a lane, those that are to begin and that nobody has given options."""
        if not self._begin:
            return ()
        envs = range(*self._bounds[lane : lane + 2])
        return [env for env in envs if env in self._begin and self._begin[env].options is None]

    def give(self, env: int, options: str | None) -> None:
        """Give options to an env that is to begin."""
        self._begin[env] = self._begin[env]._replace(options=options)

    def begin(self, env: int, options: str | None = None) -> None:
        """Have an env reset, as was wished for meanwhile."""
        wish = self.wishes.pop(env, None)
        self._add(env, Begin(options) if wish is None else wish.begin)

    def begin_after_fault(self, env: int, *, rebuild: bool) -> None:
        """Have an env that failed made anew and reset, or reset only, as was wished for meanwhile."""
        wish = self.wishes.pop(env, None)
        options = None if wish is None else wish.begin.options
        self._put(env, Begin(options, rebuild, self._changed.get(env, {})) if rebuild else Begin(options))

    def change(self, env: int, changed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings with which an env is made from now on; answer all that differ from the others'."""
        settings = self._changed[env] = {**self._changed.get(env, {}), **changed}
        return settings

    def wish(self, env: int, wish: Wish) -> None:
        """Note a wish; one that the env be made anew outlives a later one without."""
        if env in self._begin:  # it has not begun, so there is nothing to end
            self._add(env, wish.begin)
            return
        earlier = self.wishes.get(env)
        self.wishes[env] = Wish(wish.reason, _added(None if earlier is None else earlier.begin, wish.begin))

    def grant(self, env: int) -> str:
        """Have what was wished for done next; answer why the env's open episode ends."""
        wish = self.wishes.pop(env)
        self._add(env, wish.begin)
        return wish.reason

    def begun(self, envs: NDArray[np.int32]) -> None:
        """Forget the options of envs that were reset with them."""
        if self.options:
            for env in envs.tolist():
                self.options.pop(env, None)

    def drop(self, env: int) -> None:
        """Forget what an env that failed was to do; what was wished for it, and options it was not told of, stay."""
        self._given[env] = False
        self.options.pop(env, None)
        begin = self._begin.pop(env, None)
        if begin is not None and begin.options is not None:
            self.wish(env, Wish("reset", begin))

    def clear(self) -> None:
        """Forget actions and wishes: all envs begin anew."""
        self._given[:] = False
        self.wishes.clear()

    def _add(self, env: int, begin: Begin) -> None:
        self._put(env, _added(self._begin.get(env), begin))

    def _put(self, env: int, begin: Begin) -> None:
        self._begin[env] = begin
        self.lanes.add(int(self.lane_of[env]))


def _added(before: Begin | None, later: Begin) -> Begin:
    """What is to begin where something else was to begin before.

    An env that was to be made anew still is; one that is to be made anew begins with the options it was to begin with.
    """
    if before is None or not (before.rebuild or later.rebuild):
        return later
    return later._replace(options=before.options) if later.rebuild else before._replace(options=later.options)
