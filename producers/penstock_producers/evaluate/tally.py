"""Which env plays which seed, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs import Answer, Lanes, Rows
    from penstock_producers.evaluate.placed import Placed

_NONE = -1


class Played(NamedTuple):
    """What one pass over seeds gave; each array has an item a seed."""

    ends: NDArray[np.uint8]
    """0 for a seed that was not played to an end."""
    returns: NDArray[np.float64]
    length: NDArray[np.int64]
    reasons: dict[int, str]
    """Why an episode broke, by the place of its seed in the list."""


class Tally:
    """Watches lanes whose episodes have listed seeds, and parks each env once its share is played.

    An `Observer` of the rollout that steps them. It is asked before each of their resets: so an end is answered before
    the next reset is ordered, whose faults cannot take it back.

    Args:
        lanes: made with `ListedSeeds` of these seeds, and not reset yet.
        seeds: all different.
        placed: the policy; it is told where to compute the rows of its next batch: by the seeds that their envs play.
        max_steps: after how many steps an episode is cut; None for never.
    """

    def __init__(self, lanes: Lanes, seeds: Sequence[int], placed: Placed, max_steps: int | None) -> None:
        n, count = lanes.num_envs, len(seeds)
        self._lanes = lanes
        self._placed = placed
        self._max_steps = max_steps
        self._seeds = np.array(seeds, np.int64)
        # Of each env: the place of the seed that it plays, from before its reset, and the return and the length so far.
        self._plays = np.full(n, _NONE, np.int64)
        self._return = np.zeros(n, np.float64)
        self._length = np.zeros(n, np.int64)
        # The envs whose cut episode the lanes are still to abort, so that its record has an end.
        self._cut = np.zeros(n, np.bool_)
        # The newest fault of each env that was looked at.
        self._known: dict[int, str] = {}
        self.played = Played(np.zeros(count, np.uint8), np.zeros(count), np.zeros(count, np.int64), {})
        lanes.before_reset = self._begin

    def is_done(self) -> bool:
        """Whether nothing is left to be played here: every seed has its end or its fault, or its env plays no more.

        An episode that was cut has its end when the lanes have aborted it.
        """
        if len(self._lanes.parked) == self._lanes.num_envs:
            return True
        told = len(self.played.reasons) + np.count_nonzero(self.played.ends) >= len(self._seeds)
        return bool(told) and not self._cut.any()

    def see(self, answer: Answer) -> Answer:
        """Book an answer of the lanes."""
        if answer.steps is not None:
            self._step(answer.steps)
        for abort in answer.aborts:
            self._cut[abort.env] = False
        self._look_at_faults()
        # An env that was cut just now is still told to be ready; where its row is computed is nobody's business.
        self._placed.place(self._seeds[self._plays[answer.ready]])
        return answer

    def broke(self, reason: str) -> None:
        """The lanes cannot go on: no seed that is open is played to its end."""
        self._look_at_faults()
        for env in np.flatnonzero(self._plays != _NONE).tolist():
            self._fail(env, reason)

    def _step(self, rows: Rows) -> None:
        env = rows.env
        self._return[env] += rows.reward
        self._length[env] += 1
        self._book(env, rows.terminated * np.uint8(Ends.TERMINATED) + rows.truncated * np.uint8(Ends.TRUNCATED))
        if self._max_steps is not None:
            over = env[(self._length[env] >= self._max_steps) & (self._plays[env] != _NONE)]
            self._book(over, np.full(len(over), Ends.CUT, np.uint8))
            self._cut[over] = True
            for one in over.tolist():
                self._lanes.reset_env(one)

    def _book(self, env: NDArray[np.int32], ends: NDArray[np.uint8]) -> None:
        """Note the ends of episodes, one an env; 0 where one goes on."""
        ended = np.flatnonzero(ends)
        if not len(ended):
            return
        env, ends = env[ended], ends[ended]
        played, place = self.played, self._plays[env]
        played.ends[place] = ends
        played.returns[place] = self._return[env]
        played.length[place] = self._length[env]
        self._plays[env] = _NONE

    def _begin(self, env: int, episode: int) -> None:
        """Note which seed an env is to play; park it where its share is played."""
        # First those of the reset before, which may have had no answer.
        self._look_at_faults()
        place = env + episode * self._lanes.num_envs
        if place >= len(self._seeds):
            self._lanes.park(env)
            return
        # One whose worker was lost before it came to this reset is asked for once more.
        self.played.reasons.pop(place, None)
        self._plays[env] = place
        self._return[env] = 0.0
        self._length[env] = 0

    def _look_at_faults(self) -> None:
        """Note the seeds whose episodes broke, or whose resets did."""
        for env, reason in self._lanes.last_fault.items():
            if self._known.get(env) is not reason:
                self._known[env] = reason
                self._fail(env, reason)

    def _fail(self, env: int, reason: str) -> None:
        place = int(self._plays[env])
        if place != _NONE:
            self.played.reasons[place] = reason
            self._plays[env] = _NONE
