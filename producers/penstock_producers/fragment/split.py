"""How much fits into a message, and parting chunk rows into messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_schemas.errors import TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_schemas.stream import StreamSpec

# What a chunk's abort reason and its reset options take of a message beside the chunk's steps, a half each. Longer
# options leave room for fewer steps.
TEXT_BYTES = 2048


def longest_chunk(spec: StreamSpec, message_bytes: int, options_bytes: int = 0) -> int:
    """How many steps of one chunk fit into `message_bytes` beside its texts, reset options of so many bytes among them.

    Raises `TooLargeError` where none does.
    """
    one = spec.row_bytes + spec.step_bytes
    room = message_bytes - TEXT_BYTES - max(0, options_bytes - TEXT_BYTES // 2)
    if one > room:
        raise TooLargeError(
            f"one step of the stream {spec.stream!r} takes {one} bytes, a message holds {max(room, 0)}"
            f"{f' beside reset options of {options_bytes}' if options_bytes else ''}: "
            "raise --max-message-bytes, and the topic's max.message.bytes with it"
        )
    return 1 + (room - one) // spec.step_bytes


def split(spec: StreamSpec, sizes: NDArray[np.int64], message_bytes: int) -> Iterator[slice]:
    """Part rows of these sizes, in bytes, into as few messages as they fit into in their order.

    Raises `TooLargeError` where a single row takes more.
    """
    ends = np.cumsum(sizes)
    start, taken = 0, 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, taken + message_bytes, side="right"))
        if stop == start:
            raise TooLargeError(
                f"a chunk of the stream {spec.stream!r} takes {sizes[start]} bytes, a message holds {message_bytes}: "
                "give shorter reset options, or raise --max-message-bytes"
            )
        yield slice(start, stop)
        start, taken = stop, int(ends[stop - 1])
