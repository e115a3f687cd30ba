from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.verify import verify
from penstock_consumers.worker import Cadence, Worker
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import LogUnavailableError, StoreMismatchError, TopicError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import decode
from tests.consumers.messages import (
    DEAD_LETTERS,
    STREAM,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    WrappedBucket,
    append_garbage,
    open_partition,
    records,
    stored_episodes,
    take_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Appended

PARTITIONS = 4
IDLE_MS = 1_000
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

    def __init__(self, log: MemoryLog, bucket: Bucket, clock: Callable[[], float], cadence: Cadence = AT_ONCE) -> None:
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
    begun(log).send(WHOLE)
    member = Member(log, bucket, clock, Cadence(commit_seconds=5))
    member.run()
    clock.advance(4.9)
    member.run()
    assert commits.newest(bucket, 0) is None
    clock.advance(0.1)
    member.run()
    assert high_water(bucket, 0) == 2


def test_commits_wait_for_their_bytes(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = begun(log)
    producer.send(WHOLE)
    batch = decode(records(log)[-1], None).batch
    assert batch is not None
    member = Member(log, bucket, clock, Cadence(commit_seconds=1e9, commit_bytes=batch.get_total_buffer_size() + 1))
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


def test_a_log_that_was_rewritten_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    producer = consumed(log, bucket, clock)
    log._topics[TOPIC].partitions[0].records.pop()
    producer.send(Row(0, 1, 0, 0, 2))
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


def test_another_cluster_is_refused(log: MemoryLog, bucket: Bucket, clock: Clock) -> None:
    consumed(log, bucket, clock)
    other = MemoryLog(clock=clock, cluster_id="other")
    other.create(TOPIC, partitions=PARTITIONS)
    other._topics[TOPIC] = type(other._topics[TOPIC])(
        type(log.describe(TOPIC))(TOPIC, log.describe(TOPIC).topic_id, "other", PARTITIONS, log_append_time=True),
        other._topics[TOPIC].partitions,
    )
    with pytest.raises(StoreMismatchError, match=r"from the cluster with id memory, that name's id is other now"):
        Member(other, bucket, clock)


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
