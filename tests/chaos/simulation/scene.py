"""A scene written out step by step: one log, one bucket, and workers that go on only when they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.worker import Cadence, Worker
from penstock_schemas.errors import StoreUnavailableError
from penstock_schemas.log.memory import MemoryLog
from tests.chaos.audit.auditor import audit
from tests.chaos.audit.objects import bucket_objects
from tests.chaos.audit.records import LogRecord, memory_records
from tests.consumers.messages import (
    DEAD_LETTERS,
    STREAM,
    TOPIC,
    Clock,
    ScriptedProducer,
    WrappedBucket,
    stored_episodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit
    from tests.chaos.audit.report import Audit

IDLE_MS = 1_000
GROUP = "group"


class StubbornBucket(WrappedBucket):
    """A bucket whose next creations of commits meet what a test has for them."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.befalls: list[Callable[[str, bytes], bool]] = []
        self.late: list[Callable[[], object]] = []

    def create(self, name: str, data: bytes) -> bool:
        if name.startswith("commits/") and self.befalls:
            return self.befalls.pop(0)(name, data)
        return self.inner.create(name, data)

    def times_out(self, name: str, data: bytes) -> bool:
        """The request is under way still, though its caller no longer waits."""
        self.late.append(lambda: self.inner.create(name, data))
        raise StoreUnavailableError(f"create {name}: no answer")

    def loses_answer(self, name: str, data: bytes) -> bool:
        self.inner.create(name, data)
        raise StoreUnavailableError(f"create {name}: no answer")

    def retries_by_itself(self, name: str, data: bytes) -> bool:
        self.inner.create(name, data)
        return False


class Scene:
    """Everything that a scene needs; `audit` judges what it leaves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.log = MemoryLog(clock=self.clock)
        self.log.create(TOPIC)
        self.log.create(DEAD_LETTERS)
        self.bucket = StubbornBucket(open_bucket("memory://"))
        self.idle_limits = {IDLE_MS}
        self.trimmed: dict[int, int] = {}
        self.kept: list[LogRecord] = []
        self.registries: dict[Worker, CollectorRegistry] = {}

    def producer(self, name: str = "producer-0") -> ScriptedProducer:
        producer = ScriptedProducer(self.log, name)
        producer.begin()
        return producer

    def worker(self, idle_ms: int = IDLE_MS, commit_seconds: float = 0, bucket: Bucket | None = None) -> Worker:
        """A member that joins with its first poll."""
        self.idle_limits.add(idle_ms)
        registry = CollectorRegistry()
        worker = Worker(
            self.log,
            ReplayStore(bucket or self.bucket, STREAM, self.log.describe(TOPIC)),
            DEAD_LETTERS,
            group=GROUP,
            limits=Limits(idle_limit_ms=idle_ms),
            cadence=Cadence(commit_seconds=commit_seconds),
            metrics=ConsumerMetrics(registry),
            clock=self.clock,
            wall=self.clock,
        )
        self.registries[worker] = registry
        return worker

    def evict(self, worker: Worker) -> None:
        """The worker's session ends, and it does not know."""
        self.log.evict(worker._group)  # type: ignore[arg-type]  # it is the log's own

    def fenced(self, worker: Worker) -> float | None:
        """How many commits a worker lost to another."""
        return self.registries[worker].get_sample_value("penstock_consumer_commits_fenced_total")

    def trim(self, offset: int) -> None:
        self.kept += [record for record in memory_records(self.log, TOPIC)[0] if record.offset < offset]
        self.log.trim(TOPIC, 0, offset)
        self.trimmed[0] = offset

    def newest(self) -> Commit | None:
        return commits.newest(self.bucket.inner, 0)

    def stored(self) -> list[tuple[Any, ...]]:
        """Every stored episode: its name, its length, how it ended."""
        names = ("incarnation", "env", "episode", "length", "ends", "abort_reason")
        return [tuple(row[name] for name in names) for row in stored_episodes(self.bucket.inner)]

    def audit(self) -> Audit:
        records = memory_records(self.log, TOPIC)
        return audit(
            {0: [*self.kept, *records[0]]},
            bucket_objects(self.bucket.inner),
            idle_limit_ms=self.idle_limits,
            dead_letters=memory_records(self.log, DEAD_LETTERS)[0],
            first_offsets=self.trimmed,
        )
