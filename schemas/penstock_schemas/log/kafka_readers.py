"""Reading chosen partitions from Kafka, and what a group's members share with that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, UnsupportedCodecError

from penstock_schemas.errors import LogUnavailableError, TopicError
from penstock_schemas.log.base import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock_schemas.log.kafka_client import Connection
    from penstock_schemas.log.kafka_network import NetworkClient


def _open(connection: Connection, **settings: Any) -> tuple[Any, NetworkClient]:
    return connection.open(
        KafkaConsumer,
        # A position outside the log is the reader's to judge; a reset would lose or repeat records silently.
        auto_offset_reset="none",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        # Measured: as fast as 64 MiB, in a fifth of the memory; the largest record comes whatever its size.
        fetch_max_bytes=16 << 20,
        # Measured: larger ones are slower, and smaller ones too.
        max_partition_fetch_bytes=4 << 20,
        metrics_enabled=False,
        **settings,
    )


class Consumer:
    """What both readers share: a consumer's records and bounds."""

    def __init__(self, connection: Connection, count_partitions: Callable[[str], int], **settings: Any) -> None:
        self._connection = connection
        self._count_partitions = count_partitions
        self._consumer, self._network = _open(connection, **settings)

    def poll_records(self, timeout: float, max_records: int) -> list[Record]:
        """Wait up to `timeout` seconds for records."""
        with self._connection.errors("read"):
            try:
                polled = self.polled(int(timeout * 1000), max_records)
                if polled:
                    # kafka-python 3.0 would ask for more in the next poll only; asked for now, it comes while the
                    # caller works on what it got.
                    self._consumer._fetcher.send_fetches()  # noqa: SLF001  (no public call does)
            except OffsetOutOfRangeError as error:
                raise self._out_of_range(error) from error
            except (CorruptRecordError, UnsupportedCodecError) as error:
                raise self._unreadable(error) from error
        return [
            Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
            for records in polled.values()
            for r in records
        ]

    def polled(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Any]]:
        """Poll kafka-python's consumer."""
        polled: Mapping[TopicPartition, Sequence[Any]] = self._consumer.poll(timeout_ms, max_records)
        return polled

    def partition_bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        wanted = TopicPartition(topic, partition)
        if wanted not in self._consumer.assignment():
            self.check(topic, partition)
        timeout_ms = int(self._connection.timeout * 1000)
        try:
            with self._connection.errors(f"read the bounds of {topic}-{partition}"):
                # The end first: a log that is cut in between still has its start at or below its end.
                end = self._consumer.end_offsets([wanted], timeout_ms)[wanted]
                return min(self._consumer.beginning_offsets([wanted], timeout_ms)[wanted], end), end
        except LogUnavailableError:
            self.check(topic, partition)
            raise

    def check(self, topic: str, partition: int) -> None:
        """Tell a missing topic from an absent broker, which to the consumer look alike."""
        partitions = self._count_partitions(topic)
        if not 0 <= partition < partitions:
            raise TopicError(f"topic {topic!r} has no partition {partition}: it has {partitions}")

    def _out_of_range(self, error: OffsetOutOfRangeError) -> TopicError:
        ((wanted, offset),) = error.args[0].items()
        start, end = self.partition_bounds(*wanted)
        return TopicError(
            f"offset {offset} of {wanted.topic}-{wanted.partition} is outside its log, which holds "
            f"{start} to {end}: records were lost to retention, or the topic was recreated"
        )

    def _unreadable(self, error: KafkaError) -> TopicError:
        # kafka-python 3.0 does not tell which fetch it was at, and tries to go on with it for ever: the next poll
        # would not return. Dropped here, it is fetched again, and refused again.
        fetch = self._consumer._fetcher._next_partition_records  # noqa: SLF001  (there is no public way to either)
        if not fetch:
            return TopicError(f"cannot parse what was fetched: {error}; who wrote it?")
        fetch.drain()
        topic, partition = fetch.topic_partition
        position = max(fetch.fetch_offset, fetch.next_fetch_offset)
        return TopicError(
            f"cannot parse the record batch at offset {position} of {topic}-{partition}: {error}; "
            "find out who wrote it, and have the log cut at that batch's end"
        )


class KafkaReader(Consumer):
    """Reads chosen partitions, each from where it was sought to."""

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on; raises `TopicError` where there is no such partition."""
        wanted = TopicPartition(topic, partition)
        assigned = self._consumer.assignment()
        if wanted not in assigned:
            self.check(topic, partition)
            self._consumer.assign([*assigned, wanted])
        self._consumer.seek(wanted, offset)

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """Wait up to `timeout` seconds for records; each partition's come in offset order."""
        return self.poll_records(timeout, max_records)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        return self.partition_bounds(topic, partition)

    def close(self) -> None:
        """Let go of all partitions."""
        self._consumer.close(autocommit=False)
