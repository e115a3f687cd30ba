"""Which rows of a fragment are which chunk of which episode: numpy only, no Python per env, step or episode.

Rows come sorted by env, each env's in the order in which they happened. A *run* is a row that is no step (a reset's,
or the observation carried over) and the steps that follow it. A *piece* is a part of a run that becomes a chunk: a run
is parted where another policy acted, where its episode is cut, and where a chunk would not fit into a message. A piece
of L steps has its head, the row before its first step, and L rows after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.fragment.log import RowLog

_INT16 = np.iinfo(np.int16).max


class Runs(NamedTuple):
    """The runs of a fragment; each array has an item a run."""

    order: NDArray[np.intp]
    """The rows of the log, sorted by env; every other index here counts in this order."""
    env: NDArray[np.int32]
    head: NDArray[np.intp]
    length: NDArray[np.int64]
    ends: NDArray[np.uint8]
    """How the run's last step ended it, an abort included."""
    carried: NDArray[np.bool_]
    """Whether it goes on with what an earlier fragment began."""
    aborted: dict[int, str]
    """The reasons of the runs that were aborted, by run."""

    @property
    def tail(self) -> NDArray[np.intp]:
        """The last row of each."""
        return self.head + self.length


class Pieces(NamedTuple):
    """The pieces of a fragment; each array has an item a piece."""

    run: NDArray[np.intp]
    head: NDArray[np.intp]
    length: NDArray[np.int64]
    ends: NDArray[np.uint8]


def runs_of(log: RowLog) -> Runs:
    """Sort the rows of the log by env, and find the runs."""
    count = log.count
    env = log.env[:count]
    order = np.argsort(env.astype(np.int16) if log.num_envs <= _INT16 else env, kind="stable")
    head = np.flatnonzero(log.first[:count][order])
    length = np.diff(np.append(head, count)) - 1
    tail = order[head + length]
    ends = (log.terminated[tail] * np.uint8(Ends.TERMINATED) + log.truncated[tail] * np.uint8(Ends.TRUNCATED)).astype(
        np.uint8
    )
    runs = Runs(order, env[order[head]], head, length, ends, order[head] < log.carried, {})
    for position, abort in log.aborts:
        _abort(runs, position, abort.env, abort.reason)
    return runs


def _abort(runs: Runs, position: int, env: int, reason: str) -> None:
    """End the run that an env was in when `position` rows had been logged, unless it had ended by itself."""
    first, behind = np.searchsorted(runs.env, (env, env + 1))
    begun = first + np.searchsorted(runs.order[runs.head[first:behind]], position)
    if begun > first and runs.ends[begun - 1] == Ends.OPEN:
        runs.ends[begun - 1] = Ends.ABORTED
        runs.aborted[int(begun - 1)] = reason


def pieces_of(
    log: RowLog, runs: Runs, step: NDArray[np.int64], cut_steps: int | None, longest: NDArray[np.int64]
) -> Pieces:
    """Part the runs into pieces; `step` is at which step of its episode each run begins, shape (runs,).

    `longest` is how many steps a piece of each has at most, shape (runs,). A run without a step is a piece only where
    it aborts an episode that had steps before.
    """
    heads = np.zeros(log.count, np.bool_)
    cuts = np.zeros(log.count, np.bool_)
    if cut_steps is not None:
        cuts[_cut_rows(runs, step, cut_steps)] = True
        heads |= cuts
    policy = log.policy[runs.order]
    is_step = np.ones(log.count, np.bool_)
    is_step[runs.head] = False
    heads[:-1] |= is_step[:-1] & is_step[1:] & (policy[:-1] != policy[1:])
    pieces = _parted(runs, step, heads, cuts)
    most = longest[pieces.run]
    if (pieces.length > most).any():
        nth, of = _count_up(np.maximum(pieces.length - 1, 0) // most)
        heads[pieces.head[of] + nth * most[of]] = True
        pieces = _parted(runs, step, heads, cuts)
    return pieces


def _cut_rows(runs: Runs, step: NDArray[np.int64], cut_steps: int) -> NDArray[np.int64]:
    """The rows of every `cut_steps`-th step of an episode, but for one with which the env ends it."""
    last = np.maximum(step + runs.length - _ended(runs.ends), 0)
    nth, of = _count_up(last // cut_steps)
    rows: NDArray[np.int64] = (runs.head - step)[of] + nth * cut_steps
    return rows


def _parted(runs: Runs, step: NDArray[np.int64], heads: NDArray[np.bool_], cuts: NDArray[np.bool_]) -> Pieces:
    """Part the runs at `heads`, rows of steps behind which another piece begins."""
    begins = heads.copy()
    begins[runs.head] = (runs.length > 0) | ((runs.ends == Ends.ABORTED) & (step > 0))
    # Behind a run's last step there is no step yet that a piece could begin with.
    begins[runs.tail[runs.length > 0]] = False
    head = np.flatnonzero(begins)
    run = np.searchsorted(runs.head, head, side="right") - 1
    last = np.ones(len(run), np.bool_)
    last[:-1] = run[1:] != run[:-1]
    stop = np.append(head[1:], 0)[: len(head)]
    stop[last] = runs.tail[run[last]]
    ends = np.where(last, runs.ends[run], Ends.OPEN)
    # Cut it is where it was cut before it was aborted: its continuation had no step.
    return Pieces(run, head, stop - head, np.where(cuts[stop] & ~_ended(ends), Ends.CUT, ends).astype(np.uint8))


def _ended(ends: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether the env itself ended the episode."""
    ended: NDArray[np.bool_] = (ends & (Ends.TERMINATED | Ends.TRUNCATED)) != 0
    return ended


def _count_up(times: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count 1 … times[i] for each i, end to end; answer the counts, and the i of each."""
    of = np.repeat(np.arange(len(times)), times)
    return np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times) + 1, of
