"""The items of an index in groups that have much in common, so that a weight is computed once for many items."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.index import Index
    from penstock_consumers.replay.segment import Segment


class Groups:
    """All pieces of an index, end to end: G groups of consecutive items, each of one chunk of one episode.

    Opens every segment that holds an item.

    Attributes:
        items: how many items each has, shape (G,).
        first: the item with which each begins, and how many items there are, shape (G + 1,).
        policy_version: the version that chose the action of the step with which its items begin, shape (G,).
        begins_episode: which are the first of their episode, shape (G,).
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        pieces = [(number, index.pieces(number)) for number in holding(index)]
        self._rows = [(number, of.row) for number, of in pieces]
        self.items = np.concatenate([of.items for _, of in pieces])
        self.policy_version = np.concatenate([of.policy_version for _, of in pieces])
        self.first = np.concatenate([[0], np.cumsum(self.items)])
        self.begins_episode = np.concatenate([np.diff(of.row, prepend=-1) != 0 for _, of in pieces])

    @cached_property
    def episode(self) -> NDArray[np.int64]:
        """The episode of each, numbered among those that have an item, shape (G,)."""
        return np.cumsum(self.begins_episode) - 1

    def of_episode(self, name: str) -> NDArray[Any]:
        """Read a column of one primitive an episode, for each group that of its episode, shape (G,)."""
        snapshot = self._index.snapshot
        return np.concatenate([snapshot.segment(number).fixed(name)[row] for number, row in self._rows])

    def steps(self) -> Iterator[Steps]:
        """The steps with which the groups of each segment begin, one segment after the other."""
        begin = 0
        for number, row in self._rows:
            end = begin + len(row)
            at = self.first[begin:end] - self._index.first_item[number]
            yield Steps(number, self._index.snapshot.segment(number), row, at, self._index.places(number, at).step)
            begin = end


class Steps(NamedTuple):
    """Where the g groups of a segment begin."""

    number: int
    """Of the segment."""
    segment: Segment
    """The segment."""
    row: NDArray[np.int64]
    """(g,) the row of its episode."""
    item: NDArray[np.int64]
    """(g,) the number of its first item in the segment."""
    step: NDArray[np.int64]
    """(g,) the step of the segment with which that begins."""


def holding(index: Index) -> list[int]:
    """The numbers of the segments that hold an item."""
    found: list[int] = np.flatnonzero(np.diff(index.first_item)).tolist()
    return found
