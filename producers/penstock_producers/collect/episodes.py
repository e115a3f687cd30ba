"""Chunk rows laid out as episodes: one sort, one take a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock_producers.collect.chunks import NONE, Chunks
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENDED = Ends.TERMINATED.value | Ends.TRUNCATED.value


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """E episodes, by env and number, or the parts of them that are here.

    Attributes:
        chunks: their chunk rows in order. The lists lie as episodes: those with an item more have one more in each
            episode, not in each row.
        head: the first row of each, shape (E + 1,): those of episode e are `head[e]:head[e + 1]`.
        step: where the steps of each begin, shape (E + 1,). Of the lists with an item more, episode e begins e later.
        before: how many of them were given before, shape (E,).
    """

    chunks: Chunks
    head: NDArray[np.intp]
    step: NDArray[np.int64]
    before: NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Chunks, *, leave_out_aborted: bool = False) -> Laid:
        """Lay out chunk rows that come, of each episode, in the order in which they happened."""
        rows = chunks.rows
        order = np.lexsort((rows["episode"], rows["env"]))
        if leave_out_aborted:
            order = _unaborted(chunks, order)
        env, episode, length = rows["env"][order], rows["episode"][order], rows["steps"][order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (env[1:] != env[:-1]) | (episode[1:] != episode[:-1])
        head = np.append(np.flatnonzero(begins), len(order))
        offset = np.concatenate([[0], np.cumsum(length)])
        sorted_rows = {name: values[order] for name, values in rows.items()}
        before = np.where(sorted_rows["before"], length, 0)[head[:-1]] if len(order) else np.zeros(0, np.int64)
        if begins.all() and len(order) == len(rows["env"]) and (order == np.arange(len(order))).all():
            return cls(chunks, head, offset[head], before)
        # Where each row's items lie now; the first observation of one that goes on is the last of the row before.
        start = np.cumsum(rows["steps"]) - rows["steps"]
        of_steps = ranges(start[order], length)
        overlap = ranges((start + np.arange(len(start)))[order] + ~begins, length + begins)
        laid = Chunks(
            sorted_rows,
            {name: items.take(of_steps) for name, items in chunks.steps.items()},
            {name: items.take(overlap) for name, items in chunks.overlap.items()},
        )
        return cls(laid, head, offset[head], before)

    def __len__(self) -> int:
        return len(self.before)

    @property
    def last(self) -> NDArray[np.intp]:
        """The last row of each episode."""
        return self.head[1:] - 1

    @property
    def steps(self) -> NDArray[np.int64]:
        """How many steps each has, those given before left out."""
        return np.diff(self.step) - self.before

    def tail(self, most: int) -> Chunks:
        """Copy the last steps of the episodes that go on, so many at most of each: a row an episode, given before."""
        length = np.diff(self.step)
        kept = np.minimum(length, most)
        open_ = np.flatnonzero((self.chunks.rows["ends"][self.last] == Ends.OPEN.value) & (kept > 0))
        kept, stop = kept[open_], self.step[1:][open_]
        rows = {name: values[self.last[open_]] for name, values in self.chunks.rows.items()}
        first_step = rows["first_step"] + rows["steps"] - kept
        rows |= {"steps": kept, "first_step": first_step, "before": np.ones(len(open_), np.bool_)}
        of_steps, overlap = ranges(stop - kept, kept), ranges(stop - kept + open_, kept + 1)
        return Chunks(
            rows,
            {name: items.take(of_steps) for name, items in self.chunks.steps.items()},
            {name: items.take(overlap) for name, items in self.chunks.overlap.items()},
        )


def _unaborted(chunks: Chunks, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Leave out every row of the episodes that were aborted."""
    key = np.stack([chunks.rows["env"], chunks.rows["episode"]])
    _, episode = np.unique(key, axis=1, return_inverse=True)
    aborted = np.zeros(int(episode.max(initial=NONE)) + 1, np.bool_)
    aborted[episode.reshape(-1)[chunks.rows["ends"] == Ends.ABORTED.value]] = True
    kept: NDArray[np.intp] = order[~aborted[episode.reshape(-1)[order]]]
    return kept
