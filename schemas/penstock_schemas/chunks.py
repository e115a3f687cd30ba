"""Chunk rows: how an episode ends, how its actions were chosen, and the rules that a batch of rows obeys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.columns import list_offsets, list_values
from penstock_schemas.errors import RejectedError
from penstock_schemas.sizes import row_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.stream import StreamSpec

# An env index addresses an array of the consumer's; this bounds what a hostile one can make it allocate.
MAX_ENVS = 1 << 20


class Ends(IntFlag):
    """How a chunk ends its episode; `OPEN` where the episode goes on."""

    OPEN = 0
    TERMINATED = 1
    TRUNCATED = 2
    ABORTED = 4
    CUT = 8


# Which values of the byte are a way to end: terminated and truncated may hold together, the others stand alone.
_ENDS = np.isin(np.arange(256), (0, 1, 2, 3, 4, 8))
_PLACES = ("env", "episode", "chunk", "first_step", "ends")


class Exploration(IntEnum):
    """How actions were chosen."""

    OFF = 0
    ON = 1
    RANDOM = 2
    EPSILON = 3


# To compare an array with a member of an enumeration takes several times as long as with its value.
_OPEN, _ABORTED, _ENDED = Ends.OPEN.value, Ends.ABORTED.value, (Ends.TERMINATED | Ends.TRUNCATED).value
_MOST_EXPLORATION = max(Exploration)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRows:
    """Chunk rows, and the columns that place them as arrays: looked up once, since a look-up takes microseconds."""

    batch: pa.RecordBatch
    env: NDArray[np.int32]
    episode: NDArray[np.int64]
    chunk: NDArray[np.int32]
    first_step: NDArray[np.int64]
    ends: NDArray[np.uint8]
    steps: NDArray[np.int32]
    """Steps of each row."""
    bytes: NDArray[np.int64]
    """As `sizes.row_bytes` counts them."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, spec: StreamSpec) -> ChunkRows:
        """View the rows of a batch that has a message's columns."""
        length = steps(batch)
        placed = {name: fixed(batch, name) for name in _PLACES}
        return cls(batch, **placed, steps=length, bytes=row_bytes(batch, spec, length))

    def __len__(self) -> int:
        return len(self.env)

    def where(self, mask: NDArray[np.bool_]) -> ChunkRows:
        """Keep the rows of `mask`, shape (rows,)."""
        placed = {name: getattr(self, name)[mask] for name in (*_PLACES, "steps", "bytes")}
        return ChunkRows(self.batch.filter(pa.array(mask)), **placed)


def fixed(batch: pa.RecordBatch | pa.Table, name: str) -> NDArray[Any]:
    """View a column of primitives without nulls."""
    column = batch.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return values


def steps(batch: pa.RecordBatch) -> NDArray[np.int32]:
    """Count the steps of each row, shape (rows,)."""
    if not batch.num_rows:
        return np.empty(0, np.int32)  # Arrow lets an empty list column have no offsets at all.
    offsets = list_offsets(batch.column("reward"))
    return offsets[1:] - offsets[:-1]


