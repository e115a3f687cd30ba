"""Assembling: chunk rows in, whole episodes out. One sort by episode; no Python an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.rows import Keys, lay
from penstock_consumers.store import segments
from penstock_schemas.chunks import Ends, fixed
from penstock_schemas.columns import item_values, list_column, list_offsets, list_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.judge import Aborted
    from penstock_consumers.rows import Rows, Source
    from penstock_schemas.stream import StreamSpec


_HEADS = ("length", "return", "ends", "continues", "policy_version")


@dataclass(frozen=True, slots=True)
class Episodes:
    """Whole episodes, a row each, in the schema of a segment or some of its columns; `chunks` counts those of each."""

    batch: pa.RecordBatch
    chunks: NDArray[np.int64]

    @property
    def heads(self) -> Episodes:
        """What is told of the same episodes: no steps, and nothing of which one may have any number of bytes."""
        return Episodes(self.batch.select(_HEADS), self.chunks)

    @classmethod
    def joined(cls, parts: Sequence[Episodes]) -> Episodes | None:
        """The episodes of all parts; None where there is no part."""
        if len(parts) < 2:  # noqa: PLR2004  (one needs no joining)
            return parts[0] if parts else None
        batch = pa.concat_batches([part.batch for part in parts])
        return cls(batch, np.concatenate([part.chunks for part in parts]))

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
    spec: StreamSpec, sources: Sequence[Source], ended: NDArray[np.int64], aborted: Sequence[Aborted]
) -> Episodes:
    """Assemble the episodes that `ended` names, ascending, all of whose rows `sources` hold; at least one."""
    keys = Keys(sources)
    order = keys.order(ended)
    uid = keys.uid[order]
    first = np.flatnonzero(np.append(True, uid[1:] != uid[:-1]))
    last = np.append(first[1:], len(uid)) - 1
    # Where chunks overlap, only the last of an episode keeps its last item.
    keeps = np.zeros(len(order), np.bool_)
    keeps[last] = True
    laid = lay(spec, keys, order, keeps, first)
    rows = laid.rows.take(pa.array(order))
    columns = dict(laid.lists)
    columns |= _head(rows, laid.came, order, first) | _ends(rows, laid.came, order, last, uid[last], aborted)
    columns |= _chunk_lists(rows, first) | _states(spec, rows, first) | _metrics(spec, rows, last)
    offsets = list_offsets(columns["reward"])
    columns["length"] = pa.array(np.diff(offsets).astype(np.int64))
    rewards = list_values(columns["reward"], spec.reward_column)
    columns["return"] = pa.array(np.add.reduceat(rewards.astype(np.float64), offsets[:-1]))
    schema = segments.episode_schema(spec)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return Episodes(batch, last + 1 - first)


def _head(
    rows: pa.Table, came: Mapping[str, NDArray[Any]], order: NDArray[np.intp], first: NDArray[np.intp]
) -> dict[str, pa.Array]:
    """What an episode's first row tells of it."""
    names = ("env", "episode", "seed", "reset_options", "continues")
    heads = rows.select(names).take(pa.array(first))
    columns = {name: heads.column(name).combine_chunks() for name in names}
    columns["producer"] = pa.array(came["producer"][order[first]], pa.string())
    columns["incarnation"] = pa.array(came["incarnation"][order[first]])
    columns["opened_offset"] = pa.array(came["offset"][order[first]])
    return columns


def _ends(
    rows: pa.Table,
    came: Mapping[str, NDArray[Any]],
    order: NDArray[np.intp],
    last: NDArray[np.intp],
    uid: NDArray[np.int64],
    aborted: Sequence[Aborted],
) -> dict[str, pa.Array]:
    """Tell how each episode ended: as its last row says, or by the record that aborted it."""
    tails = rows.select(["ends", "abort_reason"]).take(pa.array(last))
    columns = {
        "ends": fixed(tails, "ends"),
        "closed_offset": came["offset"][order[last]],
        "closed_ms": came["timestamp_ms"][order[last]],
    }
    reason = tails.column("abort_reason").combine_chunks()
    if aborted:
        columns["ends"] = columns["ends"].copy()
        reasons = reason.to_numpy(zero_copy_only=False)
        for abort in aborted:
            at = np.searchsorted(uid, abort.uid)
            at = at[np.append(uid, -1)[at] == abort.uid]
            columns["ends"][at] = Ends.ABORTED
            columns["closed_offset"][at] = abort.offset
            columns["closed_ms"][at] = abort.timestamp_ms
            reasons[at] = abort.reason
        reason = pa.array(reasons, pa.string())
    return {"abort_reason": reason, **{name: pa.array(values) for name, values in columns.items()}}


def _chunk_lists(rows: pa.Table, first: NDArray[np.intp]) -> dict[str, pa.Array]:
    offsets = pa.array(np.append(first, rows.num_rows).astype(np.int32))
    sources = {"chunk_first_step": "first_step"} | {
        name: name for name in ("policy_version", "policy_digest", "exploration")
    }
    types = {field.name: field.type for field in segments.EPISODE_FIELDS}
    return {
        name: pa.ListArray.from_arrays(offsets, rows.column(source).combine_chunks(), type=types[name])
        for name, source in sources.items()
    }


def _states(spec: StreamSpec, rows: pa.Table, first: NDArray[np.intp]) -> dict[str, pa.Array]:
    """The recurrent state with which each chunk began."""
    offsets = np.append(first, rows.num_rows).astype(np.int32)
    return {
        state.name: list_column(state, item_values(rows.column(state.name).combine_chunks(), state), offsets)
        for state in spec.states
    }


def _metrics(spec: StreamSpec, rows: pa.Table, last: NDArray[np.intp]) -> dict[str, pa.Array]:
    """What was measured of each episode: the row with which its env ended it says so, and no other row can."""
    tails = pa.array(last)
    return {column.name: rows.column(column.name).combine_chunks().take(tails) for column in spec.metric_columns}
