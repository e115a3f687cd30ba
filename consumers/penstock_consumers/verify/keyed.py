"""Rows of a store, looked up by key and compared by content."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class Keyed:
    """Rows of many batches, numbered end to end, to be looked up by key: the producer and some whole numbers."""

    def __init__(self, batches: Sequence[pa.RecordBatch], key: Sequence[str]) -> None:
        self.batches = batches
        self._key = key
        self._producers: dict[str, int] = {}
        keys = [self._keys(batch) for batch in batches]
        joined = np.concatenate([self._packed(np.empty((0, 1 + len(key)), np.int64)), *keys])
        self._starts = np.cumsum([0, *(len(part) for part in keys)])
        self._order = np.argsort(joined, kind="stable")
        self._sorted = joined[self._order]
        self.seen = np.zeros(len(joined), np.bool_)

    def seen_by_batch(self) -> Iterator[tuple[pa.RecordBatch, NDArray[np.bool_]]]:
        """Each batch, and which of its rows were found by `compare`."""
        return zip(self.batches, (self.seen[start:end] for start, end in pairwise(self._starts)), strict=True)

    def repeated(self) -> NDArray[np.bool_]:
        """Which rows have the key of one before them."""
        again = np.zeros(len(self._order), np.bool_)
        again[self._order[1:]] = self._sorted[1:] == self._sorted[:-1]
        return again

    def find(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Number the rows that have the keys of `batch`; -1 where there is none."""
        wanted = self._keys(batch)
        if not len(self._sorted):
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[at] == wanted, self._order[at], -1)

    def compare(self, expected: pa.RecordBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell which rows of `expected` are missing, and which read otherwise; those that are there are now seen."""
        numbers = self.find(expected)
        missing = numbers < 0
        wrong = np.zeros(len(numbers), np.bool_)
        there = numbers[~missing]
        if len(there):
            self.seen[there] = True
            wrong[~missing] = _differing(
                self._take(there), pa.Table.from_batches([expected]).filter(pa.array(~missing))
            )
        return missing, wrong

    def _keys(self, batch: pa.RecordBatch) -> NDArray[np.void]:
        owners = batch.column("producer").dictionary_encode()
        codes = [self._producers.setdefault(name, len(self._producers)) for name in owners.dictionary.to_pylist()]
        columns = [np.array(codes, np.int64)[owners.indices.to_numpy()], *(fixed(batch, name) for name in self._key)]
        return self._packed(np.stack(columns, axis=1).astype(np.int64))

    def _packed(self, columns: NDArray[np.int64]) -> NDArray[np.void]:
        """Take the numbers of a row together, as bytes that sort."""
        packed: NDArray[np.void] = np.ascontiguousarray(columns).view(f"V{columns.itemsize * columns.shape[1]}")
        return packed.reshape(-1)

    def _take(self, numbers: NDArray[np.int64]) -> pa.Table:
        """Read rows by number, in that order."""
        batch = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(batch, kind="stable")
        parts = [
            self.batches[at].take(pa.array(numbers[order][batch[order] == at] - self._starts[at]))
            for at in np.unique(batch)
        ]
        return pa.Table.from_batches(parts).take(pa.array(np.argsort(order)))


def _differing(actual: pa.Table, wanted: pa.Table) -> NDArray[np.bool_]:
    """Tell which rows read otherwise."""
    differing = np.zeros(wanted.num_rows, np.bool_)
    for name in wanted.schema.names:
        one, other = actual.column(name), wanted.column(name)
        if not _alike(one, other):
            # By how they read, since what is not a number equals nothing, itself included.
            pairs = zip(one, other, strict=True)
            differing |= [repr(mine.as_py()) != repr(its.as_py()) for mine, its in pairs]
    return differing


def _alike(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Tell whether columns are equal; unlike Arrow, tell 0 from -0."""
    return one.equals(other) and all(
        np.array_equal(np.signbit(mine), np.signbit(its))
        for mine, its in zip(_floats(one), _floats(other), strict=True)
    )


def _floats(column: pa.ChunkedArray) -> list[NDArray[np.floating]]:
    """View the floating-point numbers of a column, however deep in lists; nothing where it has others."""
    values = column.combine_chunks()
    while pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        values = values.flatten()
    return [values.to_numpy(zero_copy_only=False)] if pa.types.is_floating(values.type) else []
