"""Gathering: the list columns of rows that come in parts, laid in another order.

A part whose values are large is laid at once, straight into what comes of it, and need not stay in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.columns import list_column, list_offsets, list_valid, list_values, lists_valid, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.columns import Column

# From this size on an item is copied once, part by part; smaller ones are joined first, since to lay a part takes a
# few microseconds whatever its size.
_LARGE_ITEM_BYTES = 512


def is_large(column: Column) -> bool:
    """Tell whether a column's values are laid part by part; Arrow moves text without making an object of each."""
    return not column.is_text and column.item_bytes >= _LARGE_ITEM_BYTES


class Gather:
    """Lays list columns of rows in a new order: `add` each part of the rows, then take the `columns`.

    Rows are numbered as they are added. `steps`, shape (rows,), are theirs; `order`, shape (n,), says which are kept in
    which order; `keeps`, shape (n,), which of those keep the last item of overlapping columns; list i of the result
    begins with row `order[first[i]]`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        steps: NDArray[Any],
        order: NDArray[np.intp],
        keeps: NDArray[np.bool_],
        first: NDArray[np.intp],
    ) -> None:
        lengths = steps[order].astype(np.int64)
        self._layouts = {
            False: _Layout(steps, order, lengths, first),
            True: _Layout(steps + 1, order, lengths + keeps, first),
        }
        self._small: dict[Column, list[pa.ListArray]] = {}
        self._large: dict[Column, _Laid] = {}
        for column in columns:
            if is_large(column):
                self._large[column] = _Laid(column, self._layouts[column.overlap])
            else:
                self._small[column] = []

    @property
    def small(self) -> list[str]:
        """The names of the columns whose parts must stay in memory."""
        return [column.name for column in self._small]

    def add(self, start: int, small: pa.RecordBatch, batch: pa.RecordBatch, rows: NDArray[np.intp] | None) -> None:
        """Add the rows from number `start` on: their small columns, and the `rows` of `batch` for the large ones."""
        for column, arrays in self._small.items():
            arrays.append(small.column(column.name))
        for column, laid in self._large.items():
            laid.add(start, batch.column(column.name), rows)

    def columns(self) -> dict[str, pa.ListArray]:
        """The columns in the new order, by name."""
        small = {
            column.name: _joined(column, arrays, self._layouts[column.overlap])
            for column, arrays in self._small.items()
        }
        return small | {column.name: laid.column() for column, laid in self._large.items()}


class _Layout:
    """Where the items of every row lie and come to lie, in a column and in all like it."""

    def __init__(
        self, items: NDArray[Any], order: NDArray[np.intp], lengths: NDArray[np.int64], first: NDArray[np.intp]
    ) -> None:
        self._items = items.astype(np.int64)
        self._order = order
        self._lengths = lengths
        self.offsets = np.append(0, np.add.reduceat(lengths, first).cumsum()).astype(np.int32)
        self._source: NDArray[np.int64] | None = None
        self._length = self._start = np.empty(0, np.int64)

    @property
    def source(self) -> NDArray[np.int64]:
        """Which of all items, laid end to end, comes next in the new order."""
        if self._source is None:
            begin = np.cumsum(self._items) - self._items
            self._source = ranges(begin[self._order], self._lengths)
        return self._source

    def target(
        self, start: int, offsets: NDArray[np.int32], rows: NDArray[np.intp] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where items come from in the lists of a part, which begins with row `start`, and where they go."""
        if not len(self._start):
            # What is not kept has no length.
            self._length, self._start = np.zeros((2, len(self._items)), np.int64)
            self._length[self._order] = self._lengths
            self._start[self._order] = np.cumsum(self._lengths) - self._lengths
        begin = offsets[:-1] if rows is None else offsets[rows]
        here = slice(start, start + len(begin))
        length = self._length[here]
        return ranges(begin.astype(np.int64) - offsets[0], length), ranges(self._start[here], length)


class _Laid:
    """A column of which each part is laid as it comes."""

    def __init__(self, column: Column, layout: _Layout) -> None:
        self._column = column
        self._layout = layout
        items = int(layout.offsets[-1])
        self._values = np.empty((items, *column.shape), column.dtype)
        self._valid = np.ones(items, np.bool_) if column.nullable else None

    def add(self, start: int, array: pa.ListArray, rows: NDArray[np.intp] | None) -> None:
        source, target = self._layout.target(start, list_offsets(array), rows)
        values = list_values(array, self._column)
        # Most often all are taken as they lie; then there is no copy between.
        whole = len(source) == len(values) and (not len(source) or bool((np.diff(source) == 1).all()))
        self._values[target] = values if whole else values[source]
        valid = list_valid(array) if self._valid is not None else None
        if self._valid is not None and valid is not None:
            self._valid[target] = valid[source]

    def column(self) -> pa.ListArray:
        return list_column(self._column, self._values, self._layout.offsets, self._valid)


def _joined(column: Column, arrays: Sequence[pa.ListArray], layout: _Layout) -> pa.ListArray:
    if column.is_text:
        texts = pa.concat_arrays([array.flatten() for array in arrays]).take(pa.array(layout.source))
        return pa.ListArray.from_arrays(pa.array(layout.offsets), texts, type=column.field.type)
    values = np.concatenate([list_values(array, column) for array in arrays])
    valid = lists_valid(arrays) if column.nullable else None
    taken = np.take(values, layout.source, axis=0)
    return list_column(column, taken, layout.offsets, None if valid is None else valid[layout.source])
