"""What Arrow writes, kept as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Pieces:
    """A file in memory that keeps the buffers that Arrow writes, and copies none."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[pa.Buffer | bytes] = []
        self.size = 0

    def write(self, data: pa.Buffer | bytes) -> int:
        """Keep a buffer."""
        self.pieces.append(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """How many bytes were written."""
        return self.size

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""
