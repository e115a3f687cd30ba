"""The log in memory: the deterministic twin of Kafka, for tests and benchmarks."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from penstock_schemas.errors import FatalError, LogUnavailableError, TooLargeError, TopicError
from penstock_schemas.log.appending import check_given
from penstock_schemas.log.base import Appended, Record, TopicInfo
from penstock_schemas.log.memory_group import Group, MemoryGroupReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_schemas.log.base import GroupListener, Headers, RecordHeaders


@dataclass(slots=True)
class _Partition:
    """Records from offset `start` on, without holes."""

    start: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.records)


@dataclass(slots=True)
class _Topic:
    info: TopicInfo
    partitions: list[_Partition]


class MemoryLog:
    """A log in this process; thread-safe, and each call's effect is visible when it returns.

    Records are kept as they were handed over, never copied and never compacted. `clock` answers seconds since
    the epoch and gives records their append times; `max_message_bytes` bounds a record's key, value and
    headers together.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        cluster_id: str = "memory",
        max_message_bytes: int = 1 << 20,
    ) -> None:
        self.changed = threading.Condition()  # guards all state, and is notified of each change of it
        self.max_message_bytes = max_message_bytes
        self._clock = clock
        self._cluster_id = cluster_id
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        self._outage = False

    @property
    def outage(self) -> bool:
        """While true the log does not answer: appends and descriptions fail, polls give nothing."""
        return self._outage

    @outage.setter
    def outage(self, value: bool) -> None:
        with self.changed:
            self._outage = value
            self.changed.notify_all()

    def create(self, topic: str, *, partitions: int = 1, compacted: bool = False) -> TopicInfo:  # noqa: ARG002  (nothing is compacted in memory)
        """Create a topic unless it exists; describe it either way."""
        # A compacted topic may hold every record for any length of time, so none needs to go here.
        with self.changed:
            self._raise_outage()
            if topic not in self._topics:
                info = TopicInfo(topic, uuid.uuid4().hex, self._cluster_id, partitions, log_append_time=True)
                self._topics[topic] = _Topic(info, [_Partition() for _ in range(partitions)])
            return self._topics[topic].info

    def describe(self, topic: str) -> TopicInfo:
        """Describe a topic; raises `TopicError` where there is none."""
        with self.changed:
            self._raise_outage()
            return self._topic(topic).info

    def delete(self, topic: str) -> None:
        """Delete a topic with its records; one created again under its name gets another id."""
        with self.changed:
            del self._topics[topic]
            self.changed.notify_all()

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Drop the records below `offset`, as retention does."""
        with self.changed:
            kept = self._partition(topic, partition)
            if not kept.start <= offset <= kept.end:
                raise ValueError(f"cannot trim {topic}-{partition} to {offset}: it holds {kept.start} to {kept.end}")
            del kept.records[: offset - kept.start]
            kept.start = offset
            self.changed.notify_all()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        with self.changed:
            self._raise_outage()
            found = self._partition(topic, partition)
            return found.start, found.end

    def end(self, topic: str, partition: int) -> int:
        """Return the offset that a partition's next record will get; answers in an outage too."""
        with self.changed:
            return self._partition(topic, partition).end

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: RecordHeaders
    ) -> Appended:
        """Append any record that a log may hold; raises what an appender's future fails with."""
        with self.changed:
            self._raise_outage()
            target = self._partition(topic, partition)
            timestamp_ms = int(self._clock() * 1000)
            record = Record(topic, partition, target.end, timestamp_ms, key, value, headers)
            if record.size > self.max_message_bytes:
                raise TooLargeError(
                    f"a record of {record.size} bytes for {topic}-{partition} is over the limit of "
                    f"{self.max_message_bytes} bytes: send smaller ones"
                )
            target.records.append(record)
            self.changed.notify_all()
            return Appended(partition, record.offset, timestamp_ms)

    def take(self, positions: dict[tuple[str, int], int], max_records: int) -> list[Record]:
        """Read from `positions` on and advance them; the caller holds `changed`."""
        taken: list[Record] = []
        if self._outage:
            return taken
        sources = {of: self._partition(*of) for of in positions}
        # All of them before any is advanced: what was taken would be lost with the error.
        for (topic, partition), source in sources.items():
            position = positions[topic, partition]
            if not source.start <= position <= source.end:
                raise TopicError(
                    f"offset {position} of {topic}-{partition} is outside its log, which holds "
                    f"{source.start} to {source.end}: records were lost to retention, or the topic was recreated"
                )
        for (topic, partition), source in sources.items():
            position = positions[topic, partition]
            first = position - source.start
            records = source.records[first : first + max_records - len(taken)]
            if records:
                # To the back, so that a busy partition does not starve the others.
                del positions[topic, partition]
                positions[topic, partition] = position + len(records)
                taken += records
        return taken

    def appender(self) -> MemoryAppender:
        """Make an appender, whose futures have resolved when it returns them."""
        return MemoryAppender(self)

    def reader(self) -> MemoryReader:
        """Make a reader of chosen partitions."""
        return MemoryReader(self)

    def group(
        self, topic: str, group: str, listener: GroupListener, *, instance: str | None = None
    ) -> MemoryGroupReader:
        """Make a member of a consumer group over `topic`; it joins with its first poll."""
        with self.changed:
            self.describe(topic)
            return MemoryGroupReader(self, topic, self._groups.setdefault((topic, group), Group()), listener, instance)

    def reported(self, topic: str, group: str) -> dict[int, int]:
        """Return the offsets that members reported, per partition."""
        with self.changed:
            return dict(self._groups[topic, group].reported)

    def evict(self, member: MemoryGroupReader) -> None:
        """Take a member's partitions away as a session timeout does; its next poll tells it and joins again."""
        with self.changed:
            member.leave()

    def close(self) -> None:
        """Nothing to let go of: what was appended stays readable."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _raise_outage(self) -> None:
        if self._outage:
            raise LogUnavailableError(f"the log in memory {self._cluster_id!r} has an outage: try again")

    def _topic(self, topic: str) -> _Topic:
        if topic not in self._topics:
            raise TopicError(f"there is no topic {topic!r}: create it")
        return self._topics[topic]

    def _partition(self, topic: str, partition: int) -> _Partition:
        partitions = self._topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise TopicError(f"topic {topic!r} has no partition {partition}: it has {len(partitions)}")
        return partitions[partition]


class MemoryAppender:
    """Appends at once: the future is resolved when it is returned."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._closed = False

    def append(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
    ) -> Future[Appended]:
        """Append a record; raises `ValueError` where it has neither key nor value, or a null header."""
        check_given(f"{topic}-{partition}", key, value, headers)
        future: Future[Appended] = Future()
        if self._closed:
            future.set_exception(FatalError(f"cannot append to {topic}-{partition}: the appender is closed"))
            return future
        try:
            future.set_result(self._log.append(topic, partition, key, value, headers))
        except (FatalError, LogUnavailableError) as error:
            future.set_exception(error)
        return future

    def close(self, timeout: float = 10.0) -> None:  # noqa: ARG002 - nothing is ever under way
        """Let go."""
        self._closed = True


class MemoryReader:
    """Reads chosen partitions, each from where it was sought to."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._positions: dict[tuple[str, int], int] = {}

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on; raises `TopicError` where there is no such partition."""
        self._log.bounds(topic, partition)
        self._positions[topic, partition] = offset

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """Wait up to `timeout` seconds for records; each partition's come in offset order."""
        deadline = time.monotonic() + timeout
        with self._log.changed:
            while not (records := self._log.take(self._positions, max_records)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._log.changed.wait(left)
            return records

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        return self._log.bounds(topic, partition)

    def close(self) -> None:
        """Let go of all partitions."""
        self._positions.clear()
