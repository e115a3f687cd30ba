"""Assembling: chunk rows in, whole episodes out. A sort by episode and one take a column; no Python an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.store import segments
from penstock_schemas.chunks import ChunkRows, Ends, fixed
from penstock_schemas.columns import item_values, list_column, list_offsets, list_values, lists_valid, ranges
from penstock_schemas.stream import ROW_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.judge import Aborted, Accepted
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class Rows:
    """Chunk rows in the order of the log, each under the uid of its episode.

    `provenance` holds, by the name of the open segment's column, where each row came from.
    """

    rows: ChunkRows
    uid: NDArray[np.int64]
    provenance: Mapping[str, NDArray[Any]]

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows in the columns of a message."""
        return self.rows.batch

    @classmethod
    def of(cls, accepted: Accepted) -> Rows:
        """Rows that the judge accepted; what is the same for all of a message takes no memory."""
        shape = len(accepted.uid)
        values = {
            "producer": np.array(accepted.producer, object),
            "incarnation": np.array(accepted.incarnation),
            "offset": np.array(accepted.offset),
            "timestamp_ms": np.array(accepted.timestamp_ms),
        }
        provenance = {name: np.broadcast_to(value, shape) for name, value in values.items()}
        return cls(accepted.rows, accepted.uid, provenance)

    @classmethod
    def stored(cls, batch: pa.RecordBatch, uid: NDArray[np.int64], spec: StreamSpec) -> Rows:
        """Rows of an open segment."""
        names = [field.name for field in segments.PROVENANCE_FIELDS]
        provenance = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
        return cls(ChunkRows.of(batch.select(spec.schema.names)), uid, provenance)

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        """Keep the rows of `mask`."""
        if mask.all():
            return self
        provenance = {name: values[mask] for name, values in self.provenance.items()}
        return Rows(self.rows.where(mask), self.uid[mask], provenance)

    def to_open(self, spec: StreamSpec) -> pa.RecordBatch:
        """The rows in the schema of an open segment."""
        types = {field.name: field.type for field in segments.PROVENANCE_FIELDS}
        provenance = [pa.array(self.provenance[name], kind) for name, kind in types.items()]
        columns = [*self.batch.columns, *provenance]
        return pa.RecordBatch.from_arrays(columns, schema=segments.open_schema(spec))


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
    def whole(self) -> NDArray[np.bool_]:
        """Which ended by themselves and are no part of a longer one: those whose returns are the env's."""
        ended = (fixed(self.batch, "ends") & (Ends.TERMINATED | Ends.TRUNCATED)) != 0
        parts: NDArray[np.bool_] = self.batch.column("continues").is_valid().to_numpy(zero_copy_only=False)
        whole: NDArray[np.bool_] = ended & ~parts
        return whole

    @property
    def policy_version(self) -> NDArray[np.int64]:
        """The policy version that took the last step of each."""
        versions = self.batch.column("policy_version")
        newest: NDArray[np.int64] = versions.values.to_numpy()[list_offsets(versions)[1:] - 1]
        return newest


def ended_uids(pieces: Sequence[Rows], aborted: Sequence[Aborted]) -> NDArray[np.int64]:
    """Name the episodes that `pieces` or an abort ended, ascending."""
    ended = [piece.uid[piece.rows.ends != Ends.OPEN.value] for piece in pieces]
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
    rows = _row_columns(pieces, spec).take(pa.array(order))
    came = _Provenance(pieces, order)
    columns = _head(rows, came, first) | _ends(rows, came, uid, last, aborted) | _chunk_lists(rows, first)
    columns |= _metrics(spec, rows, last) | _states(spec, pieces, order, first)
    columns |= _value_lists(spec, pieces, order, first, last)
    offsets = list_offsets(columns["reward"])
    columns["length"] = pa.array(np.diff(offsets).astype(np.int64))
    rewards = list_values(columns["reward"], spec.reward_column)
    columns["return"] = pa.array(np.add.reduceat(rewards.astype(np.float64), offsets[:-1]))
    schema = segments.episode_schema(spec)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return Episodes(batch, last + 1 - first)


def _row_columns(pieces: Sequence[Rows], spec: StreamSpec) -> pa.Table:
    names = [field.name for field in (*ROW_FIELDS, *spec.metric_columns)]
    return pa.Table.from_batches([piece.batch.select(names) for piece in pieces]).combine_chunks()


