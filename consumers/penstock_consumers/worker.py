"""A member of the group: the partitions that it holds, each from its newest commit to its next."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition, record_digest
from penstock_schemas.errors import FencedError, LogUnavailableError, PenstockError, TopicError
from penstock_schemas.messages import encode_tick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_consumers.metrics import ConsumerMetrics
    from penstock_consumers.store.commits import Limits
    from penstock_consumers.store.replay_store import ReplayStore
    from penstock_schemas.log import GroupReader, Log, Record

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
_LAG_SECONDS = 2.0
_READ_BACK_SECONDS = 30.0
# The log's clock takes at most a quarter of the idle limit from one record; ticks come no less often.
_TICKS_PER_LIMIT = 4


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a partition's consumer commits: after so many seconds, or so many bytes of messages."""

    commit_seconds: float = 1.0
    commit_bytes: int = 32 << 20


@dataclass(slots=True)
class _Held:
    """A partition that this member holds, and what its clock knows of it."""

    partition: Partition
    last_record: float
    dirty_since: float | None = None
    timestamp_ms: int = 0
    counted: dict[str, int] = field(default_factory=dict)


class Worker:
    """Reads the partitions that the group gives it, and commits what it read.

    Crash-only: whatever it raises, `abandon` it and make a new one.

    Its clocks (`clock`: monotonic; `wall`: since the epoch; both in seconds) decide when it commits and when it ticks,
    never what is stored.
    """

    def __init__(
        self,
        log: Log,
        store: ReplayStore,
        dead_letter_topic: str,
        *,
        group: str,
        limits: Limits,
        cadence: Cadence,
        metrics: ConsumerMetrics,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._log = log
        self._store = store
        self._topic = store.topic.name
        self._limits = limits
        self._cadence = cadence
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._appender = log.appender()
        self._dead_letters = DeadLetters(self._appender, dead_letter_topic, store.topic.topic_id)
        self._held: dict[int, _Held] = {}
        self._next_lag = 0.0
        self._group: GroupReader = log.group(self._topic, group, self)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this member holds."""
        return tuple(sorted(self._held))

    @property
    def committed(self) -> dict[int, int]:
        """The high-water marks of the newest commits of these partitions; those without a commit are left out."""
        found = {number: held.partition.commit_found for number, held in self._held.items()}
        return {number: commit.high_water for number, commit in found.items() if commit is not None}

    def run_once(self) -> None:
        """Poll once, judge what came, commit what is due."""
        self._take(self._group.poll(_POLL_SECONDS))
        now = self._clock()
        for number in list(self._held):
            if self._is_due(self._held[number], now) and not self._commit(number):
                self._reload(number)
            self._tick_if_quiet(number, self._held[number], now)
        if now >= self._next_lag:
            self._next_lag = now + _LAG_SECONDS
            self._measure_lag()

    def close(self) -> None:
        """Commit what was read, and leave the group."""
        try:
            self._group.close()
        finally:
            self._appender.close()

    def abandon(self) -> None:
        """Leave the group without a commit; whoever holds the partitions next reads again what was not committed."""
        self.lost(self.partitions)
        with suppress(PenstockError):
            self.close()

    def assigned(self, partitions: Sequence[int]) -> dict[int, int]:
        """Load partitions from the store; the group's own offsets are never asked for."""
        for number in partitions:
            self._hold(number)
        _LOG.info("holds the partitions %s", list(self.partitions))
        return {number: self._held[number].partition.high_water for number in partitions}

    def revoked(self, partitions: Sequence[int]) -> None:
        """Commit what was read of partitions, and let them go."""
        for number in partitions:
            if number in self._held:
                self._commit(number)
        self.lost(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        """Let partitions go; whoever holds them now begins at their newest commit."""
        for number in partitions:
            if self._held.pop(number, None) is not None:
                self._metrics.released(number)

    def _take(self, records: Sequence[Record]) -> None:
        now = self._clock()
        self._metrics.read(sum(record.size for record in records))
        reloaded: set[int] = set()
        for record in records:
            held = self._held.get(record.partition)
            # What was polled before a reload does not follow on where the partition goes on now.
            if held is None or record.partition in reloaded:
                continue
            held.partition.take(record)
            held.last_record = now
            held.timestamp_ms = record.timestamp_ms
            if held.dirty_since is None:
                held.dirty_since = now
            if held.partition.pending_bytes >= self._cadence.commit_bytes and not self._commit(record.partition):
                self._reload(record.partition)
                reloaded.add(record.partition)

    def _is_due(self, held: _Held, now: float) -> bool:
        return held.dirty_since is not None and now - held.dirty_since >= self._cadence.commit_seconds

    def _commit(self, number: int) -> bool:
        """Commit what was read of a partition; False where another consumer's commit discards it."""
        held = self._held[number]
        started = self._clock()
        try:
            committed = held.partition.commit()
        except FencedError as error:
            _LOG.warning("%s", error)
            self._metrics.fenced()
            return False
        held.dirty_since = None
        if committed is not None:
            self._metrics.committed(committed, self._clock() - started)
            self._metrics.counted(committed.commit.counters, held.counted)
            held.counted = committed.commit.counters
            self._group.report({number: committed.commit.high_water})
        return True

    def _hold(self, number: int) -> None:
        partition = self._load(number)
        found = partition.commit_found
        self._held[number] = _Held(
            partition,
            self._clock(),
            timestamp_ms=found.last.timestamp_ms if found and found.last else 0,
            counted=dict(found.counters) if found else {},
        )

    def _reload(self, number: int) -> None:
        self._hold(number)
        self._group.seek(number, self._held[number].partition.high_water)

    def _load(self, number: int) -> Partition:
        partition = Partition(self._store, number, self._dead_letters, self._limits)
        reader = self._log.reader()
        try:
            start, end = reader.bounds(self._topic, number)
            self._check_same_log(partition, end)
            if start > partition.high_water:
                _LOG.error(
                    "partition %d: the log begins at offset %d, the store has read up to %d: %d offsets are lost",
                    *(number, start, partition.high_water, start - partition.high_water),
                )
                partition.skip_to(start)
            elif partition.commit_found is not None and partition.high_water > start:
                reader.seek(self._topic, number, partition.high_water - 1)
                self._check_last_record(partition, reader.poll(_READ_BACK_SECONDS, 1))
        finally:
            reader.close()
        return partition

    def _check_same_log(self, partition: Partition, end: int) -> None:
        commit = partition.commit_found
        if commit is None:
            return
        topic = self._store.topic
        if (commit.topic_id, commit.cluster_id) != (topic.topic_id, topic.cluster_id):
            raise TopicError(
                f"topic {topic.name!r}: its id is {topic.topic_id} in cluster {topic.cluster_id}, commit {commit.name} "
                f"was read from {commit.topic_id} in {commit.cluster_id}: it was recreated; begin a new store"
            )
        if end < partition.high_water:
            raise TopicError(
                f"topic {topic.name!r}, partition {partition.partition}: it ends at offset {end}, the store has read "
                f"up to {partition.high_water}: the log lost its end; begin a new store and topic"
            )

    def _check_last_record(self, partition: Partition, records: Sequence[Record]) -> None:
        commit = partition.commit_found
        if not records:
            raise LogUnavailableError(
                f"topic {self._topic!r}, partition {partition.partition}: no answer for offset "
                f"{partition.high_water - 1} within {_READ_BACK_SECONDS:g} s"
            )
        last = commit.last if commit else None
        record = records[0]
        found = (record.offset, record.timestamp_ms, record_digest(record))
        if last is not None and found != (last.offset, last.timestamp_ms, last.digest):
            raise TopicError(
                f"topic {self._topic!r}, partition {partition.partition}: the record at offset {record.offset} is not "
                "the one that the store has read: the log was rewritten; begin a new store and topic"
            )

    def _tick_if_quiet(self, number: int, held: _Held, now: float) -> None:
        """Append a record where none comes, so that the log's time goes on and idle episodes end."""
        quiet = now - held.last_record
        if quiet * _TICKS_PER_LIMIT * 1000 >= self._limits.idle_limit_ms and held.partition.open_episodes:
            held.last_record = now
            tick = encode_tick()
            self._appender.append(self._topic, number, key=b"tick", headers=tick.headers)

    def _measure_lag(self) -> None:
        for number, held in self._held.items():
            end = self._group.end(number)
            if end is None:
                continue
            behind = end > held.partition.high_water
            seconds = max(self._wall() - held.timestamp_ms / 1000, 0.0) if behind and held.timestamp_ms else 0.0
            commit = held.partition.commit_found
            stored = commit.high_water if commit else 0
            self._metrics.lagging(number, end - stored, seconds, held.partition.open_episodes)
