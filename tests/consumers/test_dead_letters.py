from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.errors import LogUnavailableError, RejectedError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Encoded
from tests.consumers.messages import (
    DEAD_LETTERS,
    STREAM,
    TOPIC,
    Row,
    ScriptedProducer,
    append,
    records,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Appended, Record

MAX_BYTES = 10_000


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(max_message_bytes=MAX_BYTES)
    log.create(TOPIC)
    log.create(DEAD_LETTERS)
    return log


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


def open_with_dead_letters(log: MemoryLog, bucket: Bucket) -> Partition:
    topic = log.describe(TOPIC)
    dead_letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
    return Partition(ReplayStore(bucket, STREAM, topic), 0, dead_letters, Limits())


def take(partition: Partition, log: MemoryLog) -> None:
    for record in records(log)[partition.high_water :]:
        partition.take(record)


def dead(log: MemoryLog) -> list[Record]:
    return records(log, topic=DEAD_LETTERS)


def test_a_dead_letter_says_what_it_was_and_why(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    whole = producer.encode(Row(0, 0, 0, 0, 3))
    truncated = Encoded((whole.value or b"")[:-9], whole.headers)
    producer.append(truncated)
    partition = open_with_dead_letters(log, bucket)
    take(partition, log)
    partition.commit()
    (letter,) = dead(log)
    assert letter.key == f"{log.describe(TOPIC).topic_id}:0:1".encode()
    assert letter.value == truncated.value
    assert letter.headers[:1] == (("penstock.reason", b"truncated"),)
    assert letter.headers[1][0] == "penstock.detail"
    assert letter.headers[1][1].startswith(b"truncated: ")
    assert letter.headers[2:] == (("penstock.offset", b"1"), *truncated.headers)


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (b"random bytes", (), b"headers"),
        (b"x", (("penstock", b"2"), ("kind", b"chunks")), b"format"),
        (b"x", (("penstock", b"1"), ("kind", b"nonsense")), b"headers"),
        (b"x", (("penstock", b"1"), ("penstock", b"1")), b"headers"),
        (b"x", (("penstock", b"1"), ("kind", b"begin"), ("producer", b"p-0"), ("schema", b"y")), b"fingerprint"),
    ],
    ids=["no-headers", "format", "kind", "twice", "fingerprint"],
)
def test_what_is_not_valid_is_quarantined_and_the_flow_goes_on(
    log: MemoryLog, bucket: Bucket, value: bytes, headers: tuple[tuple[str, bytes], ...], reason: bytes
) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    append(log, Encoded(value, headers), "who knows")
    producer.send(Row(0, 0, 0, 0, 3))
    partition = open_with_dead_letters(log, bucket)
    take(partition, log)
    partition.commit()
    assert [letter.headers[0] for letter in dead(log)] == [("penstock.reason", reason)]
    assert (partition.counters["messages_quarantined"], partition.counters["rows_read"]) == (1, 1)


def test_a_payload_that_the_log_refuses_is_replaced_by_its_digest(log: MemoryLog, bucket: Bucket) -> None:
    value = b"\x07" * (MAX_BYTES - 20)
    offset = append(log, Encoded(value, (("was", b"here"),)), "k").offset
    partition = open_with_dead_letters(log, bucket)
    take(partition, log)
    partition.commit()
    (letter,) = dead(log)
    assert letter.value is None
    headers = dict(letter.headers)
    assert headers["penstock.reason"] == b"headers"
    assert headers["penstock.offset"] == b"%d" % offset
    assert headers["penstock.sha256"] == hashlib.sha256(value).hexdigest().encode()
    assert headers["penstock.bytes"] == b"%d" % records(log)[0].size


def test_dead_letters_are_acknowledged_before_the_commit(log: MemoryLog, bucket: Bucket) -> None:
    append(log, Encoded(b"garbage", ()), "k")
    partition = open_with_dead_letters(log, bucket)
    (record,) = records(log)
    partition.take(record)
    assert dead(log) == []
    log.outage = True
    with pytest.raises(LogUnavailableError):
        partition.commit()
    assert commits.newest(bucket, 0) is None
    log.outage = False
    assert dead(log) == []
    # The outage is over: the same partition sends again, and only then commits.
    assert partition.commit() is not None
    assert [letter.value for letter in dead(log)] == [b"garbage"]


