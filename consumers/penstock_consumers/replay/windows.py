"""Windows of items, as long as each may be: read end to end as they lie, then laid out in the order drawn."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.segment import masked
from penstock_schemas.columns import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.gather import Gather, Part
    from penstock_schemas.columns import Column


class Windows:
    """Reads the items of n windows, one window a draw.

    Windows that are padded are given as arrays (n, extent, …), the items of each from place 0 on and zeros (or empty
    text) behind them; those that are not, as arrays (items of all, …), end to end.

    Args:
        gather: the draws.
        first: the item of its segment with which each window begins, in the order in which they lie, shape (n,).
        count: how many items there are in each, at least one, in the same order, shape (n,).
        extent: to how many they are padded; None where they are not.
    """

    def __init__(self, gather: Gather, first: NDArray[np.int64], count: NDArray[np.int64], extent: int | None) -> None:
        self._gather = gather
        self._first = first
        self._count = count
        self._extent = extent
        # Where each window begins among the items of all, as they lie, and where the last ends.
        self._begin = np.concatenate([[0], np.cumsum(count)])

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where each window begins along the first axis of what is given, and where the last ends, shape (n + 1,)."""
        return np.arange(len(self._counts) + 1) if self._extent else np.concatenate([[0], np.cumsum(self._counts)])

    def items(self, column: Column, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read a list column, in the dtype that learners are given."""
        values: NDArray[Any] = self._shaped(self._items(column, dtype))
        return values

    def nullable(self, column: Column, dtype: np.dtype[Any]) -> np.ma.MaskedArray[Any, Any]:
        """Read as `items` does what may be absent: masked there, as padding is."""
        there = self._laid(self._behind(self.lying(lambda part, index: _valid(part, column, index))))
        values: np.ma.MaskedArray[Any, Any] = self._shaped(masked(self._items(column, dtype), there))
        return values

    def lying(self, values: Callable[[Part, NDArray[np.int64]], NDArray[Any]]) -> NDArray[Any]:
        """Lay what is computed of the items of each part, shape (items of the part, …), end to end as they lie."""
        return np.concatenate([values(part, self._index[at]) for part, at in self._parts()])

    def lay(self, lying: NDArray[Any]) -> NDArray[Any]:
        """Lay out what there is of all items, end to end as they lie, shape (items of all, …)."""
        laid: NDArray[Any] = self._shaped(self._laid(self._behind(lying)))
        return laid

    def at_last(self, lying: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Lay out a flag of each window, in the order in which they lie, at its last item; False at all others."""
        begin = np.arange(len(self._counts)) * self._extent if self._extent else self.bounds[:-1]
        laid = np.zeros(self._layout.size, np.bool_)
        laid[begin + self._counts - 1] = self._gather.as_drawn(lying)
        flags: NDArray[np.bool_] = self._shaped(laid)
        return flags

    def from_place(self, lying: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which items come at a place of their window or behind it; it is given in the order in which they lie.

        Padding is none of them.
        """
        least = self._gather.as_drawn(lying)
        if not self._extent:
            return ranges(np.zeros_like(self._counts), self._counts) >= np.repeat(least, self._counts)
        place = np.arange(self._extent)
        flags: NDArray[np.bool_] = (place >= least[:, np.newaxis]) & (place < self._counts[:, np.newaxis])
        return flags

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """How many items there are in each window, as drawn, shape (n,)."""
        return self._gather.as_drawn(self._count)

    @cached_property
    def _index(self) -> NDArray[np.int64]:
        """The items of all windows, end to end as they lie."""
        return ranges(self._first, self._count)

    @cached_property
    def _layout(self) -> NDArray[np.int64]:
        """Which of the items that were read stands at each place; the one behind them all where there is padding."""
        begin = self._gather.as_drawn(self._begin[:-1])
        if not self._extent:
            return ranges(begin, self._counts)
        place = np.arange(self._extent)
        there = place < self._counts[:, np.newaxis]
        return np.where(there, begin[:, np.newaxis] + place, self._begin[-1]).reshape(-1)

    def _items(self, column: Column, dtype: np.dtype[Any]) -> NDArray[Any]:
        read = self._room(column.shape, column.dtype)
        for part, at in self._parts():
            part.segment.items(column.name).take(self._index[at], read[at])
        return self._laid(read).astype(dtype, copy=False)

    def _behind(self, lying: NDArray[Any]) -> NDArray[Any]:
        """Put what stands for padding behind all items."""
        read = self._room(lying.shape[1:], lying.dtype)
        read[:-1] = lying
        return read

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Make room for all items, and behind them what stands for padding: zero, or empty text."""
        room = np.empty((len(self._index) + 1, *shape), dtype)
        room[-1] = "" if dtype.kind == "O" else 0
        return room

    def _laid(self, read: NDArray[Any]) -> NDArray[Any]:
        return read.take(self._layout, axis=0)

    def _parts(self) -> Iterator[tuple[Part, slice]]:
        """The parts, and where the items of each stand among those of all."""
        for part in self._gather.parts:
            yield part, slice(int(self._begin[part.at.start]), int(self._begin[part.at.stop]))

    def _shaped(self, laid: Any) -> Any:
        return laid.reshape(len(self._counts), self._extent, *laid.shape[1:]) if self._extent else laid


def _valid(part: Part, column: Column, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    there = part.segment.items(column.name).valid
    return np.ones(len(index), np.bool_) if there is None else there[index]
