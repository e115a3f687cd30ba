"""Arrow IPC streams of one batch, and the one look behind them that pyarrow does not offer."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# What a writer that is closed leaves at the end of a stream.
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# Fields of Arrow's flatbuffers (Message.fbs): Message.header is its third, RecordBatch.compression its fourth.
_HEADER, _COMPRESSION = 2, 3


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """Write an Arrow IPC stream: the schema, then this batch."""
    return b"".join((batch.schema.serialize(), batch.serialize(), END_OF_STREAM))


def has_compressed_body(metadata: bytes) -> bool:
    """Tell whether a record batch's buffers are compressed one by one.

    Reading such a batch allocates whatever sizes its sender wrote into it, past any cap on the message, so it must
    be known before. Raises `struct.error` where `metadata` is no flatbuffer.
    """
    (message,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, message, _HEADER)
    if header is None:
        raise struct.error("a message without a header")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION) is not None


def _field(metadata: bytes, table: int, index: int) -> int | None:
    """Find a field of a flatbuffer's table: its position, or None where it is absent."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error("a table outside the buffer")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * index
    if slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + slot)
    return table + offset if offset else None
