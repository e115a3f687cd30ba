from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers import open_rows
from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import FULL_EVERY, Commit, LastRecord, Limits, Live, SegmentEntry
from penstock_consumers.store.manifest import Manifest
from penstock_consumers.upkeep import gc
from penstock_consumers.verify import Report, verify
from penstock_consumers.verify import partition as verifying
from penstock_consumers.verify.scratch import Scratch
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import list_column
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
from tests.consumers.upkept import Meddled, Owned, Timed, live

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.open_rows import OpenSegment
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Reader, Record

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


def forge(bucket: Bucket, changed: Callable[[pa.RecordBatch], pa.RecordBatch], number: int | None = None) -> None:
    """Replace a commit's segment by an altered one, whose size and checksum the commit names."""
    commit = with_episodes(bucket) if number is None else commits.read(bucket, 0, number)
    (entry,) = commit.segments_added
    batch = changed(segments.read(bucket, entry, segments.episode_schema(SPEC)))
    forged = segments.write_episodes(bucket, layout.segment(0, commit.number), batch)
    change(bucket, commit.number, lambda commit: replace(commit, segments_added=(forged,)))


def wrong(report: Report) -> dict[str, int]:
    """What the report finds wrong, and how often."""
    names = (
        *("episodes_missing", "episodes_duplicated", "episodes_unexpected", "episodes_wrong"),
        *("steps_missing", "steps_duplicated", "steps_wrong", "segments_damaged", "commits_wrong"),
        *("open_rows_wrong", "offsets_lost"),
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


def test_each_commit_is_judged_again_by_its_own_limits(log: MemoryLog) -> None:
    bucket = open_bucket("memory://")
    for at in range(0, log.bounds(TOPIC, 0)[1], 3):
        partition = open_partition(log, bucket, Limits(idle_limit_ms=400 if at % 2 else 4_000))
        for record in records(log)[at : at + 3]:
            partition.take(record)
        partition.commit()
    assert partition.counters["episodes_aborted"] > 1
    report = verify(bucket, log)
    assert (wrong(report), report.findings) == ({}, [])


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
    (stored,) = committed.commit.segments_added
    gone = replace(stored, name=layout.segment(0, 0))
    change(
        bucket,
        0,
        lambda commit: replace(commit, segments_added=(gone,), live=replace(partition.live, segments=(gone,))),
    )
    report = verify(bucket, log)
    assert wrong(report).keys() == {"segments_damaged", "episodes_missing", "steps_missing"}
    assert gone.name in report.findings[0]


@pytest.mark.parametrize("name", [b"producer-0", b"\xffroducer-0"], ids=["reward", "producer"])
def test_an_altered_byte_is_found(log: MemoryLog, bucket: Bucket, name: bytes) -> None:
    (entry,) = with_episodes(bucket).segments_added
    rewards = segments.read(bucket, entry, segments.episode_schema(SPEC)).column("reward").values
    data = bytearray(bucket.read(entry.name).to_pybytes().replace(b"producer-0", name))
    data[data.index(rewards.to_numpy().tobytes())] ^= 1
    bucket.put(entry.name, bytes(data))
    report = verify(bucket, log)
    assert wrong(report) == {"segments_damaged": 1, "episodes_missing": entry.rows, "steps_missing": entry.steps}
    assert report.findings[0] == f"segment {entry.name}: its bytes are not those that were written: restore it"


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


def after_newest(bucket: Bucket, **changed: Any) -> Commit:
    """Add a commit that judged no record."""
    newest = commits.newest(bucket, 0)
    assert newest is not None
    unchanged: dict[str, Any] = dict.fromkeys(("segments_added", "open_added", "open_removed"), ())
    commit = replace(newest, number=newest.number + 1, **{**unchanged, **changed})
    bucket.put(commit.name, commit.to_json())
    return commit


@pytest.mark.parametrize("start", [0, 5])
def test_a_commit_that_judged_no_record_may_have_other_segments_for_the_same_rows(
    log: MemoryLog, bucket: Bucket, start: int
) -> None:
    newest = commits.newest(bucket, 0)
    assert newest is not None
    live = commits.live_at(bucket, newest)

    def together(entries: Sequence[SegmentEntry], schema: pa.Schema) -> pa.RecordBatch:
        return pa.concat_batches([segments.read(bucket, entry, schema) for entry in entries])

    number = newest.number + 1
    episodes, rows = (
        together(live.segments, segments.episode_schema(SPEC)),
        together(live.open, segments.open_schema(SPEC)),
    )
    whole = segments.write_episodes(bucket, layout.segment(0, number), episodes)
    still_open = segments.write_rows(bucket, layout.open_segment(0, number), [rows])
    compacted = after_newest(
        bucket,
        segments_added=(whole,),
        segments_removed=tuple(entry.name for entry in live.segments),
        open_added=(still_open,),
        open_removed=tuple(entry.name for entry in live.open),
    )
    partition = open_partition(log, bucket, LIMITS)
    assert partition.commit_found == compacted
    ScriptedProducer(log, "producer-7").begin()
    take_all(partition, log)
    partition.commit()
    log.trim(TOPIC, 0, start)
    report = verify(bucket, log)
    assert (report.ok, report.findings, report.episodes_stored) == (True, [], 34)


def test_what_a_commit_adds_that_judged_no_record_is_found(log: MemoryLog, bucket: Bucket) -> None:
    (entry,) = with_episodes(bucket).segments_added
    after_newest(bucket, segments_added=(entry,))
    assert wrong(verify(bucket, log)) == {"episodes_duplicated": entry.rows, "steps_duplicated": entry.steps}


def test_a_commit_that_ends_before_the_one_before_it_is_an_error(log: MemoryLog, bucket: Bucket) -> None:
    commit = after_newest(bucket, high_water=2)
    with pytest.raises(CorruptStoreError, match=rf"commit {commit.name}: it ends at 2, the last at \d+"):
        verify(bucket, log)


def test_a_commit_that_ends_within_a_hole_of_the_log_is_an_error() -> None:
    log, bucket = with_hole(at=2)
    change(bucket, 0, lambda commit: replace(commit, high_water=3))
    with pytest.raises(CorruptStoreError, match=r"it ends at 3, a record of the log at 4"):
        verify(bucket, log)


def first_reward_changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    at, column = batch.schema.get_field_index("reward"), batch.column("reward")
    values: NDArray[np.float32] = column.values.to_numpy().copy()
    values[0] += 1
    changed = list_column(SPEC.columns[2], values, column.offsets.to_numpy())
    return batch.set_column(at, batch.schema.field(at), changed)


def first_zero_negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    at, column = batch.schema.get_field_index("observation"), batch.column("observation")
    values: NDArray[np.float64] = column.values.values.to_numpy().reshape(-1, 5).copy()
    assert values[0, 1] == 0
    values[0, 1] = -0.0
    return batch.set_column(at, batch.schema.field(at), list_column(SPEC.columns[0], values, column.offsets.to_numpy()))


def of_another_env(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("env")
    env: NDArray[Any] = batch.column("env").to_numpy().copy()
    env[0] = 77
    return batch.set_column(at, batch.schema.field(at), pa.array(env))


@pytest.mark.parametrize("changed", [first_reward_changed, first_zero_negated])
def test_a_wrong_number_is_found(
    log: MemoryLog, bucket: Bucket, changed: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> None:
    forge(bucket, changed)
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


@pytest.mark.parametrize(
    "changes",
    [
        {"topic_id": "another"},
        {"cluster_id": "another"},
        {"log_clock_ms": 1},
        {"last": LastRecord(1, 2, "0" * 64)},
        {"last": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_the_next_owner_knows_the_log_by_is_compared(
    log: MemoryLog, bucket: Bucket, changes: dict[str, Any]
) -> None:
    newest = commits.newest(bucket, 0)
    assert newest is not None
    change(bucket, newest.number, lambda commit: replace(commit, **changes))
    report = verify(bucket, log)
    assert wrong(report) == {"commits_wrong": 1}
    assert report.findings[0].startswith(f"commit {newest.name}: its {next(iter(changes))} is ")


@pytest.mark.parametrize(
    "changes", [{"keys": 7}, {"ranges": None}, {"steps": 1}], ids=lambda changes: next(iter(changes))
)
def test_what_an_entry_says_is_held_against_the_segment(
    log: MemoryLog, bucket: Bucket, changes: dict[str, Any]
) -> None:
    commit = with_episodes(bucket)
    (entry,) = commit.segments_added
    change(bucket, commit.number, lambda commit: replace(commit, segments_added=(replace(entry, **changes),)))
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
        log.trim(TOPIC, partition, log.bounds(TOPIC, partition)[1])
    report = verify(bucket, log)
    assert (report.ok, report.messages, report.episodes_expected, report.episodes_stored) == (True, 0, 0, 34)


def test_records_that_were_deleted_before_they_were_committed_are_lost(log: MemoryLog, bucket: Bucket) -> None:
    high_water = log.bounds(TOPIC, 0)[1]
    for _ in range(5):
        append_tick(log, 0)
    log.trim(TOPIC, 0, high_water + 3)
    report = verify(bucket, log)
    assert (wrong(report), report.messages_behind) == ({"offsets_lost": 3}, 2)
    assert (report.exact, report.ok) == (True, False)
    assert report.findings == ["partition 0: 3 offsets were deleted from the log before they were judged"]
    partition = open_partition(log, bucket, LIMITS)
    partition.skip_to(high_water + 3)
    take_all(partition, log)
    partition.commit()
    for start in range(high_water + 3, high_water + 6):
        log.trim(TOPIC, 0, start)
        report = verify(bucket, log)
        assert (wrong(report), report.messages_behind) == ({"offsets_lost": 3}, 0)
        assert (report.counters["offsets_lost"], report.ok) == (3, False)


def test_records_that_were_deleted_before_the_first_commit_are_lost(log: MemoryLog, bucket: Bucket) -> None:
    empty = open_bucket("memory://")
    empty.put(layout.MANIFEST, bucket.read(layout.MANIFEST).to_pybytes())
    log.trim(TOPIC, 1, 4)
    report = verify(empty, log)
    assert wrong(report) == {"offsets_lost": 4}
    assert report.messages_behind == sum(log.bounds(TOPIC, number)[1] for number in range(2)) - 4


@pytest.mark.parametrize("before", ["segments/", layout.commit(0, 0)], ids=["reading", "judging"])
@pytest.mark.parametrize("beyond", [False, True])
def test_a_log_that_is_trimmed_meanwhile_is_verified_from_where_it_begins_then(before: str, beyond: bool) -> None:
    bucket = open_bucket("memory://")
    owned = Owned(bucket, spec=SPEC)
    # So many that the first commit is read for the records that it judged alone.
    owned.step(FULL_EVERY + 5)
    _, high_water = owned.log.bounds(TOPIC, 0)

    def go_on() -> None:
        owned.step(4)
        owned.log.trim(TOPIC, 0, high_water + 3 if beyond else 20)

    report = verify(Meddled(bucket, "read", before, go_on), owned.log)
    assert (report.ok, wrong(report), report.findings) == (True, {}, [])
    assert report.from_offsets[0] >= (high_water + 3 if beyond else 20)
    assert report.messages + report.messages_behind == owned.log.bounds(TOPIC, 0)[1] - report.from_offsets[0]


def test_a_log_that_is_deleted_faster_than_it_is_judged_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket("memory://")
    owned = Owned(bucket, spec=SPEC)
    owned.step(FULL_EVERY)
    reader = owned.log.reader

    def fleeing() -> Reader:
        """A reader before whose polls records are deleted."""
        made = reader()
        poll = made.poll

        def polled(seconds: float) -> list[Record]:
            owned.log.trim(TOPIC, 0, owned.log.bounds(TOPIC, 0)[0] + 5)
            return list(poll(seconds))

        monkeypatch.setattr(made, "poll", polled)
        return made

    monkeypatch.setattr(owned.log, "reader", fleeing)
    monkeypatch.setattr("penstock_consumers.verify._TRIES", 3)
    with pytest.raises(TopicError, match="partition 0: what was to be judged was deleted from the log before, 3 times"):
        verify(bucket, owned.log)


class LogWithHole(MemoryLog):
    """A log of which one record is not handed out, as where a broker keeps marks of its own."""

    hole = -1

    def take(self, positions: dict[tuple[str, int], int], max_records: int) -> list[Record]:
        return [record for record in super().take(positions, max_records) if record.offset != self.hole]


def with_hole(at: int) -> tuple[LogWithHole, Bucket]:
    """A log of five records with a hole, and a store of it: one commit."""
    log, bucket = LogWithHole(clock=Clock()), open_bucket("memory://")
    log.create(TOPIC)
    ScriptedProducer(log).begin()
    for _ in range(4):
        append_tick(log)
    partition = open_partition(log, bucket)
    for record in records(log):
        if record.offset != at:
            partition.take(record)
        if record.offset == 3:
            partition.commit()
    log.hole = at
    return log, bucket


def test_an_offset_without_a_record_is_no_loss() -> None:
    log, bucket = with_hole(at=2)
    report = verify(bucket, log)
    assert (report.ok, wrong(report), report.messages, report.findings) == (True, {}, 3, [])


def without_commits(bucket: Bucket, partition: int) -> Bucket:
    """A copy of a store that lacks the commits of a partition."""
    copy = open_bucket("memory://")
    for name in bucket.list(""):
        if not name.startswith(layout.commits(partition)):
            copy.put(name, bucket.read(name).to_pybytes())
    return copy


@pytest.mark.parametrize("kept", ["segments/", "open/"])
def test_commits_that_vanished_are_found(log: MemoryLog, bucket: Bucket, kept: str) -> None:
    bare = open_bucket("memory://")
    for name in without_commits(bucket, 1).list(""):
        if name.startswith((kept, "commits/")) or "/00000/" in name or name == layout.MANIFEST:
            bare.put(name, bucket.read(name).to_pybytes())
    report = verify(bare, log)
    assert wrong(report) == {"commits_wrong": 1}
    assert report.findings[0].startswith(f"partition 1: it has no commits, though there is {kept}00001/")


def test_a_first_commit_that_was_never_made_leaves_what_is_no_fault() -> None:
    """As where a consumer was killed in between: nothing is lost, the next one judges the same records."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3, Ends.TERMINATED), Row(1, 0, 0, 0, 2))
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.commit()
    report = verify(without_commits(bucket, 0), log)
    assert (report.ok, report.findings, report.messages_behind) == (True, [], 2)


def all_dead(stored: Sequence[OpenSegment], still_open: NDArray[np.int64], _: float) -> list[OpenSegment]:
    return [segment for segment in stored if not np.isin(segment.uid, still_open).any()]


@pytest.fixture
def long_log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """A log of one producer: an episode in env 0 that goes on and on, and others beside it."""
    # Small ones are joined with what is new; here each commit's stays as it is until all of it is dead.
    monkeypatch.setattr(open_rows, "to_rewrite", all_dead)
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    for number in range(4):
        producer.send(Row(0, 0, number, 7 * number, 7), Row(1, number, 0, 0, 2))
        producer.send(Row(1, number, 1, 2, 3, Ends.TERMINATED))
    return log


@pytest.fixture
def long_store(long_log: MemoryLog) -> Bucket:
    """A store of that log: a commit a record. Each open segment has a row of env 0 and one of env 1, which ended."""
    bucket = open_bucket("memory://")
    partition = open_partition(long_log, bucket)
    for record in records(long_log):
        partition.take(record)
        partition.commit()
    assert len(partition.live.open) == 4
    return bucket


def without(bucket: Bucket, gone: str) -> Bucket:
    """A copy of a store that lacks an object."""
    copy = open_bucket("memory://")
    for name in bucket.list(""):
        if name != gone:
            copy.put(name, bucket.read(name).to_pybytes())
    return copy


def forge_open(bucket: Bucket, changed: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Replace the second open segment by an altered one, whose size and checksum its commit names."""
    commit = commits.read(bucket, 0, 3)
    (entry,) = commit.open_added
    batch = changed(segments.read(bucket, entry, segments.open_schema(SPEC)))
    forged = segments.write_rows(bucket, layout.open_segment(0, 3), [batch])
    change(bucket, 3, lambda commit: replace(commit, open_added=(forged,)))


def test_open_rows_are_compared(long_log: MemoryLog, long_store: Bucket) -> None:
    report = verify(long_store, long_log)
    assert (report.ok, report.findings) == (True, [])
    assert (report.rows_open, report.steps_open) == (4, 28)
    assert report.steps_stored == 20
    assert report.counters["steps_read"] == report.steps_stored + report.steps_open


@pytest.mark.parametrize("start", [0, 5, 9])
def test_an_open_segment_that_is_gone_is_found(long_log: MemoryLog, long_store: Bucket, start: int) -> None:
    (entry,) = commits.read(long_store, 0, 3).open_added
    long_log.trim(TOPIC, 0, start)
    report = verify(without(long_store, entry.name), long_log)
    assert not report.ok
    assert report.segments_damaged == 1
    assert any(entry.name in finding for finding in report.findings)
    assert (wrong(report), report.from_offsets) == ({"segments_damaged": 1, "open_rows_wrong": 1}, {0: start})
    assert "open row missing: producer producer-0, incarnation 0, env 0, episode 0, chunk 1" in report.findings


@pytest.mark.parametrize("start", [0, 5, 9])
def test_an_altered_byte_of_an_open_segment_is_found(long_log: MemoryLog, long_store: Bucket, start: int) -> None:
    (entry,) = commits.read(long_store, 0, 3).open_added
    observation = segments.read(long_store, entry, segments.open_schema(SPEC)).column("observation")
    data = bytearray(long_store.read(entry.name).to_pybytes())
    data[data.index(observation.values.values.to_numpy().tobytes())] ^= 1
    long_store.put(entry.name, bytes(data))
    long_log.trim(TOPIC, 0, start)
    report = verify(long_store, long_log)
    assert (report.segments_damaged, report.ok) == (1, False)
    assert f"segment {entry.name}: its bytes are not those that were written: restore it" in report.findings
    if start == 0:
        assert report.open_rows_wrong == 1


@pytest.fixture
def owned() -> Owned:
    """A partition whose env has an episode open at each commit, of two messages; what was open before is collected."""
    owned = Owned(open_bucket("memory://"), spec=SPEC)
    owned.producer.send(Row(0, 0, 0, 0, 3))
    owned.commit()
    for number in range(20):
        owned.producer.send(Row(0, number, 1, 3, 1, Ends.TERMINATED), Row(1, number, 0, 0, 2, Ends.TRUNCATED))
        owned.producer.send(Row(0, number + 1, 0, 0, 3))
        owned.commit()
    assert gc(owned.bucket, 0.0) == 20
    owned.log.trim(TOPIC, 0, 1)
    return owned


def test_a_trimmed_log_is_verified_though_what_was_open_there_was_collected(owned: Owned) -> None:
    report = verify(owned.bucket, owned.log)
    assert (report.ok, report.findings, report.from_offsets) == (True, [], {0: 2})
    assert (report.episodes_expected, report.episodes_opened_before) == (40, 1)


@pytest.mark.parametrize(
    ("number", "changed", "found"),
    [
        (2, first_reward_changed, {"episodes_wrong": 1, "steps_wrong": 4}),
        (2, of_another_env, {"episodes_missing": 1, "episodes_unexpected": 1, "steps_missing": 4}),
        # What was opened below: its values are not known, its name is.
        (1, first_reward_changed, {}),
        (1, of_another_env, {"episodes_missing": 1, "episodes_unexpected": 1, "steps_missing": 4}),
    ],
)
def test_what_is_wrong_behind_what_was_collected_is_found(
    owned: Owned, number: int, changed: Callable[[pa.RecordBatch], pa.RecordBatch], found: dict[str, int]
) -> None:
    forge(owned.bucket, changed, number)
    assert wrong(verify(owned.bucket, owned.log)) == found


def test_a_log_that_is_trimmed_anywhere_is_verified_whatever_was_collected() -> None:
    """Of a stream with every kind of column; episodes go on over many commits, and some for ever."""
    owned = Owned(open_bucket("memory://"))
    owned.step(24)
    gc(owned.bucket, 0.0)
    assert live(owned.bucket).open
    opened_before = set()
    _, end = owned.log.bounds(TOPIC, 0)
    for start in range(1, end + 1):
        owned.log.trim(TOPIC, 0, start)
        report = verify(owned.bucket, owned.log)
        assert (report.ok, report.findings) == (True, [])
        assert report.from_offsets[0] - start <= 1
        opened_before.add(report.episodes_opened_before)
    assert opened_before == {0, 1}


def test_what_is_collected_while_the_log_is_judged_is_no_damage() -> None:
    timed = Timed(open_bucket("memory://"))
    owned = Owned(timed, spec=SPEC)
    # So many that the first commit is read for the records that it judged alone.
    owned.step(FULL_EVERY + 2)
    opened = live(timed).open

    def go_on() -> None:
        owned.step(12)
        timed.now += 3_600.0
        owned.step()
        gc(timed, 3_600.0)

    report = verify(Meddled(timed, "read", layout.commit(0, 0), go_on), owned.log)
    assert not {entry.name for entry in opened} & set(timed.list("open/"))
    assert (report.ok, wrong(report), report.findings) == (True, {}, [])
    assert report.rows_open


def first_step_observed_otherwise(batch: pa.RecordBatch) -> pa.RecordBatch:
    at, column = batch.schema.get_field_index("observation"), batch.column("observation")
    values: NDArray[np.float64] = column.values.values.to_numpy().reshape(-1, 5).copy()
    values[0, 4] = 666
    return batch.set_column(at, batch.schema.field(at), list_column(SPEC.columns[0], values, column.offsets.to_numpy()))


def from_another_record(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("offset")
    return batch.set_column(at, batch.schema.field(at), pa.array([1, 3]))


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (first_step_observed_otherwise, "wrong"),
        (from_another_record, "wrong"),
        (lambda batch: batch.slice(1), "missing"),
        (lambda batch: batch.take(pa.array([0, 1, 0])), "not in the log, or twice in the store"),
    ],
    ids=["observation", "offset", "dropped", "twice"],
)
def test_an_open_row_that_is_not_what_the_log_says_is_found(
    long_log: MemoryLog,
    long_store: Bucket,
    changed: Callable[[pa.RecordBatch], pa.RecordBatch],
    found: str,
) -> None:
    forge_open(long_store, changed)
    report = verify(long_store, long_log)
    assert (wrong(report), report.ok) == ({"open_rows_wrong": 1}, False)
    (finding,) = report.findings
    assert finding == f"open row {found}: producer producer-0, incarnation 0, env 0, episode 0, chunk 1"


def test_an_open_segment_that_no_commit_names_any_more_is_found(long_log: MemoryLog, long_store: Bucket) -> None:
    change(long_store, 3, lambda commit: replace(commit, open_added=()))
    assert wrong(verify(long_store, long_log)) == {"open_rows_wrong": 1}


class CountedScratch(Scratch):
    """Remembers the largest number of objects that it held."""

    most = 0

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        CountedScratch.most = max(CountedScratch.most, len(list(self.list(""))))
        return created


def test_verifying_goes_on_from_the_last_commit_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    log, bucket = MemoryLog(clock=Clock()), open_bucket("memory://")
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    partition = open_partition(log, bucket)
    read = [0]

    def counted(**entry: Any) -> SegmentEntry:
        read[0] += 1
        return SegmentEntry(**entry)

    def entries_read(number: int) -> int:
        """Go on to so many commits, and count the entries of segments that are read in verifying them."""
        for at in range(partition.high_water, number):
            # An episode a commit, and one whose rows lie in an open segment until the next.
            ended = [Row(1, at - 1, 1, 1, 1, Ends.TERMINATED)] if at > 1 else []
            producer.send(Row(0, at, 0, 0, 1, Ends.TERMINATED), *ended, Row(1, at, 0, 0, 1))
            take_all(partition, log)
            partition.commit()
        read[0] = 0
        assert verify(bucket, log).ok
        return read[0]

    take_all(partition, log)
    partition.commit()
    monkeypatch.setattr(verifying, "Scratch", CountedScratch)
    monkeypatch.setattr(commits, "SegmentEntry", counted)
    once = entries_read(40)
    assert entries_read(80) < 3 * once
    # The manifest, this commit and perhaps the last, the open segments of both.
    assert CountedScratch.most <= 5


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
    (entry,) = committed.commit.segments_added
    stored = segments.read(bucket, entry, segments.episode_schema(SPEC))
    assert stored.column("reward").values.to_numpy()[1] != 1 / 8
    report = verify(bucket, log)
    assert (report.ok, wrong(report)) == (True, {})
    forged = first_reward_changed(stored)
    written = segments.write_episodes(bucket, layout.segment(0, 0), forged)
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