def test_a_consumer_that_stops_before_its_commit_leaves_nothing_behind(log: MemoryLog, bucket: Bucket) -> None:
    append(log, Encoded(b"garbage", ()), "k")
    take(open_with_dead_letters(log, bucket), log)
    assert dead(log) == []


def test_a_dead_letter_may_come_twice_under_one_key(log: MemoryLog, bucket: Bucket) -> None:
    """A commit that failed after its letters were sent is made anew, letters and all."""
    append(log, Encoded(b"garbage", ()), "k")
    topic = log.describe(TOPIC)
    for _ in range(2):
        dead_letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
        take(Partition(ReplayStore(bucket, STREAM, topic), 0, dead_letters, Limits()), log)
        dead_letters.flush()
    first, second = dead(log)
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)


def rejected(log: MemoryLog, *values: bytes) -> list[Record]:
    """Records that are no messages."""
    for value in values:
        append(log, Encoded(value, ()), "k")
    return records(log)


def test_what_waits_in_memory_is_counted(log: MemoryLog) -> None:
    dead_letters = DeadLetters(log.appender(), DEAD_LETTERS, "id")
    found = rejected(log, b"a" * 100, b"b" * 30)
    assert dead_letters.pending_bytes == 0
    for record in found:
        dead_letters.add(record, RejectedError("headers", "none"))
    assert dead_letters.pending_bytes == 132
    log.outage = True
    with pytest.raises(LogUnavailableError):
        dead_letters.flush()
    assert dead_letters.pending_bytes == 132
    log.outage = False
    dead_letters.flush()
    dead_letters.flush()
    assert dead_letters.pending_bytes == 0
    assert [letter.value for letter in dead(log)] == [b"a" * 100, b"b" * 30]


class AwayAfterOne:
    """An appender whose log goes away after its first record."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.inner = log.appender()

    def append(self, *where: Any, **what: Any) -> Future[Appended]:
        future = self.inner.append(*where, **what)
        self.log.outage = self.log.end(DEAD_LETTERS, 0) == 1
        return future

    def close(self, timeout: float = 10.0) -> None:
        self.inner.close(timeout)


def test_only_what_was_not_acknowledged_is_sent_again(log: MemoryLog) -> None:
    dead_letters = DeadLetters(AwayAfterOne(log), DEAD_LETTERS, "id")
    for record in rejected(log, b"a", b"b"):
        dead_letters.add(record, RejectedError("headers", "none"))
    with pytest.raises(LogUnavailableError):
        dead_letters.flush()
    log.outage = False
    dead_letters.flush()
    assert [letter.value for letter in dead(log)] == [b"a", b"b"]


def test_what_a_sender_makes_of_the_detail_does_not_make_the_letter_too_large(log: MemoryLog) -> None:
    """Else no consumer could ever go past that message."""
    dead_letters = DeadLetters(log.appender(), DEAD_LETTERS, "id")
    (record,) = rejected(log, b"a")
    dead_letters.add(record, RejectedError("schema", "\ud800" + "é" * MAX_BYTES))
    dead_letters.flush()
    (letter,) = dead(log)
    detail = dict(letter.headers)["penstock.detail"] or b""
    assert detail.decode().startswith("schema: \\ud800ééé")
    assert detail.decode().endswith("é…")
    assert len(detail) <= 1_010


def test_headers_that_are_too_large_are_left_out_with_the_payload(log: MemoryLog) -> None:
    (offset,) = (append(log, Encoded(b"x", (("h", b"y" * (MAX_BYTES - 20)),)), "k").offset,)
    dead_letters = DeadLetters(log.appender(), DEAD_LETTERS, "id")
    dead_letters.add(records(log)[offset], RejectedError("headers", "none"))
    dead_letters.flush()
    (letter,) = dead(log)
    assert [name for name, _ in letter.headers] == [
        *("penstock.reason", "penstock.detail", "penstock.offset"),
        *("penstock.sha256", "penstock.bytes"),
    ]