def check(batch: pa.RecordBatch, spec: StreamSpec) -> ChunkRows:
    """Raise `RejectedError` unless the rows keep every rule; `batch` has the stream's exact schema.

    The rules: no value is missing that must be there, lists lie end to end, a row holds L ≥ 1 steps and
    L + 1 observations (L = 0 only to abort an episode whose steps came before), observations and actions are of their
    spaces, a first chunk begins at step 0 and alone carries seed, options and what it continues (an earlier episode),
    an abort has a reason, only an episode that its env ended has metrics, and rows come by env in the order in which
    they happened, without a hole.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RejectedError("invalid", f"Arrow finds it damaged: {error}") from error
    if not batch.num_rows:
        return ChunkRows.of(batch, spec)
    _check_nulls(batch, spec)
    rows = ChunkRows.of(batch, spec)
    _check_lists(rows, spec)
    _check_ranges(rows)
    _check_rows(rows)
    _check_metrics(rows, spec)
    _check_order(rows)
    return rows


def _check_nulls(batch: pa.RecordBatch, spec: StreamSpec) -> None:
    """Refuse nulls where a row must have a value; those of lists are for `_check_lists`."""
    for at, field in enumerate(spec.row_fields):
        if not field.nullable and batch.column(at).null_count:
            raise RejectedError("rows", f"column {field.name!r} has nulls")
    for state in spec.states:
        if state.shape and batch.column(state.name).flatten().null_count:
            raise RejectedError("rows", f"column {state.name!r} has nulls")


def _check_lists(rows: ChunkRows, spec: StreamSpec) -> None:
    batch, lengths = rows.batch, rows.steps
    if lengths.min() < 1 and ((lengths < 1) & ~((rows.ends == _ABORTED) & (rows.chunk > 0))).any():
        raise RejectedError("rows", f"row {int(lengths.argmin())} has no step, and aborts no episode that had one")
    plain = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=plain[1:])
    overlapping = plain + np.arange(len(plain), dtype=np.int32)
    for at, column in enumerate(spec.columns, len(spec.row_fields)):
        array = batch.column(at)
        offsets, items = list_offsets(array), array.values
        absent = 0 if column.nullable else items.null_count
        # What stands under a null item has no meaning, and other writers than ours leave nulls there.
        inner = 0 if not column.shape else (items.flatten() if items.null_count else items.values).null_count
        if array.null_count or absent or inner:
            raise RejectedError("rows", f"column {column.name!r} has nulls")
        if offsets[0] != 0 or offsets[-1] != len(items):
            raise RejectedError("rows", f"lists of column {column.name!r} do not lie end to end")
        if not (offsets == (overlapping if column.overlap else plain)).all():
            what = "L + 1" if column.overlap else "L"
            raise RejectedError("rows", f"column {column.name!r} does not hold {what} items in every row")
    for space, column in spec.bounded:
        outside = space.outside(list_values(batch.column(column.name), column))
        if outside:
            raise RejectedError("rows", f"column {column.name!r} has {outside}")


def _check_ranges(rows: ChunkRows) -> None:
    version, exploration = (fixed(rows.batch, name) for name in ("policy_version", "exploration"))
    counts = (
        *(("env", rows.env), ("episode", rows.episode), ("chunk", rows.chunk)),
        *(("first_step", rows.first_step), ("policy_version", version)),
    )
    for name, values in counts:
        if (least := values.min()) < 0:
            raise RejectedError("rows", f"column {name!r} has the negative value {least}")
    if (most := rows.env.max()) >= MAX_ENVS:
        raise RejectedError("rows", f"env index {most}: at most {MAX_ENVS} envs a producer")
    if not _ENDS[rows.ends].all():
        raise RejectedError("rows", "column 'ends' has a value that is no way to end")
    if (unknown := exploration.max()) > _MOST_EXPLORATION:
        raise RejectedError("rows", f"column 'exploration' has the unknown value {unknown}")


def _check_rows(rows: ChunkRows) -> None:
    first = rows.chunk == 0
    if not (first == (rows.first_step == 0)).all():
        raise RejectedError("rows", "a row is the first chunk and not at step 0, or the other way round")
    if not (_valid(rows, "abort_reason") == (rows.ends == _ABORTED)).all():
        raise RejectedError("rows", "an abort without a reason, or a reason without an abort")
    begun = _valid(rows, "seed") | _valid(rows, "reset_options")
    continues = _valid(rows, "continues")
    if ((begun | continues) & ~first).any():
        raise RejectedError("rows", "a seed, reset options or what it continues on a chunk that is not the first")
    if continues.any():
        if (begun & continues).any():
            raise RejectedError("rows", "a seed or reset options on an episode that continues another")
        part = rows.batch.column("continues").fill_null(0).to_numpy(zero_copy_only=True)[continues]
        if not ((part >= 0) & (part < rows.episode[continues])).all():
            raise RejectedError("rows", "an episode that continues none before it")


def _check_metrics(rows: ChunkRows, spec: StreamSpec) -> None:
    for column in spec.metric_columns:
        if (_valid(rows, column.name) & ((rows.ends & _ENDED) == 0)).any():
            raise RejectedError("rows", f"column {column.name!r} has a value where the env ended no episode")


def _check_order(rows: ChunkRows) -> None:
    env, episode, chunk, first_step = rows.env, rows.episode, rows.chunk, rows.first_step
    same_env = env[1:] == env[:-1]
    went_on = rows.ends[:-1] == _OPEN
    follows = (
        (episode[1:] == episode[:-1])
        & (chunk[1:] == chunk[:-1] + 1)
        & (first_step[1:] == first_step[:-1] + rows.steps[:-1])
    )
    begins = (episode[1:] > episode[:-1]) & (chunk[1:] == 0)
    in_order = np.where(same_env, np.where(went_on, follows, begins), env[1:] > env[:-1])
    if not in_order.all():
        raise RejectedError("rows", f"row {int(in_order.argmin()) + 1} does not follow the row before it")


def _valid(rows: ChunkRows, name: str) -> NDArray[np.bool_]:
    column = rows.batch.column(name)
    if column.null_count in {0, len(column)}:
        return np.full(len(column), column.null_count == 0)
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid
