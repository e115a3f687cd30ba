"""What each env is to do next, and what was wished for one that is busy or down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs.lanes.lane import Begin, Order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Wish:
    """An episode that is to begin in an env out of turn, and why the open one ends."""

    reason: str
    begin: Begin
    options: str | None = None
    """The options of its reset, as they are recorded."""


class Agenda:
    """Collects what N envs are to do, until their lanes take orders.

    Attributes:
        given: (N,) whether an action lies in the env's block that its lane has not been told of.
        wishes: by env, until it waits for an action or is made anew.
        options: the options of resets that are to come or to be answered, as they are recorded, by env.
    """

    def __init__(self, num_envs: int) -> None:
        self.given = np.zeros(num_envs, np.bool_)
        self.wishes: dict[int, Wish] = {}
        self.options: dict[int, str] = {}
        self._begin: dict[int, Begin] = {}
        # With which settings of its own an env is made.
        self._changed: dict[int, dict[str, Any]] = {}

    def order(self, start: int, stop: int) -> Order | None:
        """Take off what the envs `start … stop - 1` are to do; None where that is nothing."""
        given = self.given[start:stop]
        step = given.nonzero()[0]
        given[:] = False
        begin = {}
        if self._begin:
            begin = {env - start: self._begin.pop(env) for env in range(start, stop) if env in self._begin}
        return Order(step.astype(np.int32), begin) if len(step) or begin else None

    def begin(self, env: int) -> None:
        """Have an env reset, where nothing else was to begin in it."""
        self._begin.setdefault(env, Begin())

    def begin_after_fault(self, env: int, *, rebuild: bool) -> None:
        """Have an env that failed made anew and reset, or reset only, as was wished for meanwhile."""
        wish = self.wishes.pop(env, None)
        if wish is not None and wish.options is not None:
            self.options[env] = wish.options
        options = None if wish is None else wish.begin.options
        self._begin[env] = Begin(options, rebuild, self._changed.get(env, {})) if rebuild else Begin(options)

    def change(self, env: int, changed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings with which an env is made from now on; answer all that differ from the others'."""
        settings = self._changed[env] = {**self._changed.get(env, {}), **changed}
        return settings

    def wish(self, env: int, wish: Wish) -> None:
        """Note a wish; one that the env be made anew outlives a later one without."""
        earlier = self.wishes.get(env)
        if earlier is not None and earlier.begin.rebuild:
            wish = replace(wish, begin=earlier.begin._replace(options=wish.begin.options))
        self.wishes[env] = wish

    def grant(self, env: int) -> str:
        """Have what was wished for done next; answer why the env's open episode ends."""
        wish = self.wishes.pop(env)
        self._begin[env] = wish.begin
        if wish.options is not None:
            self.options[env] = wish.options
        return wish.reason

    def begun(self, envs: NDArray[np.int32]) -> None:
        """Forget the options of envs that were reset with them."""
        if self.options:
            for env in envs.tolist():
                self.options.pop(env, None)

    def drop(self, env: int) -> None:
        """Forget what an env that failed was to do; what was wished for it stays."""
        self.given[env] = False
        self.options.pop(env, None)
        self._begin.pop(env, None)

    def clear(self) -> None:
        """Forget actions and wishes: all envs begin anew."""
        self.given[:] = False
        self.wishes.clear()
