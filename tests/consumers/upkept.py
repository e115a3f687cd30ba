"""What tests of upkeep share: a log that is stored commit by commit, and a bucket whose clock a test sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_consumers.store import commits
from penstock_consumers.store.commits import Retired
from penstock_consumers.upkeep.collection import collect
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import FencedError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import (
    NESTED,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    WrappedBucket,
    open_partition,
    take_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from penstock_consumers.partition import Partition
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Live, SegmentEntry
    from penstock_schemas.stream import StreamSpec


class Owned:
    """A partition with its owner: each step appends messages and commits them."""

    def __init__(
        self, bucket: Bucket, *, spec: StreamSpec = NESTED, beside: Owned | None = None, partitions: int = 1
    ) -> None:
        self.clock = beside.clock if beside else Clock()
        self.log = beside.log if beside else MemoryLog(clock=self.clock)
        if beside is None:
            self.log.create(TOPIC, partitions=partitions)
        self.number = beside.number + 1 if beside else 0
        self.bucket = bucket
        self.producer = ScriptedProducer(self.log, f"producer-{self.number}", self.number, spec)
        self.producer.begin()
        self.partition = self.load()
        self.steps = 0

    def load(self) -> Partition:
        """The partition at its newest commit."""
        return open_partition(self.log, self.bucket, partition=self.number)

    def step(self, count: int = 1) -> None:
        """Go on by commits: in each some episodes end, in every way; one goes on until its producer begins anew."""
        for _ in range(count):
            self.send()
            self.commit()

    def send(self) -> None:
        """Append what a step commits."""
        at = self.steps
        self.steps += 1
        if at % 7 == 3:
            self.producer.begin()
        self.producer.send(
            Row(0, at, 0, 0, 1 + at % 5, Ends.TERMINATED, seed=at),
            Row(1, at, 0, 0, 2, Ends.TRUNCATED if at % 2 else Ends.CUT),
            Row(2, at // 10, at % 10, 2 * (at % 10), 2),
        )
        self.clock.advance(1.0)

    def commit(self) -> None:
        """Commit what the log has, as a worker does where it is fenced: reload, and judge again."""
        take_all(self.partition, self.log)
        try:
            self.partition.commit()
        except FencedError:
            self.partition = self.load()
            take_all(self.partition, self.log)
            self.partition.commit()


class Timed(WrappedBucket):
    """A bucket by whose clock an object is written when its test says; each write takes a second."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.now = 1_000_000.0
        self.written: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.deleted: list[str] = []

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if created:
            self._note(name)
        return created

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        super().put(name, *pieces)
        self._note(name)

    def modified(self, name: str) -> float:
        super().modified(name)
        return self.written[name]

    def delete(self, name: str) -> None:
        super().delete(name)
        self.left.pop(name, None)
        self.deleted.append(name)

    def leftovers(self, prefix: str = "") -> Iterable[tuple[str, float]]:
        return [(name, at) for name, at in self.left.items() if name == prefix + name.rpartition("/")[2]]

    def _note(self, name: str) -> None:
        self.now += 1.0
        self.written[name] = self.now


class Meddled(WrappedBucket):
    """A bucket in which something happens just before the first operation of a kind on a name."""

    def __init__(self, inner: Bucket, before: str, beginning: str, happens: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._before = before
        self._beginning = beginning
        self._happens: Callable[[], Any] | None = happens

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        happens = self._happens
        if happens and operation.__name__ == self._before and str(arguments[0]).startswith(self._beginning):
            self._happens = None
            happens()
        return operation(*arguments)


def overtaken(bucket: Bucket, owner: Partition) -> Meddled:
    """A bucket whose owner commits just before open rows are read, and in which what that let go is collected."""

    def commit() -> None:
        committed = owner.commit()
        assert committed is not None
        assert collect(bucket, committed.commit, 0.0).deleted

    return Meddled(bucket, "open", "open/", commit)


def newest(bucket: Bucket, partition: int = 0) -> Commit:
    """The newest commit, which there is."""
    found = commits.newest(bucket, partition)
    assert found is not None
    return found


def live(bucket: Bucket, partition: int = 0) -> Live:
    """What lives at the newest commit."""
    return commits.live_at(bucket, newest(bucket, partition))


def counted(entries: Iterable[SegmentEntry]) -> Retired:
    """What segments hold together."""
    gone = Retired()
    for entry in entries:
        gone = gone.plus(entry)
    return gone
