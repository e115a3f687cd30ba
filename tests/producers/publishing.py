"""What tests of publishing need: batches to publish, an observer, logs that misbehave, and the log read back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.partition import Partition
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.verify import Report, verify
from penstock_producers.envs import Answer, Rows
from penstock_producers.fragment import ActingPolicy, Fragment
from penstock_producers.publisher import Publisher, PublishLimits
from penstock_schemas.errors import LogUnavailableError
from penstock_schemas.log.memory import MemoryAppender, MemoryLog
from penstock_schemas.messages import Message, decode
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow as pa

    from penstock_consumers.assemble import Episodes
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Appended, Log, Record
    from penstock_schemas.messages import Encoded

SECONDS = 60.0
STREAM = "test"
TOPIC = f"rollouts.{STREAM}"
SPEC = StreamSpec(STREAM, Box((2,), np.dtype(np.float32)), Discrete(2), np.dtype(np.float32))
_ENVS = 4


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fails after `SECONDS`."""
    deadline, never = time.monotonic() + SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold in time"
        never.wait(0.005)


class Source:
    """Batches of rows of four envs without an end; each reward is the number of its step among all."""

    def __init__(self, steps: int = 10, message_bytes: int = 1 << 19) -> None:
        self._steps = steps
        self._fragment = Fragment(SPEC, _ENVS, steps, message_bytes)
        self._env = np.arange(_ENVS, dtype=np.int32)
        self.steps = 0
        self._fragment.use(ActingPolicy(0, bytes(32)))
        self._append(first=True)

    def batches(self) -> tuple[pa.RecordBatch, ...]:
        for _ in range(self._steps):
            self._append(first=False)
            self.steps += _ENVS
        return self._fragment.close().batches

    def _append(self, *, first: bool) -> None:
        never = np.zeros(_ENVS, np.bool_)
        reward = np.arange(self.steps, self.steps + _ENVS, dtype=np.float32)
        observation = np.stack([reward, self._env], axis=1)
        rows = Rows(self._env, (observation,), reward, never, never, np.full(_ENVS, first))
        if first:
            self._fragment.append(Answer(None, (), rows, self._env, rows.observation))
            return
        self._fragment.sent(self._env, [np.zeros(_ENVS, np.int64)])
        self._fragment.append(Answer(rows, (), None, self._env, rows.observation))


@dataclass
class Observer:
    """Notes all that it is told."""

    messages: list[tuple[Encoded, float]] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def published(self, encoded: Encoded, seconds: float) -> None:
        self.messages.append((encoded, seconds))

    def waiting(self, reason: str | None) -> None:
        self.reasons.append(reason)

    def in_flight(self, size: int) -> None:
        self.sizes.append(size)


def publisher(
    log: Log,
    observer: Observer,
    *,
    producer: str = "pod-0",
    limits: PublishLimits | None = None,
    while_waiting: Callable[[], None] = lambda: None,
) -> Publisher:
    return Publisher(
        log,
        TOPIC,
        SPEC,
        producer,
        limits=limits or PublishLimits(),
        observer=observer,
        while_waiting=while_waiting,
        clock=time.monotonic,
    )


class FaultyLog(MemoryLog):
    """A log that appends, but does not say so: with an error, or not before `answer`, or until its appender is closed.

    Appends are numbered over all appenders. Those that hang do not return before `released`, and append nothing.
    """

    def __init__(
        self, *, lost: Collection[int] = (), unanswered: Collection[int] = (), hanging: Collection[int] = ()
    ) -> None:
        super().__init__()
        self.lost = lost
        self.unanswered = unanswered
        self.hanging = hanging
        self.waiting: list[tuple[Future[Appended], Appended]] = []
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.numbers = count()
        self.closed = 0

    def answer(self) -> None:
        """Acknowledge what was left unanswered."""
        for future, appended in self.waiting:
            future.set_result(appended)
        self.waiting.clear()

    def appender(self) -> _FaultyAppender:
        return _FaultyAppender(self)


class _FaultyAppender(MemoryAppender):
    def __init__(self, log: FaultyLog) -> None:
        super().__init__(log)
        self._faulty = log

    def append(self, topic: str, partition: int, **record: Any) -> Future[Appended]:
        number = next(self._faulty.numbers)
        if number in self._faulty.hanging:
            self._faulty.hangs.set()
            self._faulty.released.wait()
            if self._faulty.outage:
                raise LogUnavailableError("still away")
        appended = super().append(topic, partition, **record)
        if number in self._faulty.lost:
            appended = Future()
            appended.set_exception(LogUnavailableError(f"the acknowledgement of append {number} is lost"))
        if number in self._faulty.unanswered:
            late: Future[Appended] = Future()
            self._faulty.waiting.append((late, appended.result()))
            return late
        return appended

    def close(self, timeout: float = 10.0) -> None:
        super().close(timeout)
        self._faulty.closed += 1
        for future, _ in self._faulty.waiting:
            future.set_exception(LogUnavailableError("the appender was closed"))


def records(log: Log, topic: str = TOPIC) -> list[Record]:
    """All that a topic holds, partition by partition."""
    reader = log.reader()
    found: list[Record] = []
    for partition in range(log.describe(topic).partitions):
        offset, end = reader.bounds(topic, partition)
        reader.seek(topic, partition, offset)
        while offset < end:
            polled = [record for record in reader.poll(1.0) if record.partition == partition]
            found += polled
            offset = polled[-1].offset + 1 if polled else offset
    reader.close()
    return found


def messages(log: Log, topic: str = TOPIC) -> list[Message]:
    """All messages of a topic, each found valid."""
    return [decode(record, None) for record in records(log, topic)]


@dataclass(frozen=True)
class Stored:
    """What a consumer makes of a stream, once it has read all of it."""

    report: Report
    counters: Counter[str]
    episodes: list[dict[str, Any]]
    """Rows of the segments."""
    bucket: Bucket


def store(log: Log, stream: str = STREAM) -> Stored:
    """Read all of a stream into a store, and verify that."""
    bucket = open_bucket("memory://")
    topic = log.describe(f"rollouts.{stream}")
    replay_store = ReplayStore(bucket, stream, topic)
    rows: list[dict[str, Any]] = []

    def keep(episodes: Episodes) -> None:
        rows.extend(episodes.batch.to_pylist())

    partitions = [
        Partition(replay_store, number, _NoQuarantine(), Limits(), assembled=keep) for number in range(topic.partitions)
    ]
    for record in records(log, topic.name):
        partitions[record.partition].take(record)
    counters: Counter[str] = Counter()
    for partition in partitions:
        partition.commit()
        counters.update(partition.counters)
    return Stored(verify(bucket, log), counters, rows, bucket)


class _NoQuarantine:
    def add(self, record: Record, rejected: RejectedError) -> None:
        raise AssertionError(f"offset {record.offset} is invalid: {rejected}")

    def flush(self) -> None:
        pass
