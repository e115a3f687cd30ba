"""The log's interface: partitions of records, appended and read by offset.

Two implementations stand behind it, `KafkaLog` and `MemoryLog`; one contract suite holds them equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

# What an appender takes; names may repeat.
Headers: TypeAlias = "tuple[tuple[str, bytes], ...]"
# What a record may have: other clients also write null values, which are not empty ones.
RecordHeaders: TypeAlias = "tuple[tuple[str, bytes | None], ...]"


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it lies in the log; `timestamp_ms` is the broker's append time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        named = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What identifies a topic: a topic deleted and created again under its name has another `topic_id`."""

    name: str
    topic_id: str
    cluster_id: str
    partitions: int
    log_append_time: bool


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the log put a record."""

    partition: int
    offset: int
    timestamp_ms: int


class Appender(Protocol):
    """Appends records; appends to one partition by one appender keep their order."""

    def append(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
    ) -> Future[Appended]:
        """Hand over a record; the future resolves once the log has acknowledged it.

        The future fails with `LogUnavailableError` where trying again may help (the record may be in the log
        all the same), with `FatalError` where the log refuses the record or the topic for good. May block for
        a bounded time while the log is away. Raises `ValueError` where there is neither key nor value, and where a
        header is null.
        """
        ...

    def close(self, timeout: float = 10.0) -> None:
        """Wait up to `timeout` seconds for what is under way, then let go."""
        ...


class Reader(Protocol):
    """Reads chosen partitions, each from where it was sought to."""

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on; the first call for a partition adds it."""
        ...

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """Wait up to `timeout` seconds for records; each partition's come in offset order, none while the log is away.

        Raises `TopicError` where a position lies outside its partition's log: there is no automatic reset.
        """
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        ...

    def close(self) -> None:
        """Let go of all partitions."""
        ...


class GroupListener(Protocol):
    """What a member of a group is told while it polls."""

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Take `partitions` on; answer the offset from which to read each."""
        ...

    def revoked(self, partitions: Sequence[int]) -> None:
        """Give `partitions` up; they are still this member's until this returns."""
        ...

    def lost(self, partitions: Sequence[int]) -> None:
        """Forget `partitions`: they may already be another member's."""
        ...


class GroupReader(Protocol):
    """A member of a consumer group over one topic; its listener is called inside `poll`, `attend` and `close` only.

    Rebalances are cooperative: partitions that stay with a member are neither revoked nor assigned again, and go on
    being read while others move. A partition is another member's only once its last owner's `revoked` has returned.
    """

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """As `Reader.poll`, for the partitions that this member holds.

        Raises `FatalError` where another member has joined under this one's instance name.
        """
        ...

    def attend(self) -> None:
        """Take part in the group without reading, and without waiting: for who is busy with what it has read."""
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Read a partition that this member holds from `offset` on."""
        ...

    def bounds(self, partition: int) -> tuple[int, int]:
        """As `Reader.bounds`."""
        ...

    def end(self, partition: int) -> int | None:
        """Return the offset that the partition's next record will get, as the last fetch told; costs no round trip.

        None before the first fetch, and for a partition that this member does not hold.
        """
        ...

    def report(self, offsets: Mapping[int, int]) -> None:
        """Write next offsets to the group, for lag dashboards; never waits, never raises, may be lost."""
        ...

    def close(self) -> None:
        """Revoke what this member holds, and leave the group; an instance stays in it until its session ends."""
        ...


class Log(Protocol):
    """A cluster: topics, and the ways to append to them and to read them."""

    def create(self, topic: str, *, partitions: int = 1, compacted: bool = False) -> TopicInfo:
        """Create a topic with broker append times unless it exists; describe it either way."""
        ...

    def describe(self, topic: str) -> TopicInfo:
        """Describe a topic; raises `TopicError` where there is none."""
        ...

    def appender(self) -> Appender:
        """Make an appender."""
        ...

    def reader(self) -> Reader:
        """Make a reader of chosen partitions."""
        ...

    def group(self, topic: str, group: str, listener: GroupListener, *, instance: str | None = None) -> GroupReader:
        """Join a consumer group over `topic`.

        `instance` names a member that outlives its process: one that joins again under its name within the session
        gets the same partitions back, and nothing moves.
        """
        ...

    def close(self) -> None:
        """Let go of the cluster; appenders and readers are closed by whoever made them."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
