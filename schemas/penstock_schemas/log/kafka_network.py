"""Kafka's network client, with reads as large as what has come, and waits that cost no more than they must.

kafka-python 3.0 reads 4 KiB at a time, each into a piece of memory of its own, and joins the pieces: at full rate a
consumer makes twenty thousand system calls a second, hands the interpreter over as often, and leaves its heap in holes.
Here a read fills a buffer that all connections of a client share, out of which the protocol copies what it keeps.

Before each wait it looks whether the socket is waited for already, and mostly gets an error, for whose text Python's
selectors ask the socket for its two addresses, twice: a thirtieth of what a consumer costs. Here they see its number.
"""

from __future__ import annotations

import selectors
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

if TYPE_CHECKING:
    import socket

    from _typeshed import FileDescriptorLike

_READ_BYTES = 1 << 20


class NetworkClient(KafkaNetClient):  # type: ignore[misc]  # kafka-python has no types
    """What a client of kafka-python is given as its `kafka_client`."""

    def __init__(self, **config: Any) -> None:
        net = NetworkSelector(**{**config, "selector": _Selector})
        super().__init__(net, _Manager(net, **config), **config)


class _Selector(selectors.DefaultSelector):
    """Looks sockets up by their numbers."""

    def get_key(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Return what a socket is registered with; raises `KeyError` where it is not."""
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        # One that was closed has no number any more, but is still found as what it is.
        return super().get_key(fileobj if number < 0 else number)


class _Manager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Makes connections; their protocols are called one at a time, by the network's thread."""

    def __init__(self, net: NetworkSelector, **config: Any) -> None:
        super().__init__(net, **config)
        self._read_into = memoryview(bytearray(_READ_BYTES))

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        # TLS comes in records of 16 KiB at most, each to be decrypted by itself.
        if not self.ssl_enabled:
            transport._sock_recv = partial(_received, transport._sock, self._read_into)  # noqa: SLF001  (there is no setting)
        return transport


def _received(sock: socket.socket, into: memoryview) -> tuple[memoryview, Exception | None]:
    """Read what has come, as much as there is room for; answer it, or why there is no more to come."""
    read = 0
    try:
        while read < len(into):
            count = sock.recv_into(into[read:])
            if not count:
                return into[:0], KafkaConnectionError("socket disconnected")
            read += count
    except (BlockingIOError, InterruptedError):
        pass
    except OSError as error:
        return into[:0], KafkaConnectionError(error)
    return into[:read], None
