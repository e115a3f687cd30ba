"""Reading from Kafka: chosen partitions, or those that a consumer group assigns."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, UnsupportedCodecError
from kafka.future import Future as KafkaFuture
from kafka.structs import OffsetAndMetadata

from penstock_schemas.errors import LogUnavailableError, TopicError
from penstock_schemas.log.base import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from kafka.net.compat import KafkaNetClient

    from penstock_schemas.log.base import GroupListener
    from penstock_schemas.log.kafka_client import Connection

_log = logging.getLogger(__name__)

# How long a member may take between two polls before the group goes on without it: longer than any commit.
_MAX_POLL_INTERVAL_MS = 300_000


def _open(connection: Connection, **settings: Any) -> tuple[Any, KafkaNetClient]:
    return connection.open(
        KafkaConsumer,
        # A position outside the log is the reader's to judge; a reset would lose or repeat records silently.
        auto_offset_reset="none",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        fetch_max_bytes=64 << 20,
        # Measured: larger ones are slower, and smaller ones too.
        max_partition_fetch_bytes=4 << 20,
        metrics_enabled=False,
        **settings,
    )


class _Consumer:
    """What both readers share: a consumer's records and bounds."""

    def __init__(self, connection: Connection, count_partitions: Callable[[str], int], **settings: Any) -> None:
        self._connection = connection
        self._count_partitions = count_partitions
        self._consumer, self._network = _open(connection, **settings)

    def poll_records(self, timeout: float, max_records: int) -> list[Record]:
        with self._connection.errors("read"):
            try:
                polled = self._consumer.poll(int(timeout * 1000), max_records)
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

    def partition_bounds(self, topic: str, partition: int) -> tuple[int, int]:
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


class KafkaReader(_Consumer):
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


class KafkaGroupReader(_Consumer):
    """A member of a consumer group; joins with its first poll.

    Its listener is called in a thread of its own while `poll` or `close` waits for it, so that the member's
    heartbeats go on however long it takes. Once the listener has raised, every poll raises that error again:
    close the member and join anew.
    """

    def __init__(
        self,
        connection: Connection,
        count_partitions: Callable[[str], int],
        topic: str,
        group: str,
        listener: GroupListener,
        *,
        session_timeout: float,
    ) -> None:
        session_timeout_ms = int(session_timeout * 1000)
        super().__init__(
            connection,
            count_partitions,
            group_id=group,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=session_timeout_ms // 3,
            max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
        )
        self._topic = topic
        self._group = group
        self._bridge = _ListenerBridge(topic, self._consumer, self._network, listener)
        self._consumer.subscribe([topic], listener=self._bridge)

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """Take part in the group, and wait up to `timeout` seconds for records of what this member holds."""
        self._bridge.raise_failure()
        try:
            return self.poll_records(timeout, max_records)
        finally:
            self._bridge.raise_failure()

    def seek(self, partition: int, offset: int) -> None:
        """Read a partition that this member holds from `offset` on."""
        if partition not in self._bridge.held:
            raise ValueError(
                f"partition {partition} of {self._topic!r} is not this member's: it holds {sorted(self._bridge.held)}"
            )
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        return self.partition_bounds(self._topic, partition)

    def end(self, partition: int) -> int | None:
        """Return the offset that the next record will get, as the last fetch told; None before the first."""
        if partition not in self._bridge.held:
            return None
        end: int | None = self._consumer.highwater(TopicPartition(self._topic, partition))
        return end

    def report(self, offsets: Mapping[int, int]) -> None:
        """Write next offsets to the group; errors are logged."""
        committed = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        try:
            self._consumer.commit_async(committed, callback=self._reported)
        except KafkaError as error:
            self._reported(committed, error)

    def close(self) -> None:
        """Revoke what this member holds, and leave the group."""
        self._bridge.closing()
        try:
            self._consumer.close(autocommit=False, timeout_ms=int(self._connection.timeout * 1000))
        finally:
            self._bridge.close()
        self._bridge.raise_failure()

    def _reported(self, _: object, result: object) -> None:
        if isinstance(result, Exception):
            _log.warning("the offsets reported to group %s of %s were lost: %r", self._group, self._topic, result)


class _ListenerBridge(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
    """Calls a `GroupListener` for kafka-python, beside its network loop, and keeps what it raises for `poll`."""

    def __init__(self, topic: str, consumer: Any, network: KafkaNetClient, listener: GroupListener) -> None:
        self.held: set[int] = set()
        self._topic = topic
        self._consumer = consumer
        self._network = network
        self._listener = listener
        self._failure: Exception | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-group-listener")

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._beside(self._assign, assigned)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._beside(self._revoke, revoked)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        await self._beside(self._lose, lost)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def closing(self) -> None:
        """Forget an earlier failure, which `poll` has raised: what `close` raises is its own."""
        self._failure = None

    def close(self) -> None:
        self._thread.shutdown()

    def _assign(self, partitions: list[int]) -> None:
        # Each is sought to before kafka-python asks for a position, so the group's own offsets are never used.
        for partition, offset in self._listener.assigned(partitions).items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)
        self.held.update(partitions)

    def _revoke(self, partitions: list[int]) -> None:
        held = sorted(self.held.intersection(partitions))
        self.held.difference_update(held)
        if held:
            self._listener.revoked(held)

    def _lose(self, partitions: list[int]) -> None:
        held = sorted(self.held.intersection(partitions))
        self.held.difference_update(held)
        if held:
            self._listener.lost(held)

    async def _beside(self, call: Callable[[list[int]], None], partitions: Collection[TopicPartition]) -> None:
        done = KafkaFuture()
        numbers = sorted(partition.partition for partition in partitions)

        def run() -> None:
            try:
                if numbers:
                    call(numbers)
            except Exception as error:  # noqa: BLE001 - the listener's, and poll's to raise
                self._failure = error
            finally:
                done.success(None)
                self._network.wakeup()

        self._thread.submit(run)
        await done
