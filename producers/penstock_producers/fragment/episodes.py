"""Where each env's episode stands between two fragments, and the names of chunks that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.fragment.log import RowLog
    from penstock_producers.fragment.pieces import Pieces, Runs

_NONE = -1


class Names(NamedTuple):
    """The names of pieces; each array has an item a piece."""

    env: NDArray[np.int32]
    episode: NDArray[np.int64]
    chunk: NDArray[np.int32]
    first_step: NDArray[np.int64]
    continues: NDArray[np.int64]
    """The number of the episode that was cut where this one begins; -1 where there is none."""


class Finished(NamedTuple):
    """Episodes that ended by themselves, the parts of a cut one joined; each array has an item an episode."""

    returns: NDArray[np.float64]
    length: NDArray[np.int64]
    tail: NDArray[np.intp]
    """The row of the log with which each ended."""


class Standing:
    """The open episode of each env: its number, its next chunk and step, its return and length so far.

    Where an env has none open, the number is that of its next one and the rest is 0. A cut begins an episode of its
    own, but not for the return and the length.
    """

    def __init__(self, num_envs: int) -> None:
        self._episode = np.zeros(num_envs, np.int64)
        self._chunk = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._continues = np.full(num_envs, _NONE, np.int64)
        self._return = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int64)

    def step(self, runs: Runs) -> NDArray[np.int64]:
        """At which step of its episode each run begins."""
        return np.where(runs.carried, self._step[runs.env], 0)

    def name(self, runs: Runs, pieces: Pieces) -> Names:
        """Name the pieces: those of an env's open episode go on where it stood, later ones begin anew."""
        env = runs.env[pieces.run]
        closes = pieces.ends != Ends.OPEN
        begins_env = _differs(env)
        begins = begins_env.copy()
        begins[1:] |= closes[:-1]
        closed = np.cumsum(closes) - closes
        episode = self._episode[env] + closed - closed[_first_of(begins_env)]
        first = _first_of(begins)
        goes_on = begins_env[first]
        before = np.cumsum(pieces.length) - pieces.length
        return Names(
            env,
            episode,
            (np.arange(len(env)) - first + np.where(goes_on, self._chunk[env], 0)).astype(np.int32),
            before - before[first] + np.where(goes_on, self._step[env], 0),
            self._continued(runs, pieces, env, episode, begins_env),
        )

    def _continued(
        self,
        runs: Runs,
        pieces: Pieces,
        env: NDArray[np.int32],
        episode: NDArray[np.int64],
        begins_env: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        continues = np.where(begins_env & runs.carried[pieces.run], self._continues[env], _NONE)
        follows = np.zeros(len(env), np.bool_)
        follows[1:] = (pieces.ends[:-1] == Ends.CUT) & (pieces.run[1:] == pieces.run[:-1])
        continues[follows] = episode[np.flatnonzero(follows) - 1]
        return continues

    def finish(self, log: RowLog, runs: Runs) -> Finished:
        """Add up the rewards of every run; answer those that ended by themselves."""
        rewards = log.reward[runs.order].astype(np.float64)
        rewards[runs.head] = 0.0
        returns = np.add.reduceat(rewards, runs.head) if len(runs.head) else np.zeros(0)
        length = runs.length.astype(np.int64)
        carried = runs.env[runs.carried]
        returns[runs.carried] += self._return[carried]
        length[runs.carried] += self._length[carried]
        last = _is_last(runs.env)
        at = runs.env[last]
        open_now = last & (runs.ends == Ends.OPEN)
        self._return[at], self._length[at] = 0.0, 0
        self._return[runs.env[open_now]], self._length[runs.env[open_now]] = returns[open_now], length[open_now]
        ended = (runs.ends & (Ends.TERMINATED | Ends.TRUNCATED)) != 0
        return Finished(returns[ended], length[ended], runs.order[runs.tail[ended]])

    def go_on(self, runs: Runs, pieces: Pieces, names: Names) -> NDArray[np.intp]:
        """Stand where the fragment ends; answer the rows of the log with which the open episodes go on."""
        last_run = _is_last(runs.env)
        open_run = last_run & (runs.ends == Ends.OPEN)
        last = np.flatnonzero(_is_last(names.env))
        at, is_open = names.env[last], pieces.ends[last] == Ends.OPEN
        was_cut = (pieces.ends[last] == Ends.CUT) & open_run[pieces.run[last]]
        self._episode[at] = names.episode[last] + ~is_open
        self._chunk[at] = np.where(is_open, names.chunk[last] + 1, 0)
        self._step[at] = np.where(is_open, names.first_step[last] + pieces.length[last], 0)
        self._continues[at] = np.where(was_cut, names.episode[last], _NONE)
        # What was aborted before it had a step leaves nothing that could be continued.
        self._continues[runs.env[last_run & ~(open_run & (runs.carried | (runs.length > 0)))]] = _NONE
        rows: NDArray[np.intp] = runs.order[runs.tail[open_run]]
        return rows


def _differs(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark where a value is not the one before it; the first always."""
    differs = np.ones(len(values), np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def _is_last(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark where a value is not the one after it; the last always."""
    last = np.ones(len(values), np.bool_)
    last[:-1] = values[1:] != values[:-1]
    return last


def _first_of(begins: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Find for each item where its group begins."""
    first: NDArray[np.intp] = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return first
