"""Assembling: chunk rows in, whole episodes out. A sort by episode and one take a column; no Python an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.store import segments
from penstock_schemas.chunks import Ends, fixed, list_column, list_offsets, list_values, steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_consumers.judge import Aborted, Accepted
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class Rows:
    """Chunk rows with their provenance, each under the uid of its episode, in log order."""

    batch: pa.RecordBatch
    uid: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        """Keep the rows of `mask`."""
        return self if mask.all() else Rows(self.batch.filter(pa.array(mask)), self.uid[mask])


@dataclass(frozen=True, slots=True)
class Episodes:
    """Whole episodes, a row each, in the schema of a segment."""

    batch: pa.RecordBatch
    chunks: NDArray[np.int64]

    @property
    def length(self) -> NDArray[np.int64]:
        """Steps of each."""
        return fixed(self.batch, "length")

    @property
    def aborted(self) -> NDArray[np.bool_]:
        """Which were aborted."""
        aborted: NDArray[np.bool_] = (fixed(self.batch, "ends") & Ends.ABORTED) != 0
        return aborted

    @property
    def policy_version(self) -> NDArray[np.int64]:
        """The policy version that took the last step of each."""
        versions = self.batch.column("policy_version")
        newest: NDArray[np.int64] = versions.values.to_numpy()[list_offsets(versions)[1:] - 1]
        return newest


def rows_of(accepted: Accepted, spec: StreamSpec) -> Rows:
    """Put their provenance beside accepted rows."""
    count = accepted.batch.num_rows
    provenance = [
        pa.repeat(pa.scalar(accepted.producer), count),
        *(pa.array(np.full(count, value)) for value in (accepted.incarnation, accepted.offset, accepted.timestamp_ms)),
    ]
    columns = [*accepted.batch.columns, *provenance]
    return Rows(pa.RecordBatch.from_arrays(columns, schema=segments.open_schema(spec)), accepted.uid)


def ended_uids(pieces: Sequence[Rows], aborted: Sequence[Aborted]) -> NDArray[np.int64]:
    """Name the episodes that `pieces` or an abort ended, ascending."""
    ended = [piece.uid[fixed(piece.batch, "ends") != Ends.OPEN] for piece in pieces]
    uids = [*ended, *(abort.uid for abort in aborted)]
    return np.sort(np.concatenate(uids)) if uids else np.empty(0, np.int64)


def assemble(
    spec: StreamSpec, pieces: Sequence[Rows], ended: NDArray[np.int64], aborted: Sequence[Aborted]
) -> Episodes:
    """Assemble the episodes that `ended` names, all of whose rows `pieces` hold, in log order; at least one."""
    uid = np.concatenate([piece.uid for piece in pieces])
    order = np.flatnonzero(np.isin(uid, ended))
    order = order[np.argsort(uid[order], kind="stable")]
    uid = uid[order]
    first = np.flatnonzero(np.append(True, uid[1:] != uid[:-1]))
    last = np.append(first[1:], len(uid)) - 1
    rows = _row_columns([piece.batch for piece in pieces], spec).take(pa.array(order))
    columns = _head(rows, first) | _ends(rows, uid, last, aborted) | _chunk_lists(rows, first)
    columns |= _value_lists(spec, [piece.batch for piece in pieces], order, first, last)
    offsets = list_offsets(columns["reward"])
    columns["length"] = pa.array(np.diff(offsets).astype(np.int64))
    rewards = list_values(columns["reward"], _reward(spec))
    columns["return"] = pa.array(np.add.reduceat(rewards.astype(np.float64), offsets[:-1]))
    schema = segments.episode_schema(spec)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return Episodes(batch, last + 1 - first)


def _row_columns(batches: Sequence[pa.RecordBatch], spec: StreamSpec) -> pa.Table:
    lists = {column.name for column in spec.columns}
    names = [name for name in segments.open_schema(spec).names if name not in lists]
    return pa.Table.from_batches([batch.select(names) for batch in batches]).combine_chunks()


def _head(rows: pa.Table, first: NDArray[Any]) -> dict[str, pa.Array]:
    heads = rows.take(pa.array(first))
    names = ("producer", "incarnation", "env", "episode", "seed", "reset_options")
    columns = {name: heads.column(name).combine_chunks() for name in names}
    columns["opened_offset"] = heads.column("offset").combine_chunks()
    return columns


def _ends(
    rows: pa.Table, uid: NDArray[np.int64], last: NDArray[Any], aborted: Sequence[Aborted]
) -> dict[str, pa.Array]:
    """Tell how each episode ended: as its last row says, or by the record that aborted it."""
    tails = rows.take(pa.array(last))
    columns = {
        "ends": fixed(tails, "ends"),
        "closed_offset": fixed(tails, "offset"),
        "closed_ms": fixed(tails, "timestamp_ms"),
    }
    reason = tails.column("abort_reason").combine_chunks()
    if aborted:
        columns = {name: values.copy() for name, values in columns.items()}
        reasons = reason.to_numpy(zero_copy_only=False)
        for abort in aborted:
            at = np.searchsorted(uid[last], np.sort(abort.uid))
            columns["ends"][at] = Ends.ABORTED
            columns["closed_offset"][at] = abort.offset
            columns["closed_ms"][at] = abort.timestamp_ms
            reasons[at] = abort.reason
        reason = pa.array(reasons, pa.string())
    return {"abort_reason": reason, **{name: pa.array(values) for name, values in columns.items()}}


def _chunk_lists(rows: pa.Table, first: NDArray[Any]) -> dict[str, pa.Array]:
    offsets = pa.array(np.append(first, rows.num_rows).astype(np.int32))
    sources = {"chunk_first_step": "first_step"} | {
        name: name for name in ("policy_version", "policy_digest", "exploration")
    }
    types = {field.name: field.type for field in segments.EPISODE_FIELDS}
    return {
        name: pa.ListArray.from_arrays(offsets, rows.column(source).combine_chunks(), type=types[name])
        for name, source in sources.items()
    }


def _value_lists(
    spec: StreamSpec, batches: Sequence[pa.RecordBatch], order: NDArray[Any], first: NDArray[Any], last: NDArray[Any]
) -> dict[str, pa.Array]:
    """Gather each list column; where chunks overlap, only the last of an episode keeps its last item."""
    lengths = np.concatenate([steps(batch) for batch in batches])[order].astype(np.int64)
    with_last = lengths.copy()
    with_last[last] += 1
    plain = _Gather(batches, "reward", order, lengths, first)
    overlapping = _Gather(batches, "observation", order, with_last, first)
    return {
        column.name: list_column(column, *(overlapping if column.overlap else plain)(column, batches))
        for column in spec.columns
    }


class _Gather:
    """Where the items of every episode lie in the concatenated values of a list column, and of all like it."""

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        like: str,
        order: NDArray[Any],
        lengths: NDArray[np.int64],
        first: NDArray[Any],
    ) -> None:
        items = np.concatenate([np.diff(list_offsets(batch.column(like))) for batch in batches])
        starts = (np.cumsum(items) - items)[order]
        ends = np.cumsum(lengths)
        self._index = np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])
        self._offsets = np.append(0, np.add.reduceat(lengths, first).cumsum()).astype(np.int32)

    def __call__(self, column: Any, batches: Sequence[pa.RecordBatch]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        values = np.concatenate([list_values(batch.column(column.name), column) for batch in batches])
        return np.take(values, self._index, axis=0), self._offsets


def _reward(spec: StreamSpec) -> Any:
    return next(column for column in spec.columns if column.name == "reward")
