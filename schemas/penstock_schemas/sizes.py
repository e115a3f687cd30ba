"""What chunk rows hold, in bytes: told by their values alone, however a message lays or packs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock_schemas.columns import list_offsets
from penstock_schemas.stream import ROW_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.stream import StreamSpec

_ROW_STRINGS = tuple(field.name for field in ROW_FIELDS if pa.types.is_string(field.type))


def row_bytes(batch: pa.RecordBatch, spec: StreamSpec, steps: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count the bytes of each row's values, shape (rows,), of which `steps` are the steps.

    A number counts its width, whether it is there or not; a string four for its place, and its bytes in UTF-8.
    """
    if not len(steps):
        return np.empty(0, np.int64)  # Arrow lets an empty list column have no offsets at all.
    sizes: NDArray[np.int64] = steps * np.int64(spec.fixed_step_bytes)
    sizes += spec.fixed_row_bytes
    for name in _ROW_STRINGS:
        strings = batch.column(name)
        if strings.null_count < len(strings):
            sizes += _lengths(strings)
    for column in spec.text_columns:
        strings = batch.column(column.name)
        ends = np.append(0, np.cumsum(_lengths(strings.values), dtype=np.int64))
        sizes += np.diff(ends[list_offsets(strings)])
    return sizes


def _lengths(strings: pa.StringArray) -> NDArray[Any]:
    lengths: NDArray[Any] = pc.binary_length(strings).fill_null(0).to_numpy()
    return lengths