class _Provenance:
    """Where rows came from, in the order in which they are assembled; read at a few rows only."""

    def __init__(self, pieces: Sequence[Rows], order: NDArray[Any]) -> None:
        self._pieces = pieces
        self._order = order

    def at(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        values = np.concatenate([piece.provenance[name] for piece in self._pieces])
        taken: NDArray[Any] = values[self._order[rows]]
        return taken


def _head(rows: pa.Table, came: _Provenance, first: NDArray[Any]) -> dict[str, pa.Array]:
    """What an episode's first row tells of it."""
    names = ("env", "episode", "seed", "reset_options", "continues")
    heads = rows.select(names).take(pa.array(first))
    columns = {name: heads.column(name).combine_chunks() for name in names}
    columns["producer"] = pa.array(came.at("producer", first), pa.string())
    columns["incarnation"] = pa.array(came.at("incarnation", first))
    columns["opened_offset"] = pa.array(came.at("offset", first))
    return columns


def _ends(
    rows: pa.Table, came: _Provenance, uid: NDArray[np.int64], last: NDArray[Any], aborted: Sequence[Aborted]
) -> dict[str, pa.Array]:
    """Tell how each episode ended: as its last row says, or by the record that aborted it."""
    tails = rows.select(["ends", "abort_reason"]).take(pa.array(last))
    columns = {
        "ends": fixed(tails, "ends"),
        "closed_offset": came.at("offset", last),
        "closed_ms": came.at("timestamp_ms", last),
    }
    reason = tails.column("abort_reason").combine_chunks()
    if aborted:
        columns["ends"] = columns["ends"].copy()
        reasons = reason.to_numpy(zero_copy_only=False)
        for abort in aborted:
            at = np.searchsorted(uid[last], abort.uid)
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


def _metrics(spec: StreamSpec, rows: pa.Table, last: NDArray[Any]) -> dict[str, pa.Array]:
    """What was measured of each episode: the row with which its env ended it says so, and no other row can."""
    tails = pa.array(last)
    return {column.name: rows.column(column.name).combine_chunks().take(tails) for column in spec.metric_columns}


def _states(spec: StreamSpec, pieces: Sequence[Rows], order: NDArray[Any], first: NDArray[Any]) -> dict[str, pa.Array]:
    """The recurrent state with which each chunk began."""
    offsets = np.append(first, len(order)).astype(np.int32)
    columns = {}
    for state in spec.states:
        values = np.concatenate([item_values(piece.batch.column(state.name), state) for piece in pieces])
        columns[state.name] = list_column(state, np.take(values, order, axis=0), offsets)
    return columns


def _value_lists(
    spec: StreamSpec, pieces: Sequence[Rows], order: NDArray[Any], first: NDArray[Any], last: NDArray[Any]
) -> dict[str, pa.Array]:
    """Gather each list column; where chunks overlap, only the last of an episode keeps its last item."""
    items = np.concatenate([piece.rows.steps for piece in pieces]).astype(np.int64)
    lengths = items[order]
    with_last = lengths.copy()
    with_last[last] += 1
    plain = _Gather(items, order, lengths, first)
    overlapping = _Gather(items + 1, order, with_last, first)
    return {
        column.name: (overlapping if column.overlap else plain)(
            column, [piece.batch.column(column.name) for piece in pieces]
        )
        for column in spec.columns
    }


class _Gather:
    """Where the items of every episode lie in the items of all rows, laid end to end, of a column and of all like it.

    `items` are counted by row, in the order of the pieces; `lengths` are what is kept of them, in that of the episodes.
    """

    def __init__(
        self, items: NDArray[np.int64], order: NDArray[Any], lengths: NDArray[np.int64], first: NDArray[Any]
    ) -> None:
        self._index = ranges((np.cumsum(items) - items)[order], lengths)
        self._offsets = np.append(0, np.add.reduceat(lengths, first).cumsum()).astype(np.int32)

    def __call__(self, column: Column, arrays: Sequence[pa.ListArray]) -> pa.ListArray:
        """The column of the episodes, from its arrays by piece."""
        if column.is_text:
            # Arrow moves strings without making an object of each.
            texts = pa.concat_arrays([array.flatten() for array in arrays]).take(pa.array(self._index))
            return pa.ListArray.from_arrays(pa.array(self._offsets), texts, type=column.field.type)
        values = np.concatenate([list_values(array, column) for array in arrays])
        valid = lists_valid(arrays) if column.nullable else None
        taken = np.take(values, self._index, axis=0)
        return list_column(column, taken, self._offsets, None if valid is None else valid[self._index])
