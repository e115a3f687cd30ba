"""Chunk rows: how an episode ends, how its actions were chosen, and the rules that a batch of rows obeys."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.errors import RejectedError
from penstock_schemas.spaces import to_arrow, to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.stream import Column, StreamSpec

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


class Exploration(IntEnum):
    """How actions were chosen."""

    OFF = 0
    ON = 1
    RANDOM = 2
    EPSILON = 3


def list_column(column: Column, values: NDArray[Any], offsets: NDArray[np.int32]) -> pa.ListArray:
    """Make a list column of `values`, shape (n, *column.shape), row i being `offsets[i]:offsets[i + 1]`."""
    items = to_arrow(values, column.shape, column.dtype)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=column.field.type)


def list_values(array: pa.ListArray, column: Column) -> NDArray[Any]:
    """View the items of a list column whose lists lie end to end, shape (n, *column.shape)."""
    return to_numpy(array.flatten(), column.shape)


def list_offsets(array: pa.ListArray) -> NDArray[np.int32]:
    """View the offsets of a list column, shape (rows + 1,)."""
    offsets: NDArray[np.int32] = array.offsets.to_numpy(zero_copy_only=True)
    return offsets


def fixed(batch: pa.RecordBatch | pa.Table, name: str) -> NDArray[Any]:
    """View a column of primitives without nulls."""
    column = batch.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return values


def steps(batch: pa.RecordBatch) -> NDArray[np.int32]:
    """Count the steps of each row, shape (rows,)."""
    return np.diff(list_offsets(batch.column("reward")))


def check(batch: pa.RecordBatch, spec: StreamSpec) -> None:
    """Raise `RejectedError` unless the rows keep every rule; `batch` has the stream's exact schema.

    The rules: no value is missing that must be there, lists lie end to end, a row holds L ≥ 1 steps and
    L + 1 observations, actions are of their space, a first chunk begins at step 0 and alone carries seed and
    options, an abort has a reason, and rows come by env in the order in which they happened, without a hole.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RejectedError("invalid", f"Arrow finds it damaged: {error}") from error
    if not batch.num_rows:
        return  # Arrow lets an empty list column have no offsets at all, so there is nothing to look at.
    _check_lists(batch, spec)
    _check_rows(batch)
    _check_order(batch)


def _check_lists(batch: pa.RecordBatch, spec: StreamSpec) -> None:
    lengths = steps(batch)
    if lengths.min() < 1:
        raise RejectedError("rows", f"row {int(lengths.argmin())} has no step")
    for column in spec.columns:
        array = batch.column(column.name)
        offsets = list_offsets(array)
        if array.null_count or array.values.null_count or (column.shape and array.values.values.null_count):
            raise RejectedError("rows", f"column {column.name!r} has nulls")
        if offsets[0] != 0 or offsets[-1] != len(array.values):
            raise RejectedError("rows", f"lists of column {column.name!r} do not lie end to end")
        if not np.array_equal(np.diff(offsets), lengths + column.overlap):
            what = "L + 1" if column.overlap else "L"
            raise RejectedError("rows", f"column {column.name!r} does not hold {what} items in every row")
    outside = spec.action.outside(list_values(batch.column("action"), spec.columns[1]))
    if outside:
        raise RejectedError("rows", f"column 'action' has {outside}")


def _check_rows(batch: pa.RecordBatch) -> None:
    _check_ranges(batch)
    first_step, chunk, ends = (fixed(batch, name) for name in ("first_step", "chunk", "ends"))
    if not np.array_equal(chunk == 0, first_step == 0):
        raise RejectedError("rows", "a row is the first chunk and not at step 0, or the other way round")
    if not np.array_equal(_valid(batch, "abort_reason"), (ends & Ends.ABORTED) != 0):
        raise RejectedError("rows", "an abort without a reason, or a reason without an abort")
    if ((_valid(batch, "seed") | _valid(batch, "reset_options")) & (chunk != 0)).any():
        raise RejectedError("rows", "a seed or reset options on a chunk that is not an episode's first")


def _check_ranges(batch: pa.RecordBatch) -> None:
    for name in batch.schema.names:
        if not batch.schema.field(name).nullable and batch.column(name).null_count:
            raise RejectedError("rows", f"column {name!r} has nulls")
    for name in ("env", "episode", "chunk", "first_step", "policy_version"):
        values = fixed(batch, name)
        if values.min() < 0:
            raise RejectedError("rows", f"column {name!r} has the negative value {values.min()}")
    env = fixed(batch, "env")
    if env.max() >= MAX_ENVS:
        raise RejectedError("rows", f"env index {env.max()}: at most {MAX_ENVS} envs a producer")
    if not _ENDS[fixed(batch, "ends")].all():
        raise RejectedError("rows", "column 'ends' has a value that is no way to end")
    exploration = fixed(batch, "exploration")
    if exploration.max() > max(Exploration):
        raise RejectedError("rows", f"column 'exploration' has the unknown value {exploration.max()}")


def _check_order(batch: pa.RecordBatch) -> None:
    env, episode, chunk, first_step, ends = (
        fixed(batch, name) for name in ("env", "episode", "chunk", "first_step", "ends")
    )
    same_env = env[1:] == env[:-1]
    went_on = ends[:-1] == Ends.OPEN
    follows = (
        (episode[1:] == episode[:-1])
        & (chunk[1:] == chunk[:-1] + 1)
        & (first_step[1:] == first_step[:-1] + steps(batch)[:-1])
    )
    begins = (episode[1:] > episode[:-1]) & (chunk[1:] == 0)
    in_order = np.where(same_env, np.where(went_on, follows, begins), env[1:] > env[:-1])
    if not in_order.all():
        raise RejectedError("rows", f"row {int(in_order.argmin()) + 1} does not follow the row before it")


def _valid(batch: pa.RecordBatch, name: str) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    return valid
