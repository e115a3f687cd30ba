"""Plain records, read without our own readers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_schemas.log import RecordHeaders
    from penstock_schemas.log.memory import MemoryLog

_POLL_MS = 500


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a partition, as any client reads it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + sum(len(n) + len(v or b"") for n, v in self.headers)

    @property
    def digest(self) -> str:
        """By which a commit knows its last record again."""
        sha = hashlib.sha256((self.key or b"") + (self.value or b""))
        for name, value in self.headers:
            sha.update(name.encode() + (b"\1" if value is None else b"\0" + value))
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a producer noted after the log had acknowledged a record: where it lies, and its value's sha256."""

    partition: int
    offset: int
    sha256: bytes


def kafka_records(bootstrap_servers: str, topic: str) -> dict[int, list[LogRecord]]:
    """Read all that a topic holds, by partition, with a plain consumer that is in no group."""
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415  (half a second that audits in memory need not take)

    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, check_crcs=True, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: dict[int, list[LogRecord]] = {at.partition: [] for at in partitions}
        while any(consumer.position(at) < ends[at] for at in partitions):
            for at, polled in consumer.poll(timeout_ms=_POLL_MS).items():
                found[at.partition] += [
                    LogRecord(
                        *(record.offset, record.timestamp, record.key, record.value),
                        tuple((name, value) for name, value in record.headers),
                    )
                    for record in polled
                    if record.offset < ends[at]
                ]
        return found
    finally:
        consumer.close()


def memory_records(log: MemoryLog, topic: str) -> dict[int, list[LogRecord]]:
    """Everything that a topic in memory holds, by partition."""
    return {
        number: [LogRecord(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in partition.records]
        for number, partition in enumerate(log._topics[topic].partitions)
    }
