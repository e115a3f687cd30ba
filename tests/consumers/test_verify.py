from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Commit, Limits, Live
from penstock_consumers.store.manifest import Manifest
from penstock_consumers.verify import Report, verify
from penstock_schemas.chunks import Ends, list_column
from penstock_schemas.errors import CorruptStoreError, StoreError, StoreMismatchError, TopicError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import (
    SPEC,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    append_garbage,
    append_tick,
    open_partition,
    records,
    take_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket

LIMITS = Limits(idle_limit_ms=1_000)


@pytest.fixture
def log() -> MemoryLog:
    """Two partitions of twelve episodes each; a gap, garbage, a restart, duplicates, a superseded message, idleness."""
    clock = Clock()
    log = MemoryLog(clock=clock)
    log.create(TOPIC, partitions=2)
    for partition in range(2):
        producer = ScriptedProducer(log, f"producer-{partition}", partition)
        producer.begin()
        zombie = producer.encode(Row(3, 0, 0, 0, 2))
        for number in range(8):
            message = producer.encode(Row(0, number, 0, 0, 2), Row(1, number, 0, 0, 3, Ends.TERMINATED))
            producer.append(message)
            producer.sequence += 1
            if number == 2:
                producer.append(message)
            elif number == 3:
                producer.skip()
            elif number == 4:
                append_garbage(log, partition=partition)
            elif number == 5:
                producer.begin()
                producer.append(zombie)
            clock.advance(0.1)
            producer.send(Row(0, number, 1, 2, 1, Ends.TRUNCATED))
        producer.send(Row(0, 8, 0, 0, 1))
        for _ in range(8):
            clock.advance(0.2)
            append_tick(log, partition)
        producer.send(Row(0, 9, 0, 0, 1))
    return log


@pytest.fixture
def bucket(log: MemoryLog) -> Bucket:
    """A store of that log: a commit after every three records."""
    bucket = open_bucket("memory://")
    for number in range(2):
        partition = open_partition(log, bucket, LIMITS, partition=number)
        for record in records(log, number):
            partition.take(record)
            if partition.high_water % 3 == 0:
                partition.commit()
        partition.commit()
    return bucket


def change(bucket: Bucket, number: int, changed: Callable[[Commit], Commit], partition: int = 0) -> None:
    """Forge a commit in its place."""
    commit = commits.read(bucket, partition, number)
    bucket.put(commit.name, changed(commit).to_json())


def with_episodes(bucket: Bucket, partition: int = 0) -> Commit:
    """A commit that added episodes; not a partition's first, whose listing has them as well."""
    newest = commits.newest(bucket, partition)
    assert newest is not None
    found = (commits.read(bucket, partition, number) for number in range(1, newest.number + 1))
    return next(commit for commit in found if commit.segments_added)


def forge(bucket: Bucket, changed: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Replace a commit's segment by an altered one, whose size and checksum the commit names."""
    commit = with_episodes(bucket)
    (entry,) = commit.segments_added
    batch = changed(segments.read(bucket, entry, segments.episode_schema(SPEC)))
    forged = segments.write(bucket, layout.segment(0, commit.number), batch, entry.steps)
    change(bucket, commit.number, lambda commit: replace(commit, segments_added=(forged,)))


def wrong(report: Report) -> dict[str, int]:
    """What the report finds wrong, and how often."""
    names = (
        *("episodes_missing", "episodes_duplicated", "episodes_unexpected", "episodes_wrong"),
        *("steps_missing", "steps_duplicated", "steps_wrong", "segments_damaged", "commits_wrong"),
    )
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def test_a_store_that_is_what_the_log_says(log: MemoryLog, bucket: Bucket) -> None:
    report = verify(bucket, log)
    assert (report.ok, wrong(report), report.findings) == (True, {}, [])
    assert (report.episodes_stored, report.episodes_expected) == (34, 34)
    assert (
        report.steps_stored
        == report.steps_expected
        == report.counters["steps_ended"] + report.counters["steps_aborted"]
    )
    assert report.messages == sum(log.bounds(TOPIC, partition)[1] for partition in range(2))
    assert report.from_offsets == {0: 0, 1: 0}
    counted = ("duplicate", "superseded", "orphan", "aborted")
    assert [report.counters[f"rows_{name}"] for name in counted] == [4, 2, 4, 6]
    assert report.counters["messages_quarantined"] == 2


def test_what_the_log_has_beyond_the_newest_commit_is_not_expected(log: MemoryLog, bucket: Bucket) -> None:
    ScriptedProducer(log, "producer-9").begin()
    assert verify(bucket, log).ok


def test_a_missing_segment_is_found(log: MemoryLog, bucket: Bucket) -> None:
    commit = with_episodes(bucket)
    (entry,) = commit.segments_added
    change(bucket, commit.number, lambda commit: replace(commit, segments_added=()))
    report = verify(bucket, log)
    assert wrong(report) == {"episodes_missing": entry.rows, "steps_missing": entry.steps}
    assert not report.ok
    assert report.findings[0].startswith("missing: producer producer-0, incarnation 0, env 0, episode ")


def test_an_object_that_is_gone_is_found(log: MemoryLog) -> None:
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket, LIMITS)
    take_all(partition, log)
    committed = partition.commit()
    assert committed is not None
    assert committed.segment is not None
    gone = replace(committed.segment, name=layout.segment(0, 0))
    change(bucket, 0, lambda commit: replace(commit, segments_added=(gone,), live=Live(segments=(gone,))))
    report = verify(bucket, log)
    assert wrong(report).keys() == {"segments_damaged", "episodes_missing", "steps_missing"}
    assert gone.name in report.findings[0]


def test_an_altered_byte_is_found(log: MemoryLog, bucket: Bucket) -> None:
    (entry,) = with_episodes(bucket).segments_added
    rewards = segments.read(bucket, entry, segments.episode_schema(SPEC)).column("reward").values
    data = bytearray(bucket.read(entry.name).to_pybytes())
    data[data.index(rewards.to_numpy().tobytes())] ^= 1
    bucket.put(entry.name, bytes(data))
    report = verify(bucket, log)
    assert (report.segments_damaged, report.ok) == (1, False)
    assert report.episodes_wrong == 1
    assert report.findings[0] == f"segment {entry.name}: its bytes are not those that were written"


def test_a_truncated_segment_is_found(log: MemoryLog, bucket: Bucket) -> None:
    (entry,) = with_episodes(bucket).segments_added
    bucket.put(entry.name, bucket.read(entry.name).to_pybytes()[:-64])
    report = verify(bucket, log)
    assert (report.segments_damaged, report.episodes_missing) == (1, entry.rows)


def test_a_copy_of_a_segment_is_found(log: MemoryLog, bucket: Bucket) -> None:
    commit = with_episodes(bucket)
    (entry,) = commit.segments_added
    copy = replace(entry, name=layout.segment(0, commit.number))
    bucket.put(copy.name, bucket.read(entry.name).to_pybytes())
    change(bucket, commit.number, lambda commit: replace(commit, segments_added=(entry, copy)))
    report = verify(bucket, log)
    assert wrong(report) == {"episodes_duplicated": entry.rows, "steps_duplicated": entry.steps}
    assert report.findings == [f"partition 0: {entry.rows} episodes are stored more than once"]


def test_a_commit_that_judged_nothing_is_refused(log: MemoryLog, bucket: Bucket) -> None:
    newest, older = commits.newest(bucket, 0), with_episodes(bucket)
    assert newest is not None
    forged = replace(newest, number=newest.number + 1, segments_added=older.segments_added, open_added=())
    bucket.put(forged.name, forged.to_json())
    with pytest.raises(CorruptStoreError, match=rf"commit {forged.name}: it judged no record"):
        verify(bucket, log)


def first_reward_changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    at, column = batch.schema.get_field_index("reward"), batch.column("reward")
    values: NDArray[np.float32] = column.values.to_numpy().copy()
    values[0] += 1
    changed = list_column(SPEC.columns[2], values, column.offsets.to_numpy())
    return batch.set_column(at, batch.schema.field(at), changed)


def of_another_env(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("env")
    env: NDArray[Any] = batch.column("env").to_numpy().copy()
    env[0] = 77
    return batch.set_column(at, batch.schema.field(at), pa.array(env))


def test_a_wrong_reward_is_found(log: MemoryLog, bucket: Bucket) -> None:
    forge(bucket, first_reward_changed)
    report = verify(bucket, log)
    assert wrong(report) == {"episodes_wrong": 1, "steps_wrong": 3}
    assert len(report.findings) == 1
    assert report.findings[0].startswith("wrong: producer producer-0, incarnation 0, env ")


def test_an_episode_that_is_not_in_the_log_is_found(log: MemoryLog, bucket: Bucket) -> None:
    forge(bucket, of_another_env)
    report = verify(bucket, log)
    assert wrong(report) == {"episodes_missing": 1, "episodes_unexpected": 1, "steps_missing": 3}


def test_a_wrong_counter_is_found(log: MemoryLog, bucket: Bucket) -> None:
    newest = commits.newest(bucket, 0)
    assert newest is not None
    counters = {**newest.counters, "rows_duplicate": newest.counters["rows_duplicate"] + 1}
    change(bucket, newest.number, lambda commit: replace(commit, counters=counters))
    report = verify(bucket, log)
    assert wrong(report) == {"commits_wrong": 1}
    assert report.findings == [f"commit {newest.name}: rows_duplicate is 3, recounted 2"]


def test_a_wrong_state_of_a_producer_is_found(log: MemoryLog, bucket: Bucket) -> None:
    newest = commits.newest(bucket, 1)
    assert newest is not None
    producers = {name: replace(entry, sequence=entry.sequence + 1) for name, entry in newest.producers.items()}
    change(bucket, newest.number, lambda commit: replace(commit, producers=producers), partition=1)
    assert wrong(verify(bucket, log)) == {"commits_wrong": 1}


@pytest.mark.parametrize("start", [1, 5, 12, 13, 20])
def test_a_trimmed_log_is_verified_from_the_oldest_commit_that_it_reaches(
    log: MemoryLog, bucket: Bucket, start: int
) -> None:
    log.trim(TOPIC, 0, start)
    report = verify(bucket, log)
    assert (report.ok, report.findings) == (True, [])
    assert report.from_offsets == {0: -(-start // 3) * 3, 1: 0}
    assert (report.episodes_stored, report.episodes_expected < 34) == (34, True)


def test_what_a_trimmed_log_still_reaches_is_verified(log: MemoryLog, bucket: Bucket) -> None:
    newest = commits.newest(bucket, 0)
    assert newest is not None
    later = next(
        commit
        for commit in (commits.read(bucket, 0, number) for number in range(newest.number, 0, -1))
        if commit.segments_added
    )
    log.trim(TOPIC, 0, 4)
    change(bucket, later.number, lambda commit: replace(commit, segments_added=()))
    assert wrong(verify(bucket, log))["episodes_missing"] == later.segments_added[0].rows


def test_a_log_of_which_nothing_is_left_has_nothing_to_say(log: MemoryLog, bucket: Bucket) -> None:
    for partition in range(2):
        append_tick(log, partition)
        log.trim(TOPIC, partition, log.bounds(TOPIC, partition)[1])
    report = verify(bucket, log)
    assert (report.ok, report.messages, report.episodes_expected, report.episodes_stored) == (True, 0, 0, 34)


def test_not_a_number_is_a_value_like_any_other() -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    message = producer.encode(Row(0, 0, 0, 0, 3, Ends.TERMINATED), Row(1, 0, 0, 0, 2, Ends.TERMINATED))
    reward, nan = (np.float32(value).tobytes() for value in (1 / 8, np.nan))
    assert message.value is not None
    producer.append(replace(message, value=message.value.replace(reward, nan)))
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    take_all(partition, log)
    committed = partition.commit()
    assert committed is not None
    assert committed.episodes is not None
    assert committed.episodes.batch.column("reward").values.to_numpy()[1] != 1 / 8
    report = verify(bucket, log)
    assert (report.ok, wrong(report)) == (True, {})
    (entry,) = committed.commit.segments_added
    forged = first_reward_changed(segments.read(bucket, entry, segments.episode_schema(SPEC)))
    written = segments.write(bucket, layout.segment(0, 0), forged, entry.steps)
    change(bucket, 0, lambda commit: replace(commit, segments_added=(written,), live=Live((written,))))
    assert wrong(verify(bucket, log)) == {"episodes_wrong": 1, "steps_wrong": 3}


def test_what_cannot_be_compared_is_an_error(log: MemoryLog, bucket: Bucket) -> None:
    with pytest.raises(StoreError, match=r"store memory://: there is no store\.json"):
        verify(open_bucket("memory://"), log)
    elsewhere = MemoryLog()
    with pytest.raises(TopicError, match=r"there is no topic 'rollouts\.test'"):
        verify(bucket, elsewhere)
    elsewhere.create(TOPIC, partitions=2)
    with pytest.raises(StoreMismatchError, match=r"the topic was recreated"):
        verify(bucket, elsewhere)
    log._topics[TOPIC].partitions[1].records.pop()
    with pytest.raises(TopicError, match=r"partition 1: the log ends at \d+, the store at \d+"):
        verify(bucket, log)


def test_an_empty_store_of_an_empty_log(log: MemoryLog) -> None:
    bucket = open_bucket("memory://")
    topic = log.describe(TOPIC)
    manifest.establish(bucket, Manifest(SPEC, topic.topic_id, topic.cluster_id))
    report = verify(bucket, log)
    assert (report.ok, report.episodes_stored, report.messages) == (True, 0, 0)
