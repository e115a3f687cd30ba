"""Kafka away: stopped, frozen, or never there."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaConnectionError

from deploy.local.kafka import LocalKafka
from penstock_schemas.errors import FatalError, LogUnavailableError, SettingsError
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock_schemas.log import Appended, GroupReader, Reader, Record

pytestmark = pytest.mark.whole

DELIVERY_TIMEOUT = 2.0
SECONDS = 60.0


class FromTheStart:
    def __init__(self) -> None:
        self.told: list[str] = []

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        self.told += ["assigned"] * len(partitions)
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None:
        self.told += ["revoked"] * len(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        self.told += ["lost"] * len(partitions)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


@pytest.fixture
def log(broker: LocalKafka) -> Iterator[KafkaLog]:
    # A test that failed while it was away leaves it away.
    if not broker.running:
        broker.start()
    with KafkaLog(
        broker.bootstrap_servers,
        timeout=DELIVERY_TIMEOUT,
        delivery_timeout=DELIVERY_TIMEOUT,
        max_buffered_bytes=100_000,
    ) as log:
        yield log


def read(reader: Reader | GroupReader, count: int) -> list[bytes | None]:
    deadline = time.monotonic() + SECONDS
    records: list[Record] = []
    while len(records) < count and time.monotonic() < deadline:
        records += reader.poll(0.5)
    return [record.value for record in records]


def test_all_goes_on_after_the_broker_was_away(broker: LocalKafka, log: KafkaLog) -> None:
    log.create("stopped")
    with (
        closing(log.appender()) as appender,
        closing(log.reader()) as reader,
        closing(log.group("stopped", "g", FromTheStart())) as member,
    ):
        appender.append("stopped", 0, value=b"before").result(SECONDS)
        reader.seek("stopped", 0, 0)
        assert read(reader, 1) == read(member, 1) == [b"before"]
        broker.stop()
        assert member.end(0) == 1
        begun = time.monotonic()
        failed = appender.append("stopped", 0, value=b"lost")
        with pytest.raises(LogUnavailableError, match=f"stopped-0.*{broker.bootstrap_servers}"):
            failed.result(SECONDS)
        assert DELIVERY_TIMEOUT * 0.9 < time.monotonic() - begun < DELIVERY_TIMEOUT + 2.0
        assert list(reader.poll(0.1)) == []
        broker.start()
        assert appender.append("stopped", 0, value=b"after").result(SECONDS).offset == 1
        assert read(reader, 1) == read(member, 1) == [b"after"]


def test_a_group_goes_on_after_its_broker_was_killed(
    broker: LocalKafka, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(timeout_ms: float | None = None) -> bool:
        raise KafkaConnectionError(f"111 ECONNREFUSED, within {timeout_ms} ms")

    listener = FromTheStart()
    log.create("killed", partitions=2)
    with closing(log.group("killed", "k", listener)) as member, closing(log.appender()) as appender:
        for value in (b"0", b"1"):
            appender.append("killed", 0, value=value).result(SECONDS)
        assert read(member, 2) == [b"0", b"1"]
        member.report({0: 2})
        broker.kill()
        # The coordinator is gone too; nothing is raised, and nothing taken away.
        for _ in range(5):
            assert list(member.poll(0.1)) == []
            member.attend()
            member.report({0: 2})
        # Where connecting is refused twice within one poll, kafka-python's coordinator raises that.
        with monkeypatch.context() as patch:
            patch.setattr(member._coordinator, "ensure_coordinator_ready", refused)
            assert list(member.poll(0.1)) == []
            member.attend()
        assert listener.told == ["assigned"] * 2
        broker.start()
        appender.append("killed", 1, value=b"2").result(SECONDS)
        assert read(member, 1) == [b"2"]
    # Whether its session outlived the broker or not, what it lost it was told.
    assert listener.told.count("assigned") == listener.told.count("lost") + listener.told.count("revoked")
    assert listener.told[-2:] == ["revoked"] * 2


def test_an_appender_outlives_a_frozen_broker(broker: LocalKafka, log: KafkaLog) -> None:
    log.create("frozen")
    with closing(log.appender()) as appender:
        appender.append("frozen", 0, value=b"before").result(SECONDS)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            # Sent and never answered; then one that is not even sent.
            for value in (b"sent", b"kept"):
                with pytest.raises(LogUnavailableError):
                    appender.append("frozen", 0, value=value).result(SECONDS)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        appender.append("frozen", 0, value=b"after").result(SECONDS)
        with closing(log.reader()) as reader:
            reader.seek("frozen", 0, 0)
            found = read(reader, reader.bounds("frozen", 0)[1])
    # What was sent may be in the log all the same, in its place; what was not sent is not.
    assert found in ([b"before", b"after"], [b"before", b"sent", b"after"])


@pytest.mark.usefixtures("broker")
def test_an_appender_outlives_a_producer_that_hangs(log: KafkaLog) -> None:
    log.create("hanging")
    with closing(log.appender()) as appender:
        appender.append("hanging", 0, value=b"before").result(SECONDS)
        # What kafka-python 3.0 does when a batch that it had sent times out; it never asks for an id again.
        appender._producer._transaction_manager.reset_producer_id()
        with pytest.raises(LogUnavailableError, match=f"not acknowledged within {DELIVERY_TIMEOUT} s"):
            appender.append("hanging", 0, value=b"kept").result(SECONDS)
        assert appender.append("hanging", 0, value=b"after").result(SECONDS).offset == 1


def test_a_full_buffer_refuses_after_a_bounded_wait(broker: LocalKafka) -> None:
    with (
        KafkaLog(broker.bootstrap_servers, timeout=0.5, delivery_timeout=SECONDS, max_buffered_bytes=100_000) as log,
        closing(log.appender()) as appender,
    ):
        log.create("full")
        appender.append("full", 0, value=b"before").result(SECONDS)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            kept = appender.append("full", 0, value=bytes(80_000))
            begun = time.monotonic()
            with pytest.raises(LogUnavailableError, match="80000 bytes unacknowledged"):
                appender.append("full", 0, value=bytes(80_000)).result(0)
            assert 0.4 < time.monotonic() - begun < 2.0
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        kept.result(SECONDS)
        # There is room again.
        appender.append("full", 0, value=bytes(80_000)).result(SECONDS)


def test_closing_an_appender_fails_what_the_broker_does_not_take(broker: LocalKafka, log: KafkaLog) -> None:
    log.create("closing")
    appender = log.appender()
    appender.append("closing", 0, value=b"before").result(SECONDS)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        future = appender.append("closing", 0, value=b"late")
        begun = time.monotonic()
        appender.close(0.2)
        assert time.monotonic() - begun < 1.0
        with pytest.raises(LogUnavailableError, match="was closed"):
            future.result(0)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.usefixtures("broker")
def test_an_appender_that_is_closed_while_it_connects_appends_nothing_and_leaves_no_threads(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create("late")
    before = set(threading.enumerate())
    appender = log.appender()
    connect, connected, closed = appender._open, threading.Event(), threading.Event()

    def connect_late() -> Any:
        producer = connect()
        connected.set()
        closed.wait(SECONDS)
        return producer

    monkeypatch.setattr(appender, "_open", connect_late)
    # As after an outage: the next append connects anew.
    appender._retire(appender._producer, "the broker was away")
    appended: Future[Appended] = Future()

    def append() -> None:
        appended.set_exception(appender.append("late", 0, value=b"late").exception(SECONDS))

    threading.Thread(target=append, daemon=True).start()
    assert connected.wait(SECONDS)
    appender.close()
    closed.set()
    with pytest.raises(FatalError, match="the appender is closed"):
        appended.result(SECONDS)
    with closing(log.reader()) as reader:
        assert reader.bounds("late", 0) == (0, 0)
    deadline, never = time.monotonic() + SECONDS, threading.Event()
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < deadline, f"left: {set(threading.enumerate()) - before}"
        never.wait(0.01)


def test_a_cluster_that_is_not_there_is_named_and_leaves_no_threads() -> None:
    with socket.socket() as taken:
        # Bound but not listening: nobody answers here.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        before = set(threading.enumerate())
        log = KafkaLog(address, timeout=0.3)
        for use in (lambda: log.describe("t"), lambda: log.create("t"), log.appender, log.reader):
            with pytest.raises(LogUnavailableError, match=rf"connect: KafkaTimeoutError\(.*is Kafka up at {address}"):
                use()
        assert set(threading.enumerate()) <= before


def test_security_takes_security_settings_only() -> None:
    KafkaLog("localhost", security={"security_protocol": "SSL", "ssl_cafile": "ca.pem", "sasl_mechanism": "PLAIN"})
    with pytest.raises(SettingsError, match="'acks'"):
        KafkaLog("localhost", security={"acks": 0})
