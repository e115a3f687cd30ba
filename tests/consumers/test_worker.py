from __future__ import annotations

import random
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.held import take_on
from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.upkeep import Upkeep, UpkeepSettings
from penstock_consumers.verify import verify
from penstock_consumers.worker import Cadence, Worker
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import (
    BadStreamError,
    LogUnavailableError,
    StoreMismatchError,
    StoreUnavailableError,
    TopicError,
)
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Encoded
from tests.consumers.messages import (
    DEAD_LETTERS,
    STREAM,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    WrappedBucket,
    append,
    append_garbage,
    append_tick,
    open_partition,
    records,
    stored_episodes,
    take_all,
)
from tests.consumers.upkept import overtaken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.upkeep import Kept
    from penstock_consumers.upkeep.head import Rewritable
    from penstock_schemas.log import Appended

PARTITIONS = 4
IDLE_MS = 1_000
SECONDS = 60.0
GROUP = "group"
WHOLE = Row(0, 0, 0, 0, 3, Ends.TERMINATED)
AT_ONCE = Cadence(commit_seconds=0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> MemoryLog:
    log = MemoryLog(clock=clock)
    log.create(TOPIC, partitions=PARTITIONS)
    log.create(DEAD_LETTERS)
    return log


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


class Member:
    """A worker, and what it tells of itself."""

    def __init__(
        self,
        log: MemoryLog,
        bucket: Bucket,
        clock: Callable[[], float],
        cadence: Cadence = AT_ONCE,
        **settings: Any,
    ) -> None:
        self.registry = CollectorRegistry()
        self.log = log
        self.worker = Worker(
            log,
            ReplayStore(bucket, STREAM, log.describe(TOPIC)),
            DEAD_LETTERS,
            group=GROUP,
            limits=Limits(idle_limit_ms=IDLE_MS),
            cadence=cadence,
            metrics=ConsumerMetrics(self.registry),
            clock=clock,
            wall=clock,
            **settings,
        )

    def run(self, polls: int = 1) -> None:
        for _ in range(polls):
            self.worker.run_once()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_consumer_{name}", labels)


def drain(log: MemoryLog, bucket: Bucket, *members: Member, clock: Clock | None = None) -> None:
    """Let the members go on until the store has all that the log has; with `clock`, time goes on as well."""
    for _ in range(60):
        if clock:
            clock.advance(0.1)
        for member in members:
            member.run()
        if all(high_water(bucket, number) == log.bounds(TOPIC, number)[1] for number in range(PARTITIONS)):
            return
    raise AssertionError("the members did not come to the log's end")


def high_water(bucket: Bucket, partition: int) -> int:
    newest = commits.newest(bucket, partition)
    return newest.high_water if newest else 0


def pending_bytes(log: MemoryLog, *partitions: int) -> int:
    """How much of partitions' records waits in memory where none was committed."""
    taken = [open_partition(log, open_bucket("memory://"), partition=partition) for partition in partitions]
    for partition in taken:
        take_all(partition, log)
    return sum(partition.pending_bytes for partition in taken)


def episode(producer: ScriptedProducer, number: int) -> None:
    """Send an episode of two chunks in two messages."""
    producer.send(Row(0, number, 0, 0, 2))
    producer.send(Row(0, number, 1, 2, 1, Ends.TERMINATED))


def begun(log: MemoryLog, partition: int = 0) -> ScriptedProducer:
    producer = ScriptedProducer(log, f"producer-{partition}", partition)
    producer.begin()
    return producer


def test_what_is_in_the_log_comes_into_the_store(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    for partition in range(PARTITIONS):
        episode(begun(log, partition), 0)
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    assert member.worker.partitions == (0, 1, 2, 3)
    assert [row["length"] for row in stored_episodes(bucket, range(PARTITIONS))] == [3] * PARTITIONS
    assert log.reported(TOPIC, GROUP) == dict.fromkeys(range(PARTITIONS), 3)


def test_commits_wait_for_their_time(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    member = Member(log, bucket, clock, Cadence(commit_seconds=5))
    for before, after in ((0, 3), (3, 5)):
        producer.send(Row(0, before, 0, 0, 3, Ends.TERMINATED))
        member.run()
        clock.advance(4.9)
        # The first that waits says when, whatever comes after it.
        producer.send(Row(0, before + 1, 0, 0, 3, Ends.TERMINATED))
        member.run()
        assert high_water(bucket, 0) == before
        clock.advance(0.1)
        member.run()
        assert high_water(bucket, 0) == after


def test_what_is_held_tells_how_much_came_and_when(log: MemoryLog, bucket: Bucket) -> None:
    held = take_on(open_partition(log, bucket), log.describe(TOPIC), log.bounds(TOPIC, 0), now=0.0, upkeep_at=0.0)
    for now, count in ((1.0, 3), (2.0, 1)):
        for _ in range(count):
            append_tick(log)
        for record in records(log)[held.begin :]:
            held.take(record, now)
        held.committed()
        assert (held.records_committed, held.last_record) == (count, now)


def test_commits_wait_for_their_bytes(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    producer.send(WHOLE)
    member = Member(log, bucket, clock, Cadence(commit_seconds=1e9, commit_bytes=pending_bytes(log, 0) + 1))
    member.run()
    assert commits.newest(bucket, 0) is None
    producer.send(Row(0, 1, 0, 0, 3))
    member.run()
    assert high_water(bucket, 0) == 3


def test_closing_commits_what_was_read(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    begun(log).send(WHOLE)
    member = Member(log, bucket, clock, Cadence(commit_seconds=1e9))
    member.run()
    member.worker.close()
    assert high_water(bucket, 0) == 2
    assert member.worker.partitions == ()


def test_the_groups_offsets_are_never_asked_for(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    begun(log).send(WHOLE)
    first = Member(log, bucket, clock)
    drain(log, bucket, first)
    first.worker.close()
    assert log.reported(TOPIC, GROUP)[0] == 2
    another = open_bucket("memory://")
    drain(log, another, Member(log, another, clock))
    assert stored_episodes(another) == stored_episodes(bucket)


def test_open_episodes_of_a_quiet_partition_end_by_ticks(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    producer.send(Row(0, 0, 0, 0, 3))
    member = Member(log, bucket, clock)
    member.run()
    for _ in range(20):
        clock.advance(IDLE_MS / 4_000)
        member.run()
    kinds = [dict(record.headers)["kind"] for record in records(log)]
    # The fourth ends the episode, and nothing is open that could need another.
    assert kinds == [b"begin", b"chunks", b"tick", b"tick", b"tick", b"tick"]
    (stored,) = stored_episodes(bucket)
    assert (stored["ends"], stored["abort_reason"], stored["closed_offset"]) == (Ends.ABORTED, "idle", 5)


def test_no_tick_before_its_time_nor_where_nothing_is_open(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    begun(log, 0).send(Row(0, 0, 0, 0, 3))
    begun(log, 1).send(WHOLE)
    member = Member(log, bucket, clock)
    member.run()
    clock.advance(IDLE_MS / 4_000 - 0.001)
    member.run()
    assert [log.bounds(TOPIC, number)[1] for number in range(2)] == [2, 2]
    clock.advance(0.001)
    member.run()
    assert [log.bounds(TOPIC, number)[1] for number in range(2)] == [3, 2]


def test_garbage_is_set_aside_and_the_flow_goes_on(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    append_garbage(log)
    producer.send(WHOLE)
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    assert len(stored_episodes(bucket)) == 1
    assert len(records(log, topic=DEAD_LETTERS)) == 1
    assert [member.value("messages_total", kind=kind) for kind in ("begin", "chunks", "quarantined")] == [1, 1, 1]


class NoDeadLetters(MemoryLog):
    """A log whose dead-letter topic alone may be away."""

    away = False

    def append(self, topic: str, *arguments: Any) -> Appended:
        if self.away and topic == DEAD_LETTERS:
            raise LogUnavailableError("its broker is away")
        return super().append(topic, *arguments)


def test_a_commit_waits_for_the_dead_letter_topic(bucket: Bucket, clock: Clock) -> None:
    log = NoDeadLetters(clock=clock)
    log.create(TOPIC, partitions=PARTITIONS)
    log.create(DEAD_LETTERS)
    producer = begun(log)
    append_garbage(log)
    producer.send(WHOLE)
    member = Member(log, bucket, clock)
    log.away = True
    with pytest.raises(LogUnavailableError, match="its broker is away"):
        member.run(3)
    assert commits.newest(bucket, 0) is None
    assert records(log, topic=DEAD_LETTERS) == []
    member.worker.abandon()
    assert member.worker.partitions == ()
    log.away = False
    drain(log, bucket, Member(log, bucket, clock))
    assert len(stored_episodes(bucket)) == 1
    assert [record.value for record in records(log, topic=DEAD_LETTERS)] == [b"garbage"]


def test_an_outage_of_the_log_is_waited_out(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    member = Member(log, bucket, clock)
    member.run()
    log.outage = True
    for _ in range(3):
        clock.advance(5)
        member.run()
    log.outage = False
    producer.send(WHOLE)
    drain(log, bucket, member)
    assert len(stored_episodes(bucket)) == 1


def test_metrics_tell_what_happened(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    producer.send(WHOLE, Row(1, 3, 0, 0, 2))
    producer.skip()
    producer.send(Row(0, 1, 0, 0, 2))
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    clock.advance(10)
    member.run()
    assert [member.value("episodes_total", outcome=outcome) for outcome in ("ended", "aborted")] == [1, 1]
    assert [member.value("steps_total", outcome=outcome) for outcome in ("ended", "aborted")] == [3, 2]
    assert [member.value("rows_total", outcome=outcome) for outcome in ("ended", "aborted")] == [1, 1]
    assert (member.value("rows_read_total"), member.value("steps_read_total")) == (3, 7)
    # The last is a tick, which nobody has read yet.
    assert member.value("read_bytes_total") == sum(record.size for record in records(log)[:-1])
    assert (member.value("gaps_total"), member.value("messages_missing_total")) == (1, 1)
    assert member.value("open_episodes", partition="0") == 1
    assert member.value("commit_seconds_count") == 1
    # Aborted episodes are left out.
    assert member.value("episode_length_steps_count", policy_version="0") == 1
    assert member.value("policy_version") == 0


def test_the_newest_version_stays_the_newest_when_an_older_one_ends_an_episode_later(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    producer, member = begun(log), Member(log, bucket, clock)
    for env, number in ((0, 5), (1, 2)):
        producer.send(Row(env, number, 0, 0, 2, Ends.TERMINATED))
        drain(log, bucket, member)
        assert member.value("policy_version") == 5


# Where the log is not what the store has read.


def consumed(log: MemoryLog, bucket: Bucket, clock: Clock) -> ScriptedProducer:
    """A producer, and a store that has read what it sent: offsets 0 to 2 of partition 0."""
    producer = begun(log)
    producer.send(WHOLE)
    producer.send(Row(0, 1, 0, 0, 2))
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    member.worker.close()
    return producer


def test_what_was_counted_is_not_counted_again(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = consumed(log, bucket, clock)
    producer.send(Row(0, 1, 1, 2, 1, Ends.TERMINATED))
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    assert (member.value("rows_read_total"), member.value("steps_read_total")) == (1, 1)
    # Nor is what it has counted itself.
    producer.send(Row(0, 2, 0, 0, 4, Ends.TERMINATED))
    drain(log, bucket, member)
    assert (member.value("rows_read_total"), member.value("steps_read_total")) == (2, 5)


def test_a_log_that_begins_above_is_a_counted_loss(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = consumed(log, bucket, clock)
    producer.send(Row(0, 1, 1, 2, 1, Ends.TERMINATED))
    producer.send(Row(0, 2, 0, 0, 1, Ends.TERMINATED))
    log.trim(TOPIC, 0, 4)
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    assert member.value("offsets_lost_total") == 1
    found = [(row["episode"], row["ends"], row["abort_reason"]) for row in stored_episodes(bucket)]
    assert found == [(0, Ends.TERMINATED, None), (1, Ends.ABORTED, "gap"), (2, Ends.TERMINATED, None)]


def test_a_log_that_ends_below_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    consumed(log, bucket, clock)
    log._topics[TOPIC].partitions[0].records.pop()
    with pytest.raises(TopicError, match=r"partition 0: it ends at offset 2, the store has read up to 3"):
        Member(log, bucket, clock).run()


@pytest.mark.parametrize("begins", [0, 2])
def test_a_log_that_was_rewritten_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock, begins: int) -> None:
    producer = consumed(log, bucket, clock)
    log.trim(TOPIC, 0, begins)
    log._topics[TOPIC].partitions[0].records.pop()
    producer.send(Row(0, 1, 0, 0, 2))
    with pytest.raises(TopicError, match=r"partition 0: the record at offset 2 is not the one that the store has read"):
        Member(log, bucket, clock).run()


def test_a_log_to_which_the_same_was_written_anew_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    consumed(log, bucket, clock)
    last = log._topics[TOPIC].partitions[0].records.pop()
    clock.advance(1)
    append(log, Encoded(last.value, last.headers), "producer-0")
    with pytest.raises(TopicError, match=r"partition 0: the record at offset 2 is not the one that the store has read"):
        Member(log, bucket, clock).run()


def test_a_topic_that_was_recreated_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    consumed(log, bucket, clock)
    log.delete(TOPIC)
    log.create(TOPIC, partitions=PARTITIONS)
    with pytest.raises(StoreMismatchError, match=r"the topic was recreated; begin a new store"):
        Member(log, bucket, clock)


def test_a_topic_that_was_recreated_before_anything_valid_came_is_refused(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    append_garbage(log)
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    member.worker.close()
    log.delete(TOPIC)
    log.create(TOPIC, partitions=PARTITIONS)
    with pytest.raises(TopicError, match=r"it was recreated; begin a new store"):
        Member(log, bucket, clock).run()


def in_another_cluster(log: MemoryLog, clock: Clock) -> MemoryLog:
    """A log whose topic is the same by its name, its id and its records."""
    other = MemoryLog(clock=clock, cluster_id="other")
    other.create(TOPIC, partitions=PARTITIONS)
    other._topics[TOPIC] = type(other._topics[TOPIC])(
        type(log.describe(TOPIC))(TOPIC, log.describe(TOPIC).topic_id, "other", PARTITIONS, log_append_time=True),
        log._topics[TOPIC].partitions,
    )
    return other


def test_another_cluster_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    consumed(log, bucket, clock)
    other = in_another_cluster(log, clock)
    with pytest.raises(StoreMismatchError, match=r"from the cluster with id memory, that name's id is other now"):
        Member(other, bucket, clock)


def test_another_cluster_is_refused_before_anything_valid_came(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    append_garbage(log)
    member = Member(log, bucket, clock)
    drain(log, bucket, member)
    member.worker.close()
    with pytest.raises(TopicError, match=r"in cluster other, commit .* was read from .* in memory: it was recreated"):
        Member(in_another_cluster(log, clock), bucket, clock).run()


# Races.


def test_a_fenced_worker_reloads_and_goes_on(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    episode(producer, 0)
    member = Member(log, bucket, clock, Cadence(commit_seconds=1))
    member.run()
    rival = open_partition(log, bucket)
    take_all(rival, log)
    rival.commit()
    clock.advance(1)
    member.run()
    assert member.value("commits_fenced_total") == 1
    episode(producer, 1)
    drain(log, bucket, member, clock=clock)
    assert [row["episode"] for row in stored_episodes(bucket)] == [0, 1]
    assert verify(bucket, log).ok


@pytest.mark.parametrize("rival_read", [1, 3, 5, 9])
def test_a_worker_that_is_fenced_amid_a_poll_drops_the_rest_of_it(
    log: MemoryLog, bucket: Bucket, clock: Clock, rival_read: int
) -> None:
    producer = begun(log)
    for number in range(4):
        episode(producer, number)
    rival = open_partition(log, bucket)

    class RivalFirst(WrappedBucket):
        """A bucket in which a rival makes the first commit, just before this writer."""

        def create(self, name: str, data: bytes) -> bool:
            if name.startswith("commits/") and rival.high_water == 0:
                for record in records(log)[:rival_read]:
                    rival.take(record)
                rival.commit()
            return self.inner.create(name, data)

    member = Member(log, RivalFirst(bucket), clock, Cadence(commit_seconds=0, commit_bytes=3_000))
    drain(log, bucket, member)
    assert member.value("commits_fenced_total") == 1
    assert [row["episode"] for row in stored_episodes(bucket)] == [0, 1, 2, 3]
    assert verify(bucket, log).ok


def test_a_worker_that_is_fenced_while_it_leaves_lets_go(
    log: MemoryLog, bucket: Bucket, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seeks no more: the partition is no longer its own."""
    episode(begun(log), 0)
    member = Member(log, bucket, clock, Cadence(commit_seconds=1e9))
    member.run()
    rival = open_partition(log, bucket)
    take_all(rival, log)
    rival.commit()
    sought: list[int] = []
    monkeypatch.setattr(member.worker._group, "seek", lambda partition, _: sought.append(partition))
    member.worker.close()
    assert (member.worker.partitions, member.value("commits_fenced_total"), sought) == ((), 1, [])
    assert len(stored_episodes(bucket)) == 1


@pytest.mark.parametrize("revoke_seconds", [None, 60.0])
def test_a_worker_that_is_overtaken_while_it_loads_loads_again_in_place(
    log: MemoryLog, bucket: Bucket, clock: Clock, revoke_seconds: float | None
) -> None:
    producer = begun(log)
    producer.send(Row(0, 0, 0, 0, 2))
    rival = open_partition(log, bucket)
    take_all(rival, log)
    rival.commit()
    producer.send(Row(0, 0, 1, 2, 1, Ends.TERMINATED))
    take_all(rival, log)

    cadence = Cadence(commit_seconds=0, revoke_seconds=revoke_seconds)
    member = Member(log, overtaken(bucket, rival), clock, cadence)
    episode(producer, 1)
    drain(log, bucket, member)
    assert member.value("commits_fenced_total") == 1
    assert moves(member) == {"assigned": PARTITIONS, "revoked": 0, "given_up": 0, "lost": 0}
    assert [row["episode"] for row in stored_episodes(bucket)] == [0, 1]
    assert verify(bucket, log).ok


# A store that hangs.


class Hanging(WrappedBucket):
    """A bucket that leaves some calls unanswered until it is let go."""

    def __init__(self, inner: Bucket, hangs: str) -> None:
        super().__init__(inner)
        self.hangs: str | None = hangs
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.left = threading.Event()

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        if self.hangs is None or not str(arguments[0]).startswith(self.hangs):
            return operation(*arguments)
        self.entered.set()
        assert self.let_go.wait(SECONDS)
        try:
            return operation(*arguments)
        finally:
            self.left.set()


def all_begun(log: MemoryLog) -> list[ScriptedProducer]:
    producers = [begun(log, partition) for partition in range(PARTITIONS)]
    for producer in producers:
        episode(producer, 0)
    return producers


def moves(member: Member) -> dict[str, float | None]:
    told = ("assigned", "revoked", "given_up", "lost")
    return {move: member.value("partition_moves_total", move=move) for move in told}


def running(member: Member) -> tuple[threading.Thread, list[BaseException]]:
    """A member that runs once, in a thread; and what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            member.run()
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def takes_over(member: Member) -> None:
    """Let a member go on until it has its half of the partitions."""
    for _ in range(50):
        member.run()
        if member.worker.partitions == (2, 3):
            return
    raise AssertionError("the others did not give it its share")


IN_TIME = Cadence(commit_seconds=1, revoke_seconds=0.3)
LATER = Cadence(commit_seconds=1)


def test_a_partition_whose_commit_hangs_is_given_up_and_never_touched_again(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    all_begun(log)
    hanging = Hanging(bucket, "commits/00003/")
    hanging.hangs = None
    first, second = Member(log, hanging, clock, IN_TIME), Member(log, bucket, clock, LATER)
    first.run()
    hanging.hangs = "commits/00003/"
    second.run()
    first.run()
    assert (first.worker.partitions, hanging.entered.is_set(), hanging.left.is_set()) == ((0, 1), True, False)
    assert moves(first) == {"assigned": 4, "revoked": 1, "given_up": 1, "lost": 0}
    second.run()
    assert second.worker.partitions == (2, 3)
    assert (high_water(bucket, 2), high_water(bucket, 3)) == (3, 0)
    # The commit that hung comes to the store after all: its new owner is fenced, once, and reads on.
    hanging.let_go.set()
    assert hanging.left.wait(SECONDS)
    while high_water(bucket, 3) == 0:
        pass
    clock.advance(1)
    second.run()
    assert second.value("commits_fenced_total") == 1
    drain(log, bucket, first, second, clock=clock)
    assert (first.value("commits_fenced_total"), second.value("commits_fenced_total")) == (0, 1)
    assert first.value("lag_offsets", partition="3") is None
    assert first.value("episodes_total", outcome="ended") == 3
    assert verify(bucket, log).ok


def test_a_commit_that_hangs_does_not_keep_others_from_their_share(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    all_begun(log)
    hanging = Hanging(bucket, "commits/00000/")
    hanging.hangs = None
    first, second = Member(log, hanging, clock, IN_TIME), Member(log, bucket, clock, LATER)
    first.run()
    hanging.hangs = "commits/00000/"
    clock.advance(1)
    thread, raised = running(first)
    assert hanging.entered.wait(SECONDS)
    takes_over(second)
    assert not hanging.left.is_set()
    hanging.let_go.set()
    thread.join(SECONDS)
    assert (raised, first.worker.partitions) == ([], (0, 1))
    assert moves(first) == {"assigned": 4, "revoked": 2, "given_up": 0, "lost": 0}
    drain(log, bucket, first, second, clock=clock)
    assert first.value("commits_fenced_total") == second.value("commits_fenced_total") == 0
    assert verify(bucket, log).ok


def test_a_partition_that_is_taken_away_amid_its_commit_is_let_go(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    all_begun(log)
    hanging = Hanging(bucket, "commits/00003/")
    hanging.hangs = None
    first, second = Member(log, hanging, clock, IN_TIME), Member(log, bucket, clock, LATER)
    first.run()
    hanging.hangs = "commits/00003/"
    clock.advance(1)
    thread, raised = running(first)
    assert hanging.entered.wait(SECONDS)
    takes_over(second)
    # It goes on although the store has not answered.
    thread.join(SECONDS)
    assert (raised, first.worker.partitions, hanging.left.is_set()) == ([], (0, 1), False)
    assert moves(first)["given_up"] == 1
    hanging.let_go.set()
    assert hanging.left.wait(SECONDS)
    drain(log, bucket, first, second, clock=clock)
    assert verify(bucket, log).ok


def test_what_was_polled_before_a_partition_went_and_came_back_is_not_taken(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    hanging = Hanging(bucket, "commits/00000/")
    hanging.hangs = None
    # Each record is committed at once: the first of them waits, amid the poll.
    first, second = Member(log, hanging, clock, replace(IN_TIME, commit_bytes=1)), Member(log, bucket, clock, LATER)
    first.run()
    all_begun(log)
    append_garbage(log, partition=3)
    hanging.hangs = "commits/00000/"
    thread, raised = running(first)
    assert hanging.entered.wait(SECONDS)
    takes_over(second)
    second.run()
    second.worker.close()
    while moves(first)["assigned"] != PARTITIONS + 2:
        pass
    hanging.let_go.set()
    thread.join(SECONDS)
    assert (raised, first.worker.partitions) == ([], (0, 1, 2, 3))
    drain(log, bucket, first, clock=clock)
    assert len(records(log, topic=DEAD_LETTERS)) == 1
    assert verify(bucket, log).ok


@pytest.mark.parametrize(
    ("hangs", "told"), [("commits/00001/", "partition 1 cannot be committed"), ("commits/", "cannot be taken on")]
)
def test_a_store_that_does_not_answer_at_all_is_told_and_left(
    log: MemoryLog, bucket: Bucket, clock: Clock, monkeypatch: pytest.MonkeyPatch, hangs: str, told: str
) -> None:
    monkeypatch.setattr("penstock_consumers.worker._STORE_SECONDS", 0.3)
    all_begun(log)
    hanging = Hanging(bucket, hangs)
    hanging.hangs = None
    member = Member(log, hanging, clock, IN_TIME)
    if "committed" in told:
        member.run()
    hanging.hangs = hangs
    clock.advance(1)
    with pytest.raises(StoreUnavailableError, match=rf"no answer for 0\.3 s: .*{told}"):
        member.run(2)
    member.worker.abandon()
    assert member.worker.partitions == ()
    drain(log, bucket, Member(log, bucket, clock), clock=clock)
    hanging.let_go.set()
    assert len(stored_episodes(bucket, range(PARTITIONS))) == PARTITIONS


class Slow(WrappedBucket):
    """A bucket that takes 100 s for each answer on partition 0, by a clock of its own, and is waited for meanwhile."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.slow = False
        self.clock = Clock()
        self._waited_for = threading.Event()

    def beat(self) -> None:
        self._waited_for.set()

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        if self.slow and "/00000/" in str(arguments[0]):
            self.clock.advance(100)
            self._waited_for.clear()
            assert self._waited_for.wait(SECONDS)
        return operation(*arguments)


@pytest.fixture
def slow(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow = Slow(bucket)
    for module in ("worker", "beside"):
        monkeypatch.setattr(f"penstock_consumers.{module}.time", SimpleNamespace(monotonic=slow.clock))
    return slow


def test_a_join_may_take_long_where_the_store_answers(log: MemoryLog, bucket: Bucket, clock: Clock, slow: Slow) -> None:
    producer = begun(log)
    cadence = replace(IN_TIME, commit_seconds=0, upkeep_seconds=10)
    member = Member(log, slow, clock, cadence, upkeep=Noted(slow), beat=slow.beat)
    for number in range(8):
        episode(producer, number)
        member.run()
    clock.advance(10)
    for number in range(1, PARTITIONS):
        member.worker._held[number].next_upkeep = clock() + 1e9
    slow.slow = True
    member.run()
    assert member.value("segments_compacted_total") == 8
    assert slow.clock() >= 1_000 + 10 * 100
    assert verify(bucket, log).ok


def test_a_partition_may_take_long_to_take_on_where_the_store_answers(
    log: MemoryLog, bucket: Bucket, clock: Clock, slow: Slow
) -> None:
    producer = consumed(log, bucket, clock)
    member = Member(log, slow, clock, IN_TIME, beat=slow.beat)
    slow.slow = True
    member.run()
    assert (member.worker.partitions, slow.clock() >= 1_000 + 3 * 100) == ((0, 1, 2, 3), True)
    slow.slow = False
    producer.send(Row(0, 1, 1, 2, 1, Ends.TERMINATED))
    drain(log, bucket, member, clock=clock)
    assert [row["length"] for row in stored_episodes(bucket)] == [3, 3]
    assert member.value("commits_fenced_total") == 0
    assert verify(bucket, log).ok


def test_what_takes_long_is_not_waited_for_once_it_is_to_stop(
    log: MemoryLog, bucket: Bucket, clock: Clock, slow: Slow
) -> None:
    consumed(log, bucket, clock)
    stop = threading.Event()

    def beat() -> None:
        slow.beat()
        stop.set()

    member = Member(log, slow, clock, IN_TIME, beat=beat, stopping=stop.is_set)
    slow.slow = True
    member.run()
    assert stop.is_set()
    assert len(member.worker.partitions) < PARTITIONS
    slow.slow = False
    slow.beat()
    member.worker.close()
    assert verify(bucket, log).ok


def test_a_partition_that_is_taken_away_while_it_is_loaded_is_let_go(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    all_begun(log)
    hanging = Hanging(bucket, "commits/00003/")
    first, second = Member(log, hanging, clock, IN_TIME), Member(log, bucket, clock, LATER)
    thread, raised = running(first)
    assert hanging.entered.wait(SECONDS)
    takes_over(second)
    thread.join(SECONDS)
    assert (raised, first.worker.partitions, hanging.left.is_set()) == ([], (0, 1), False)
    hanging.let_go.set()
    assert hanging.left.wait(SECONDS)
    drain(log, bucket, first, second, clock=clock)
    assert (first.worker.partitions, first.value("lag_offsets", partition="3")) == ((0, 1), None)
    assert verify(bucket, log).ok


# What waits in memory, in all partitions together.


def test_the_fullest_partition_is_committed_first(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    for partition, producer in enumerate(all_begun(log)):
        for number in range(1, 2 + partition):
            episode(producer, number)
    whole = pending_bytes(log, *range(PARTITIONS))
    idle = Member(log, open_bucket("memory://"), clock, Cadence(commit_seconds=1e9, commit_bytes=whole + 1))
    idle.run(5)
    assert idle.worker.committed == {}
    idle.worker.close()
    member = Member(log, bucket, clock, Cadence(commit_seconds=1e9, commit_bytes=whole))
    member.run(5)
    assert set(member.worker.committed) == {3}
    # There is as much room again as that one took.
    begun(log, 0).send(WHOLE)
    member.run()
    assert set(member.worker.committed) == {3}


def test_many_partitions_stay_within_the_bytes_of_one(bucket: Bucket, clock: Clock) -> None:
    log = MemoryLog(clock=clock)
    log.create(TOPIC, partitions=32)
    log.create(DEAD_LETTERS)
    for partition in range(32):
        producer = begun(log, partition)
        for number in range(4):
            episode(producer, number)
    budget = pending_bytes(log, 0, 1)
    member = Member(log, bucket, clock, Cadence(commit_seconds=1e9, commit_bytes=budget))
    most = 0
    for _ in range(3):
        member.run()
        most = max(most, sum(held.partition.pending_bytes for held in member.worker._held.values()))
    assert 0 < most < budget
    assert len(member.worker.committed) >= 29


# Upkeep, between commits.


class Noted(Upkeep):
    """Upkeep that notes which partitions it was given."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket, UpkeepSettings())
        self.ran: list[int] = []

    def run(self, partition: Rewritable) -> Kept:
        self.ran.append(partition.partition)
        return super().run(partition)


def test_each_partition_is_kept_up_in_its_turn(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    all_begun(log)
    upkeep = Noted(bucket)
    member = Member(log, bucket, clock, Cadence(commit_seconds=0, upkeep_seconds=10), upkeep=upkeep)
    member.run(3)
    clock.advance(9.9)
    member.run(3)
    assert upkeep.ran == []
    clock.advance(0.1)
    member.run(6)
    assert sorted(upkeep.ran) == [0, 1, 2, 3]
    clock.advance(10)
    member.run(2)
    assert len(upkeep.ran) == 6
    assert member.value("upkeep_seconds_count") == 6


def test_small_segments_become_one_and_the_metrics_tell(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    upkeep = Noted(bucket)
    member = Member(log, bucket, clock, Cadence(commit_seconds=0, upkeep_seconds=10), upkeep=upkeep)
    for number in range(40):
        episode(producer, number)
        member.run()
    clock.advance(60)
    member.run(2 * PARTITIONS)
    assert (member.value("live_segments", partition="0", kind="episodes") or 40) < 40
    assert member.value("segments_compacted_total")
    assert member.value("live_segment_bytes", partition="0", kind="episodes")
    assert len(stored_episodes(bucket)) == 40
    assert verify(bucket, log).ok
    member.worker.close()
    assert member.value("live_segments", partition="0", kind="episodes") is None


@pytest.mark.parametrize(("waited", "kept_up_in"), [(10, 2), (100, 1)])
def test_a_backlog_puts_upkeep_off_until_it_starves(
    log: MemoryLog, bucket: Bucket, clock: Clock, waited: float, kept_up_in: int
) -> None:
    upkeep = Noted(bucket)
    member = Member(log, bucket, clock, Cadence(commit_seconds=0, upkeep_seconds=10), upkeep=upkeep)
    member.run()
    for _ in range(1200):
        append_tick(log)
    clock.advance(waited)
    # It stands first in line; the first poll takes 500, and leaves more than that.
    member.worker._held[0].next_upkeep -= 0.001
    member.run(kept_up_in - 1)
    assert 0 not in upkeep.ran
    member.run()
    assert 0 in upkeep.ran


def test_upkeep_that_is_fenced_reloads_in_place(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    class Rewriting:
        def run(self, partition: Rewritable) -> bool:
            partition.rewrite()
            return True

    producer = begun(log)
    episode(producer, 0)
    member = Member(log, bucket, clock, Cadence(commit_seconds=0, upkeep_seconds=10), upkeep=Rewriting())
    member.run(2)
    # A tool rewrites the partition.
    open_partition(log, bucket).rewrite()
    clock.advance(10)
    for number in range(1, PARTITIONS):
        member.worker._held[number].next_upkeep = clock() + 1e9
    member.run()
    assert member.value("commits_fenced_total") == 1
    episode(producer, 1)
    drain(log, bucket, member)
    assert [row["episode"] for row in stored_episodes(bucket)] == [0, 1]
    assert verify(bucket, log).ok


def test_a_stream_of_mostly_bad_messages_stops_the_worker(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    episode(producer, 0)
    member = Member(log, bucket, clock, max_bad_share=0.5)
    member.run(2)
    newest = commits.newest(bucket, 0)
    for number in range(300):
        append_garbage(log, b"%d" % number)
    with pytest.raises(BadStreamError, match=r"partition 0, offset .* are not valid.*--max-bad-share"):
        member.run(2)
    member.worker.abandon()
    assert commits.newest(bucket, 0) == newest
    assert records(log, topic=DEAD_LETTERS) == []
    drain(log, bucket, Member(log, bucket, clock))
    assert len(records(log, topic=DEAD_LETTERS)) == 300


def test_an_instance_takes_its_partitions_up_again_where_it_left_them(
    log: MemoryLog, bucket: Bucket, clock: Clock
) -> None:
    all_begun(log)
    first, other = (Member(log, bucket, clock, LATER, instance=name) for name in ("pod-0", "pod-1"))
    first.run()
    other.run()
    first.run()
    other.run()
    first.worker.close()
    other.run()
    again = Member(log, bucket, clock, instance="pod-0")
    again.run()
    assert (again.worker.partitions, other.worker.partitions) == ((0, 1), (2, 3))
    assert moves(other) == {"assigned": 2, "revoked": 0, "given_up": 0, "lost": 0}
    drain(log, bucket, again, other, clock=clock)
    assert again.value("commits_fenced_total") == 0


# Rebalances.


@pytest.mark.parametrize("seed", range(3))
def test_rebalances_lose_and_double_nothing(log: MemoryLog, bucket: Bucket, clock: Clock, seed: int) -> None:
    """Members join, leave, are evicted and die in random order, while producers go on."""
    rng = random.Random(seed)  # noqa: S311  (to be repeated, not to be kept secret)
    producers = [begun(log, partition) for partition in range(PARTITIONS)]
    sent = 0
    members = [Member(log, bucket, clock, Cadence(0.1))]
    for _ in range(40):
        sent += 1
        for producer in producers:
            episode(producer, sent)
        clock.advance(0.06)
        match rng.choice(["run", "run", "run", "join", "leave", "evict"]):
            case "join" if len(members) < 3:
                members.append(Member(log, bucket, clock, Cadence(0.1)))
            case "leave" if len(members) > 1:
                members.pop(rng.randrange(len(members))).worker.close()
            case "evict":
                log.evict(rng.choice(members).worker._group)  # type: ignore[arg-type]  # it is the log's own
        rng.shuffle(members)
        for member in members:
            member.run()
    drain(log, bucket, *members, clock=clock)
    for member in members:
        member.worker.close()
    stored = stored_episodes(bucket, range(PARTITIONS))
    expected = [(f"producer-{partition}", number) for partition in range(PARTITIONS) for number in range(1, sent + 1)]
    assert [(row["producer"], row["episode"]) for row in stored] == expected
    report = verify(bucket, log)
    assert (report.ok, report.findings, report.episodes_stored) == (True, [], PARTITIONS * sent)


def test_two_members_in_two_threads(log: MemoryLog, tmp_path: Path, clock: Clock) -> None:
    """Real time and a real folder: one member's poll settles what the other's waits for."""
    bucket = open_bucket(tmp_path)
    producers = [begun(log, partition) for partition in range(PARTITIONS)]
    stop, failures = threading.Event(), []

    def live(member: Member) -> None:
        try:
            while not stop.is_set():
                member.run()
            member.worker.close()
        except Exception as error:  # noqa: BLE001  (the test tells it)
            failures.append(error)

    threads = [threading.Thread(target=live, args=(Member(log, bucket, clock),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(10):
        for producer in producers:
            episode(producer, number)
    done = threading.Event()
    for _ in range(300):
        if failures or all(high_water(bucket, p) == log.bounds(TOPIC, p)[1] for p in range(PARTITIONS)):
            break
        done.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert len(stored_episodes(bucket, range(PARTITIONS))) == 10 * PARTITIONS
    assert verify(bucket, log).ok


def test_a_backlog_of_one_partition_puts_off_nobody_elses_upkeep(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    upkeep = Noted(bucket)
    member = Member(log, bucket, clock, Cadence(commit_seconds=0, upkeep_seconds=10), upkeep=upkeep)
    member.run()
    for _ in range(1200):
        append_tick(log)
    clock.advance(10)
    member.worker._held[0].next_upkeep -= 0.001
    member.run()
    assert upkeep.ran
    assert 0 not in upkeep.ran
