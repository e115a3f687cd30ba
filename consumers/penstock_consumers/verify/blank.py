"""Rows of episodes that are open where judging the log again begins, and that the store may have no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.store import segments
from penstock_consumers.verify.keyed import Keyed
from penstock_consumers.verify.opened import EPISODE
from penstock_schemas.chunks import fixed
from penstock_schemas.columns import item_column, list_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

# Where a row came from of which nothing is known but its episode's name and numbers.
BLANK = -1


def filled_up(spec: StreamSpec, opened: pa.RecordBatch, stored: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Give the rows of the episodes that are `opened`: those `stored` where all of an episode's are, else blank ones.

    Blank rows are as many, of as many steps; so the log is judged, and its rows are counted, as they were the first
    time, whatever was collected since.
    """
    named = Keyed([opened], EPISODE)
    found = [named.find(batch) for batch in stored]
    rows = np.bincount(np.concatenate([np.empty(0, np.int64), *(at[at >= 0] for at in found)]), minlength=len(opened))
    whole = rows == fixed(opened, "chunk")
    kept = [batch.filter(pa.array(np.isin(at, np.flatnonzero(whole)))) for batch, at in zip(stored, found, strict=True)]
    return [batch for batch in (*kept, _blank(spec, opened.filter(pa.array(~whole)))) if batch.num_rows]


def _blank(spec: StreamSpec, opened: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of open episodes, all of whose steps lie in the first."""
    chunks, steps, size = (fixed(opened, name) for name in ("chunk", "step", "bytes"))
    episode = np.repeat(np.arange(len(chunks)), chunks)
    chunk = np.arange(len(episode)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    lengths = np.where(chunk == 0, steps[episode], 0)
    known = {name: opened.column(name).take(pa.array(episode)) for name in ("producer", *EPISODE)}
    numbers = {
        "chunk": chunk,
        "first_step": steps[episode] - lengths,
        "bytes": np.where(chunk == 0, size[episode], 0),
        "offset": np.full(len(episode), BLANK),
    }
    known |= {name: pa.array(values) for name, values in numbers.items()}
    known |= {column.name: _lists(column, lengths) for column in spec.columns}
    known |= {state.name: item_column(state, _zeros(state, len(episode))) for state in spec.states}
    schema = segments.open_schema(spec)
    columns = [known[field.name] if field.name in known else _absent(field, len(episode)) for field in schema]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _lists(column: Column, lengths: NDArray[np.int64]) -> pa.ListArray:
    offsets = np.append(0, np.cumsum(lengths + column.overlap)).astype(np.int32)
    return list_column(column, _zeros(column, int(offsets[-1])), offsets)


def _zeros(column: Column, count: int) -> NDArray[Any]:
    return np.full(count, "", object) if column.is_text else np.zeros((count, *column.shape), column.dtype)


def _absent(field: pa.Field, count: int) -> pa.Array:
    if field.nullable:
        return pa.nulls(count, field.type)
    if pa.types.is_fixed_size_binary(field.type):
        return pa.array([bytes(field.type.byte_width)] * count, field.type)
    return pa.array(np.zeros(count, np.int64))
