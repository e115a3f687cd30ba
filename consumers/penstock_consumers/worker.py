"""A member of the group: the partitions that it holds, each from its newest commit to its next."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock_consumers.beside import Call
from penstock_consumers.breaker import Breaker
from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.held import Held, take_on
from penstock_consumers.partition import Partition
from penstock_schemas.errors import FencedError, PenstockError, StoreUnavailableError
from penstock_schemas.messages import encode_tick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_consumers.metrics import ConsumerMetrics
    from penstock_consumers.partition import Committed
    from penstock_consumers.store.commits import Limits
    from penstock_consumers.store.replay_store import ReplayStore
    from penstock_consumers.upkeep import Kept
    from penstock_schemas.log import GroupReader, Log, Record

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
_LAG_SECONDS = 2.0
# How long the store may be silent in a call: longer than an object store is given for a request and its repetitions.
_STORE_SECONDS = 150.0
# The log's clock takes at most a quarter of the idle limit from one record; ticks come no less often.
_TICKS_PER_LIMIT = 4
# After so many times its period, upkeep is due though there is a backlog.
_STARVED = 10


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a consumer commits, and how long it waits for the store.

    A partition is committed `commit_seconds` after its first new record; the fullest is where the messages that wait,
    in all partitions together, come to `commit_bytes`. Upkeep comes every `upkeep_seconds`, at most.

    With `revoke_seconds`, no call of the store holds up the group: it is made in a thread of its own, and after so long
    a partition that was to be given up is let go though its commit has not come back, and one that was to be taken on
    is loaded on beside the group. Without, calls are made in the worker's thread, and take the time that they take.
    """

    commit_seconds: float = 1.0
    commit_bytes: int = 32 << 20
    upkeep_seconds: float = 10.0
    revoke_seconds: float | None = None


class Keeper(Protocol):
    """What keeps a store's files and bytes bounded; see `penstock_consumers.upkeep.Upkeep`."""

    def run(self, partition: Partition) -> Kept:
        """Do what is due in a partition."""
        ...


