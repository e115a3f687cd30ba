"""What passes between a worker and its parent over their socket: JSON, and raw bytes behind it where there are any."""

from __future__ import annotations

import json
import select
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs.lanes.lane import Begin, Order, Result

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Block

_HEADER = struct.Struct("<IQ")
_READ_BYTES = 1 << 16


class Channel:
    """Messages over a stream socket.

    Args:
        connection: blocking, where `receive` is to wait.
        send_timeout: seconds after which a send to one who does not read raises `TimeoutError`.
    """

    def __init__(self, connection: socket.socket, send_timeout: float | None = None) -> None:
        self._socket = connection
        self._send_timeout = send_timeout
        self._received = bytearray()

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], raw: bytes = b"") -> None:
        """Send a message; raises `OSError` where the other side is gone."""
        text = json.dumps(message).encode()
        rest = memoryview(_HEADER.pack(len(text), len(raw)) + text + raw)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._await(select.POLLOUT, self._send_timeout, "a message was not read")

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Take the next message; None where it is not all there yet and the socket does not block.

        Raises `EOFError` where the other side is gone.
        """
        while (message := self._next()) is None:
            try:
                read = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError from error
            if not read:
                raise EOFError
            self._received += read
        return message

    def await_message(self, timeout: float) -> tuple[dict[str, Any], bytes]:
        """Wait for the next message on a socket that does not block; raises `TimeoutError` or `EOFError`."""
        while (message := self.receive()) is None:
            self._await(select.POLLIN, timeout, "nothing was sent")
        return message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        received = self._received
        if len(received) < _HEADER.size:
            return None
        text, raw = _HEADER.unpack_from(received)
        end = _HEADER.size + text + raw
        if len(received) < end:
            return None
        message = json.loads(received[_HEADER.size : _HEADER.size + text])
        behind = bytes(received[_HEADER.size + text : end])
        del received[:end]
        return message, behind

    def _await(self, event: int, timeout: float | None, what: str) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError(f"{what} within {timeout} s")


def order_to_json(order: Order, block: Block) -> dict[str, Any]:
    """Describe an order; strings among the actions travel in it, all else lies in the block."""
    return {
        "step": order.step.tolist(),
        "begin": [[place, begin.options, begin.rebuild, dict(begin.changed)] for place, begin in order.begin.items()],
        "texts": [leaf[order.step].tolist() for leaf in block.action if leaf.dtype.kind == "O"],
    }


def order_from_json(described: Mapping[str, Any], block: Block) -> Order:
    """Read an order, and put its strings into the block."""
    step = np.array(described["step"], np.int32)
    texts = iter(described["texts"])
    for leaf in block.action:
        if leaf.dtype.kind == "O":
            leaf[step] = next(texts)
    begin = {place: Begin(options, rebuild, changed) for place, options, rebuild, changed in described["begin"]}
    return Order(step, begin)


def result_to_json(result: Result, block: Block) -> dict[str, Any]:
    """Describe a result; strings among observations and infos travel in it, all else lies in the block."""
    return {
        "steps": result.steps,
        "resets": result.resets,
        "faults": result.faults,
        "unstorable": dict(result.unstorable),
        "texts": [
            [text[:count].tolist() for text in texts]
            for texts, count in ((block.steps.texts, result.steps), (block.resets.texts, result.resets))
        ],
    }


def result_from_json(described: Mapping[str, Any], block: Block) -> Result:
    """Read a result, and put its strings into the block."""
    for texts, values in zip((block.steps.texts, block.resets.texts), described["texts"], strict=True):
        _fill(texts, values)
    faults = tuple((place, kind, detail) for place, kind, detail in described["faults"])
    return Result(described["steps"], described["resets"], faults, described["unstorable"])


def _fill(texts: Sequence[NDArray[Any]], values: Sequence[Sequence[Any]]) -> None:
    for text, given in zip(texts, values, strict=True):
        text[: len(given)] = given
