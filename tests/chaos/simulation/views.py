"""The log and the bucket as actors see them: every operation is a step on the stage."""

from __future__ import annotations

import re
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self, TypeVar

import pyarrow as pa

from penstock_schemas.errors import PenstockError
from tests.chaos.simulation.stage import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock_schemas.log import Appended, GroupListener, Headers, Record, TopicInfo
    from penstock_schemas.log.memory import MemoryLog
    from penstock_schemas.log.memory_group import MemoryGroupReader
    from tests.chaos.simulation.stage import Stage

_T = TypeVar("_T")
_UNIQUE = re.compile(r"-[0-9a-f]{32}")


class Objects:
    """A bucket's objects, and when each was written."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.data: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self._clock = clock

    def put(self, name: str, data: bytes) -> None:
        self.data[name] = data
        self.written[name] = self._clock()

    def create(self, name: str, data: bytes) -> bool:
        if name in self.data:
            return False
        self.put(name, data)
        return True

    def delete(self, name: str) -> None:
        self.data.pop(name, None)

    def get(self, name: str) -> bytes:
        if name not in self.data:
            raise FileNotFoundError(name)
        return self.data[name]


class StagedBucket:
    """The bucket as an actor sees it; `hides` tells how many of the newest names a listing leaves out."""

    url = "simulated:"

    def __init__(self, stage: Stage, objects: Objects, hides: Callable[[], int]) -> None:
        self._stage = stage
        self._objects = objects
        self._hides = hides

    def create(self, name: str, data: bytes) -> bool:
        return self._do(Kind.CREATE, name, lambda: self._objects.create(name, data), exists=False)

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        data = b"".join(memoryview(piece) for piece in pieces)
        self._do(Kind.PUT, name, lambda: self._objects.put(name, data))

    def read(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self._do(Kind.READ, name, lambda: self._objects.get(name)))

    def open(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(name))

    def delete(self, name: str) -> None:
        self._do(Kind.DELETE, name, lambda: self._objects.delete(name))

    def modified(self, name: str) -> float:
        self._do(Kind.READ, name, lambda: self._objects.get(name))
        return self._objects.written[name]

    def list(self, prefix: str) -> Sequence[str]:
        names = self._do(Kind.LIST, prefix, lambda: [name for name in self._objects.data if name.startswith(prefix)])
        names.sort(key=self._objects.written.__getitem__)
        return names[: len(names) - self._hides()]

    def folders(self, prefix: str) -> Sequence[str]:
        rests = (name.removeprefix(prefix) for name in self.list(prefix))
        return sorted({f"{prefix}{rest.partition('/')[0]}/" for rest in rests if "/" in rest})

    def leftovers(self, prefix: str = "") -> Sequence[tuple[str, float]]:
        return ()

    def _do(self, kind: Kind, name: str, act: Callable[[], _T], *, exists: _T | None = None) -> _T:
        return self._stage.perform(kind, _UNIQUE.sub("", name), act, exists=exists)


class StagedLog:
    """The log as an actor sees it; `most` tells how many records a poll gives at most."""

    def __init__(self, stage: Stage, log: MemoryLog, most: Callable[[], int]) -> None:
        self.stage = stage
        self.log = log
        self.most = most
        self.members: list[MemoryGroupReader] = []

    def create(self, topic: str, *, partitions: int = 1, compacted: bool = False) -> TopicInfo:
        return self.look(topic, lambda: self.log.create(topic, partitions=partitions, compacted=compacted))

    def describe(self, topic: str) -> TopicInfo:
        return self.look(topic, lambda: self.log.describe(topic))

    def appender(self) -> StagedAppender:
        return StagedAppender(self)

    def reader(self) -> StagedReader:
        return StagedReader(self)

    def group(self, topic: str, group: str, listener: GroupListener, *, instance: str | None = None) -> StagedMember:
        member = self.log.group(topic, group, listener, instance=instance)
        self.members.append(member)
        return StagedMember(self, member)

    def close(self) -> None:
        """There is nothing to let go of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def look(self, what: str, act: Callable[[], _T]) -> _T:
        return self.stage.perform(Kind.LOOK, what, act)


class StagedAppender:
    """Appends when the director has it."""

    def __init__(self, seen: StagedLog) -> None:
        self._seen = seen
        self._inner = seen.log.appender()

    def append(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
    ) -> Future[Appended]:
        def act() -> Appended:
            return self._seen.log.append(topic, partition, key, value, headers)

        future: Future[Appended] = Future()
        kind = dict(headers).get("kind", b"?").decode(errors="replace")
        try:
            future.set_result(self._seen.stage.perform(Kind.APPEND, f"{topic}-{partition} {kind}", act))
        except PenstockError as error:
            future.set_exception(error)
        return future

    def close(self, timeout: float = 10.0) -> None:
        self._inner.close(timeout)


class StagedReader:
    """Reads when the director has it."""

    def __init__(self, seen: StagedLog) -> None:
        self._seen = seen
        self._inner = seen.log.reader()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._inner.seek(topic, partition, offset)

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        return self._seen.stage.perform(Kind.POLL, "reader", lambda: self._inner.poll(0, max_records))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._seen.look("bounds", lambda: self._inner.bounds(topic, partition))

    def close(self) -> None:
        self._inner.close()


class StagedMember:
    """A member of the group."""

    def __init__(self, seen: StagedLog, inner: MemoryGroupReader) -> None:
        self._seen = seen
        self._inner = inner

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        most = min(max_records, self._seen.most())
        # What the listener does in there are operations of their own: they meet their own faults.
        self._seen.stage.perform(Kind.POLL, "group", lambda: None)
        return self._inner.poll(0, most)

    def attend(self) -> None:
        self._seen.stage.perform(Kind.POLL, "group's changes", lambda: None)
        self._inner.attend()

    def seek(self, partition: int, offset: int) -> None:
        self._inner.seek(partition, offset)

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._seen.look("bounds", lambda: self._inner.bounds(partition))

    def end(self, partition: int) -> int | None:
        return self._inner.end(partition)

    def report(self, offsets: Mapping[int, int]) -> None:
        self._inner.report(offsets)

    def close(self) -> None:
        self._inner.close()
