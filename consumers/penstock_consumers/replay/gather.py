"""Drawn items gathered: read segment by segment in the order in which they lie, and given in the order drawn.

Reading in order makes one pass over each segment's pages and few calls of numpy, however many segments there are.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.segment import given_dtypes, masked

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_consumers.replay.drawn import Drawn
    from penstock_consumers.replay.index import Index
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec


class Part:
    """The draws that fall into one segment, in the order in which they lie.

    Attributes:
        number: of the segment in the snapshot.
        segment: the segment.
        at: where these draws stand among all in order.
        items: which were drawn, as numbers in the segment, shape (n,).
        step: the step of the segment with which each begins, shape (n,).
        row: the row of the episode of each, shape (n,).
    """

    def __init__(self, index: Index, number: int, at: slice, items: NDArray[np.int64]) -> None:
        self._index = index
        self.number = number
        self.segment = index.snapshot.segment(number)
        self.at = at
        self.items = items
        self.step, self.row = index.places(number, items)

    @property
    def first_episode(self) -> int:
        """The place of the segment's first episode in the order of all."""
        return int(self._index.snapshot.first_episode[self.number])

    @cached_property
    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The step with which the run of each begins, and the one behind it, shapes (n,)."""
        return self._index.bounds(self.number, self.items)

    @cached_property
    def chunk(self) -> NDArray[np.int64]:
        """The chunk of each, shape (n,)."""
        return self.segment.chunk_of(self.step)

    @cached_property
    def observation(self) -> NDArray[np.int64]:
        """The item of the segment's observations before the first step of each, shape (n,)."""
        # Each episode before has one more observation than it has steps.
        return self.step + self.row


class Gather:
    """Reads what belongs to n draws.

    Attributes:
        snapshot: of which.
        parts: the draws, a part a segment.

    Args:
        index: what the items are of.
        drawn: n of them.
        spec: the stream's.
    """

    def __init__(self, index: Index, drawn: Drawn, spec: StreamSpec) -> None:
        self.snapshot = index.snapshot
        self._place = drawn.place.ravel()
        self._dtypes = given_dtypes(spec)
        self.parts = _parts(index, drawn.lying)

    def __len__(self) -> int:
        return len(self._place)

    def items(self, column: Column, index: Callable[[Part], NDArray[np.int64]]) -> NDArray[Any]:
        """Read an item of a list column for each draw, shape (n, *column shape), in the dtype that learners are given.

        Args:
            column: which.
            index: the items of a part's draws, shape (n of the part,).
        """
        lying = np.empty((len(self), *column.shape), column.dtype)
        for part in self.parts:
            part.segment.items(column.name).take(index(part), lying[part.at])
        return self.as_drawn(lying).astype(self._dtypes[column.name], copy=False)

    def nullable(self, column: Column, index: Callable[[Part], NDArray[np.int64]]) -> np.ma.MaskedArray[Any, Any]:
        """Read as `items` does what may be absent: masked there."""
        valid = np.ones(len(self), np.bool_)
        for part in self.parts:
            there = part.segment.items(column.name).valid
            if there is not None:
                valid[part.at] = there[index(part)]
        return masked(self.items(column, index), self.as_drawn(valid))

    def lying(self, values: Callable[[Part], NDArray[Any]]) -> NDArray[Any]:
        """Lay what is found in each part, shape (n of the part, …), end to end: in the order in which the draws lie."""
        return np.concatenate([values(part) for part in self.parts])

    def as_drawn(self, lying: NDArray[Any]) -> NDArray[Any]:
        """Lay values from the order in which the draws lie in the order in which they were drawn."""
        return lying.take(self._place, axis=0)


def given_bytes(column: Column, dtype: np.dtype[Any]) -> int:
    """What one item of a column takes where it is given, at most, with its mask and the text that it refers to."""
    text = column.item_bytes if column.is_text else 0
    return prod(column.shape) * (dtype.itemsize + column.nullable) + text


def _parts(index: Index, items: NDArray[np.int64]) -> list[Part]:
    """Divide ascending items among the segments."""
    bounds = np.searchsorted(items, index.first_item).tolist()
    return [
        Part(index, number, slice(begin, end), items[begin:end] - index.first_item[number])
        for number, (begin, end) in enumerate(pairwise(bounds))
        if begin < end
    ]
