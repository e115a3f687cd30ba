"""What comes from Kafka's sockets, and how much at a time."""

from __future__ import annotations

import selectors
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from kafka.errors import KafkaConnectionError

from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.log.kafka_network import _received, _Selector
from penstock_schemas.log.kafka_readers import KafkaReader

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.0)
    with ours, theirs:
        yield ours, theirs


def test_a_read_takes_all_that_has_come_and_fits(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"one")
    theirs.sendall(b"two")
    into = memoryview(bytearray(4))
    assert [bytes(_received(ours, into)[0]) for _ in range(3)] == [b"onet", b"wo", b""]


def test_a_read_tells_why_no_more_comes(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    into = memoryview(bytearray(4))
    assert _received(ours, into)[1] is None
    theirs.close()
    data, error = _received(ours, into)
    assert not data
    assert isinstance(error, KafkaConnectionError)
    ours.close()
    assert "Bad file descriptor" in str(_received(ours, into)[1])


def test_a_selector_finds_sockets_as_any_other_does(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with closing(_Selector()) as selector:
        key = selector.register(ours, selectors.EVENT_READ, "data")
        assert selector.get_key(ours) is selector.get_key(ours.fileno()) is key
        # Its text would cost two calls of the system's.
        with pytest.raises(KeyError, match=rf"^'{theirs.fileno()} is not registered'$"):
            selector.get_key(theirs)
        ours.close()
        assert selector.get_key(ours) is key


def test_records_are_read_in_large_pieces(kafka_bootstrap: str) -> None:
    """Through the buffer that a client's connections share; kafka-python has no setting for that, and may change."""
    topic, value = "network-large-pieces", bytes(range(1, 256)) * 2048
    with KafkaLog(kafka_bootstrap) as log:
        log.create(topic)
        with closing(log.appender()) as appender:
            appender.append(topic, 0, value=value).result(60)
        with closing(log.reader()) as reader:
            reader.seek(topic, 0, 0)
            found: list[bytes | None] = []
            while not found:
                found += [record.value for record in reader.poll(1.0)]
            assert found == [value]
            assert isinstance(reader, KafkaReader)
            largest = len(bytes(reader._network._manager._read_into).rstrip(b"\0"))
            assert largest > 2 * 4096