class Worker:
    """Reads the partitions that the group gives it, and commits what it read.

    Crash-only: whatever it raises, `abandon` it and make a new one.

    Its clocks (`clock`: monotonic; `wall`: since the epoch; both in seconds) decide when it commits and when it ticks,
    never what is stored.

    Args:
        log: where the records are.
        store: where the episodes go.
        dead_letter_topic: where the records go that are not valid.
        group: the consumer group.
        limits: what is taken, and how long a producer may be silent.
        cadence: when it commits.
        metrics: what it tells of itself.
        clock: monotonic.
        wall: since the epoch.
        instance: this member's name in the group where it outlives its process.
        max_bad_share: which share of a partition's last messages may be bad before it raises `BadStreamError`.
        upkeep: what it calls between the commits of a partition.
        beat: called again and again while it waits for the store.
        stopping: asked as often whether it is to be closed; what it waits for is then left to `close`.
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
        instance: str | None = None,
        max_bad_share: float = 1.0,
        upkeep: Keeper | None = None,
        beat: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._topic = store.topic.name
        self._dead_letter_topic = dead_letter_topic
        self._limits = limits
        self._cadence = cadence
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._max_bad_share = max_bad_share
        self._upkeep = upkeep
        self._beat = beat
        self._stopping = stopping
        self._appender = log.appender()
        self._held: dict[int, Held] = {}
        # Partitions that the group gave this member, or that another's commit overtook, until they are held.
        self._loading: dict[int, Call[Partition]] = {}
        self._pending_bytes = 0
        self._next_lag = 0.0
        try:
            self._group: GroupReader = log.group(self._topic, group, self, instance=instance)
        except BaseException:
            self._appender.close(0)
            raise

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
        for number, held in list(self._held.items()):
            if self._holds(number, held) and self._is_due(held, now):
                self._commit(number)
        for number, held in list(self._held.items()):
            self._tick_if_quiet(number, held, now)
        self._keep_up(now)
        for number, call in list(self._loading.items()):
            self._take_on_late(number, call)
        if now >= self._next_lag:
            self._next_lag = now + _LAG_SECONDS
            self._measure()

    def close(self) -> None:
        """Commit what was read, and leave the group."""
        try:
            self._group.close()
        finally:
            self._appender.close()

    def abandon(self) -> None:
        """Leave the group without a commit; whoever holds the partitions next reads again what was not committed."""
        self._let_go(self.partitions)
        with suppress(PenstockError):
            self.close()

    def assigned(self, partitions: Sequence[int]) -> dict[int, int]:
        """Load partitions from the store; the group's own offsets are never asked for.

        What the store does not load in time is read from the log's end, and dropped, until it is loaded.
        """
        for number in partitions:
            self._load(number)
        deadline = self._deadline()
        for number in partitions:
            if self._loading[number].done(max(deadline - time.monotonic(), 0)):
                self._take_on(number)
        self._metrics.moved("assigned", len(partitions))
        _LOG.info("holds the partitions %s", list(self.partitions))
        return {number: self._begin(number) for number in partitions}

    def revoked(self, partitions: Sequence[int]) -> None:
        """Commit what was read of partitions, as far as the store lets it in time, and let them go."""
        leaving = {number: self._held[number] for number in partitions if number in self._held}
        commits = {number: self._committing(held) for number, held in leaving.items()}
        deadline = self._deadline()
        late = []
        for number, held in leaving.items():
            if commits[number].done(max(deadline - time.monotonic(), 0)):
                self._settle(number, held, commits[number])
            else:
                late.append(number)
        if late:
            _LOG.warning(
                "gives the partitions %s up with what was not committed: the store has not answered for %g s",
                *(late, self._cadence.revoke_seconds),
            )
        self._metrics.moved("given_up", len(late))
        self._metrics.moved("revoked", len(partitions) - len(late))
        self._let_go(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        """Let partitions go; whoever holds them now begins at their newest commit."""
        self._metrics.moved("lost", len(partitions))
        self._let_go(partitions)

    def _let_go(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            self._loading.pop(number, None)
            if self._held.pop(number, None) is not None:
                self._metrics.released(number)
        self._count_pending()

    def _take(self, records: Sequence[Record]) -> None:
        now = self._clock()
        self._metrics.read(sum(record.size for record in records))
        polled_for = dict(self._held)
        for record in records:
            held = polled_for.get(record.partition)
            # What was polled does not follow on where a partition was loaded again in between.
            if held is None or not self._holds(record.partition, held):
                continue
            before = held.partition.pending_bytes
            held.take(record, now)
            self._pending_bytes += held.partition.pending_bytes - before
            if self._pending_bytes >= self._cadence.commit_bytes:
                self._commit(max(self._held, key=lambda number: self._held[number].partition.pending_bytes))

    def _holds(self, number: int, held: Held) -> bool:
        return self._held.get(number) is held

    def _is_due(self, held: Held, now: float) -> bool:
        return held.dirty_since is not None and now - held.dirty_since >= self._cadence.commit_seconds

    def _commit(self, number: int) -> None:
        """Commit what was read of a partition; load it again where another's commit discards that."""
        held = self._held[number]
        call = self._committing(held)
        ended = self._wait(call, lambda: self._holds(number, held), f"partition {number} cannot be committed")
        if ended and not self._settle(number, held, call):
            self._load(number)

    def _committing(self, held: Held) -> Call[tuple[Committed | None, float]]:
        """Begin to commit, once what is under way in the partition is over, unless that is a commit."""
        if held.committing is None:
            under_way, started = held.upkeep, self._clock()

            def commit() -> tuple[Committed | None, float]:
                if under_way is not None:
                    under_way.done()
                return held.partition.commit(), self._clock() - started

            held.committing = self._beside(commit)
        return held.committing

    def _settle(self, number: int, held: Held, call: Call[tuple[Committed | None, float]]) -> bool:
        """Take note of how a commit went; False where it was another's."""
        try:
            committed, seconds = call.result()
        except FencedError as error:
            self._fenced(error)
            return False
        finally:
            held.committing = None
        held.committed()
        self._count_pending()
        if committed is not None:
            self._metrics.committed(committed, seconds)
            self._metrics.counted(committed.commit.counters, held.counted)
            held.counted = committed.commit.counters
            self._group.report({number: committed.commit.high_water})
        return True

    def _fenced(self, error: FencedError) -> None:
        _LOG.warning("%s", error)
        self._metrics.fenced()

    def _load(self, number: int) -> None:
        """Begin to load a partition from its newest commit; what is held of it is let go."""

        def load() -> Partition:
            # Letters of its own, so that one that is given up waits for nobody else's.
            letters = DeadLetters(self._appender, self._dead_letter_topic, self._store.topic.topic_id)
            return Partition(self._store, number, letters, self._limits, Breaker(self._max_bad_share))

        self._let_go([number])
        self._loading[number] = self._beside(load)

    def _take_on_late(self, number: int, call: Call[Partition]) -> None:
        """Take on a partition for which the group has not waited, unless it takes that away."""
        if self._wait(call, lambda: self._loading.get(number) is call, f"partition {number} cannot be taken on"):
            self._take_on(number)
            self._group.seek(number, self._begin(number))
            _LOG.info("holds the partitions %s", list(self.partitions))

    def _take_on(self, number: int) -> None:
        """Hold a partition that was loaded; load it again where another's commit has overtaken that."""
        try:
            loaded = self._loading[number].result()
        except FencedError as error:
            self._fenced(error)
            self._load(number)
            return
        # Asked for after the newest commit was found, whose records the log had by then.
        bounds = self._group.bounds(number)
        now = self._clock()
        upkeep_at = now + self._cadence.upkeep_seconds
        self._held[number] = take_on(loaded, self._store.topic, bounds, now=now, upkeep_at=upkeep_at)
        del self._loading[number]
        self._count_pending()

    def _begin(self, number: int) -> int:
        """From where to read a partition: its log's end, and nothing of it is taken, until it is held."""
        held = self._held.get(number)
        return held.begin if held else self._group.bounds(number)[1]

    def _keep_up(self, now: float) -> None:
        """Keep up the partition that has waited longest for it, of those whose commits are not late as it is."""
        if self._upkeep is None:
            return
        due = [item for item in self._held.items() if self._is_upkeep_due(*item, now)]
        if not due:
            return
        number, held = min(due, key=lambda item: item[1].next_upkeep)
        keep, before = self._upkeep.run, held.partition.commit_found
        held.upkeep = call = self._beside(lambda: keep(held.partition))
        if not self._wait(call, lambda: self._holds(number, held), f"partition {number} cannot be kept up"):
            return
        held.upkeep = None
        try:
            kept = call.result()
        except FencedError as error:
            self._fenced(error)
            self._load(number)
            return
        held.next_upkeep = now if kept.rewritten else now + self._cadence.upkeep_seconds
        self._metrics.kept_up(before, held.partition.commit_found, kept.collected, self._clock() - now)

    def _is_upkeep_due(self, number: int, held: Held, now: float) -> bool:
        waited = now - held.next_upkeep
        starved = waited >= (_STARVED - 1) * self._cadence.upkeep_seconds
        return waited >= 0 and (starved or not self._is_behind(number, held))

    def _is_behind(self, number: int, held: Held) -> bool:
        """Whether more records wait in the log than the last commit took."""
        end = self._group.end(number)
        return end is not None and end - held.partition.high_water > max(held.records_committed, 1)

    def _beside(self, function: Callable[[], Any]) -> Call[Any]:
        return Call(function, beside=self._cadence.revoke_seconds is not None)

    def _deadline(self) -> float:
        """Until when the group may be held up from now on."""
        return time.monotonic() + (self._cadence.revoke_seconds or 0)

    def _wait(self, call: Call[Any], wanted: Callable[[], bool], told: str) -> bool:
        """Wait for the store, and take part in the group meanwhile; False once that makes the call unwanted.

        The group may take any partition away. Nor is anything waited for when this is to be closed.
        """
        while wanted() and not call.done(_POLL_SECONDS):
            if self._stopping():
                return False
            if time.monotonic() - call.answered > _STORE_SECONDS:
                raise StoreUnavailableError(
                    f"store {self._store.bucket.url}: no answer for {_STORE_SECONDS:g} s: {told}"
                )
            self._beat()
            self._group.attend()
        return wanted()

    def _count_pending(self) -> None:
        self._pending_bytes = sum(held.partition.pending_bytes for held in self._held.values())

    def _tick_if_quiet(self, number: int, held: Held, now: float) -> None:
        """Append a record where none comes, so that the log's time goes on and idle episodes end."""
        quiet = now - held.last_record
        if quiet * _TICKS_PER_LIMIT * 1000 >= self._limits.idle_limit_ms and held.partition.open_episodes:
            held.last_record = now
            tick = encode_tick()
            self._appender.append(self._topic, number, key=b"tick", headers=tick.headers)

    def _measure(self) -> None:
        for number, held in self._held.items():
            self._metrics.holding(number, held.partition.live, held.partition.open_episodes)
            end = self._group.end(number)
            if end is None:
                continue
            behind = end > held.partition.high_water
            seconds = max(self._wall() - held.timestamp_ms / 1000, 0.0) if behind and held.timestamp_ms else 0.0
            commit = held.partition.commit_found
            self._metrics.lagging(number, end - (commit.high_water if commit else 0), seconds)
