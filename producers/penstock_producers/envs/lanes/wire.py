"""What passes between a worker and its parent over their socket: JSON, and raw bytes behind it where there are any.

Nearly all orders are to step, and nearly all results have rows only: those are a few raw bytes without JSON.
"""

from __future__ import annotations

import json
import select
import struct
from array import array
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock_producers.envs.infos import LeftOut
from penstock_producers.envs.lanes.lane import Begin, Order, Result

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Block

    # What JSON says, nothing where it is empty, and raw bytes.
    Message: TypeAlias = tuple[dict[str, Any], bytes]

_HEADER = struct.Struct("<IQ")
_COUNTS = struct.Struct("<II")
_PACKET_BYTES = 1 << 16


class Channel:
    """Messages over a socket of packets: a message is one, or so many as it needs.

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
        text = json.dumps(message).encode() if message else b""
        rest = memoryview(_HEADER.pack(len(text), len(raw)) + text + raw)
        while rest:
            try:
                rest = rest[self._socket.send(rest[:_PACKET_BYTES]) :]
            except BlockingIOError:
                self._await(select.POLLOUT, self._send_timeout, "a message was not read")

    def receive(self) -> Message | None:
        """Take the next message; None where it is not all there yet and the socket does not block.

        Raises `EOFError` where the other side is gone.
        """
        received = self._received
        while True:
            try:
                packet = self._socket.recv(_PACKET_BYTES)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError from error
            if not packet:
                raise EOFError
            received += packet
            text, raw = _HEADER.unpack_from(received)
            behind = _HEADER.size + text
            if len(received) == behind + raw:
                message = json.loads(received[_HEADER.size : behind]) if text else {}, bytes(received[behind:])
                received.clear()
                return message

    def await_message(self, timeout: float) -> Message:
        """Wait for the next message on a socket that does not block; raises `TimeoutError` or `EOFError`."""
        while (message := self.receive()) is None:
            self._await(select.POLLIN, timeout, "nothing was sent")
        return message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _await(self, event: int, timeout: float | None, what: str) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError(f"{what} within {timeout} s")


def write_order(order: Order, block: Block) -> Message:
    """Describe an order; strings among the actions travel in it, all else lies in the block."""
    if not (order.begin or block.has_texts):
        return {}, array("i", [order.hold, *order.step]).tobytes()
    described = {
        "step": order.step,
        "hold": order.hold,
        "begin": [[place, begin.options, begin.rebuild, dict(begin.changed)] for place, begin in order.begin.items()],
        "texts": [leaf[order.step].tolist() for leaf in block.action if leaf.dtype.kind == "O"],
    }
    return described, b""


def read_order(message: Message, block: Block) -> Order:
    """Read an order, and put its strings into the block."""
    described, raw = message
    if not described:
        hold, *places = memoryview(raw).cast("i")
        return Order(places, hold=bool(hold))
    step = described["step"]
    texts = iter(described["texts"])
    for leaf in block.action:
        if leaf.dtype.kind == "O":
            leaf[step] = next(texts)
    begin = {place: Begin(options, rebuild, changed) for place, options, rebuild, changed in described["begin"]}
    return Order(step, begin, described["hold"])


def write_result(result: Result, block: Block) -> Message:
    """Describe a result; strings among observations and infos travel in it, all else lies in the block."""
    if not (result.faults or result.unstorable or block.has_texts):
        return {}, _COUNTS.pack(result.steps, result.resets)
    described = {
        "steps": result.steps,
        "resets": result.resets,
        "faults": result.faults,
        "unstorable": result.unstorable,
        "texts": [
            [text[:count].tolist() for text in texts]
            for texts, count in ((block.steps.texts, result.steps), (block.resets.texts, result.resets))
        ],
    }
    return described, b""


def read_result(message: Message, block: Block) -> Result:
    """Read a result, and put its strings into the block."""
    described, raw = message
    if not described:
        return Result(*_COUNTS.unpack(raw))
    for texts, values in zip((block.steps.texts, block.resets.texts), described["texts"], strict=True):
        _fill(texts, values)
    faults = tuple((place, kind, detail) for place, kind, detail in described["faults"])
    unstorable = tuple(LeftOut(key, times, first) for key, times, first in described["unstorable"])
    return Result(described["steps"], described["resets"], faults, unstorable)


def _fill(texts: Sequence[NDArray[Any]], values: Sequence[Sequence[Any]]) -> None:
    for text, given in zip(texts, values, strict=True):
        text[: len(given)] = given
