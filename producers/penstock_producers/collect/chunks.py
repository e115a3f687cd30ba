"""Chunk rows as arrays: a column each, with an item a chunk, or with the items of all its lists end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import fixed, steps
from penstock_schemas.columns import item_values, list_values, lists_valid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

# What stands for a number that is not there.
NONE = -1
_PLAIN = ("env", "episode", "chunk", "first_step", "ends")
_NUMBERS = ("seed", "continues")
_OBJECTS = ("policy_digest", "reset_options", "abort_reason")
# They have an item a chunk, but the steps that are looked back at are parts of several.
_OF_STEPS = ("policy_version", "exploration")


class Items(NamedTuple):
    """The items of lists."""

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None = None
    """Which are there; None where all are."""

    def take(self, index: NDArray[np.intp]) -> Items:
        """Copy some."""
        return Items(np.take(self.values, index, axis=0), None if self.valid is None else self.valid[index])


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """R chunk rows.

    Attributes:
        rows: the columns with an item a row, by name: those of the stream, -1, NaN or None for what is null; `steps`,
            how many it has; and `before`, whether those were given before and are only looked back at.
        steps: the lists with an item a step, by column; the policy's version and exploration are among them.
        overlap: the lists with one item more in each row, by column.
    """

    rows: dict[str, NDArray[Any]]
    steps: dict[str, Items]
    overlap: dict[str, Items]

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], spec: StreamSpec) -> Chunks:
        """Copy chunk rows of a stream."""
        # Those of a fragment without any have their columns all the same.
        batches = batches or [pa.RecordBatch.from_pylist([], schema=spec.schema)]

        def gathered(name: str) -> NDArray[Any]:
            return np.concatenate([fixed(batch, name) for batch in batches])

        length = np.concatenate([steps(batch) for batch in batches]).astype(np.int64)
        rows = {"steps": length, "before": np.zeros(len(length), np.bool_)} | {name: gathered(name) for name in _PLAIN}
        for name in _NUMBERS:
            rows[name] = np.concatenate([batch.column(name).fill_null(NONE).to_numpy() for batch in batches])
        for name in _OBJECTS:
            rows[name] = np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in batches])
        for column in spec.states:
            rows[column.name] = np.concatenate([item_values(batch.column(column.name), column) for batch in batches])
        for column in spec.metric_columns:
            numbers = [batch.column(column.name).fill_null(np.nan).to_numpy() for batch in batches]
            rows[column.name] = np.concatenate(numbers)
        of_steps = {name: Items(np.repeat(gathered(name), length)) for name in _OF_STEPS}
        overlap: dict[str, Items] = {}
        for column in spec.columns:
            (overlap if column.overlap else of_steps)[column.name] = _items(batches, column)
        return cls(rows, of_steps, overlap)

    @classmethod
    def join(cls, parts: Sequence[Chunks]) -> Chunks:
        """Lay chunk rows end to end."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return cls(
            {name: np.concatenate([part.rows[name] for part in parts]) for name in first.rows},
            {name: _join([part.steps[name] for part in parts]) for name in first.steps},
            {name: _join([part.overlap[name] for part in parts]) for name in first.overlap},
        )

    def where(self, mask: NDArray[np.bool_]) -> Chunks:
        """Copy the rows of a mask, shape (R,)."""
        length = self.rows["steps"]
        of_steps = np.repeat(mask, length)
        overlap = np.repeat(mask, length + 1)
        return Chunks(
            {name: values[mask] for name, values in self.rows.items()},
            {name: items.take(np.flatnonzero(of_steps)) for name, items in self.steps.items()},
            {name: items.take(np.flatnonzero(overlap)) for name, items in self.overlap.items()},
        )


def _items(batches: Sequence[pa.RecordBatch], column: Column) -> Items:
    lists = [batch.column(column.name) for batch in batches]
    # A copy, also of a single one: it may be a view of what the next fragment overwrites.
    values = np.concatenate([list_values(array, column) for array in lists])
    return Items(values, lists_valid(lists) if column.nullable else None)


def _join(parts: Sequence[Items]) -> Items:
    values = np.concatenate([part.values for part in parts])
    if all(part.valid is None for part in parts):
        return Items(values)
    valid = [np.ones(len(part.values), np.bool_) if part.valid is None else part.valid for part in parts]
    return Items(values, np.concatenate(valid))
