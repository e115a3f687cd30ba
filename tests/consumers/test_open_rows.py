from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers import open_rows
from penstock_consumers.judge import Judge
from penstock_consumers.open_rows import SEGMENT_BYTES, OpenSegment, to_rewrite
from penstock_consumers.store import commits, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits, SegmentEntry
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import CorruptStoreError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers import long_episodes
from tests.consumers.messages import (
    SPEC,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    WrappedBucket,
    append_tick,
    open_partition,
    stored_episodes,
    take_all,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock_consumers.partition import Partition
    from penstock_consumers.store.bucket import Bucket

MIB = 1 << 20


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    return log


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


class CountingBucket(WrappedBucket):
    """Counts the bytes that are read and put."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.read_bytes = 0
        self.put_bytes = 0

    def open(self, name: str) -> pa.NativeFile:
        return pa.PythonFile(_Counting(self, self.inner.read(name).to_pybytes()), mode="r")

    def read(self, name: str) -> pa.Buffer:
        assert not name.startswith("open/"), f"{name}: an open segment is never read, or mapped, as a whole"
        return self.inner.read(name)

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        self.put_bytes += sum(memoryview(piece).nbytes for piece in pieces) if name.startswith("open/") else 0
        self.inner.put(name, *pieces)


class _Counting(io.BytesIO):
    def __init__(self, bucket: CountingBucket, data: bytes) -> None:
        super().__init__(data)
        self.bucket = bucket

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.bucket.read_bytes += len(data)
        return data


# What is read.


def many_open(log: MemoryLog, envs: int, length: int) -> ScriptedProducer:
    producer = ScriptedProducer(log)
    producer.begin()
    for at in range(0, envs, 10):
        producer.send(*(Row(env, 0, 0, 0, length) for env in range(at, min(at + 10, envs))))
    return producer


def test_a_restart_reads_keys_and_the_end_of_an_episode_reads_little_more_than_it(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_rows, "_BATCH_BYTES", 64 << 10)
    producer = many_open(log, 40, 800)
    first = open_partition(log, bucket)
    take_all(first, log)
    first.commit()
    (entry,) = first.live.open
    assert entry.bytes > 1.5 * MIB

    counting = CountingBucket(bucket)
    partition = open_partition(log, counting)
    # A step has 52 bytes; its reward, by which steps are counted, 4.
    assert 0 < counting.read_bytes < entry.bytes / 8
    assert partition.open_episodes == 40

    counting.read_bytes = 0
    producer.send(Row(7, 0, 1, 800, 1, Ends.TERMINATED))
    take_all(partition, log)
    partition.commit()
    assert entry.bytes / 40 < counting.read_bytes < entry.bytes / 10
    assert partition.live.open == (entry,)
    (episode,) = stored_episodes(bucket)
    assert episode["observation"] == [[0, 0, 7, 0, step] for step in range(802)]


def test_an_open_segment_is_cut_into_batches_between_episodes_and_within_large_ones(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_rows, "_BATCH_BYTES", 6_000)
    monkeypatch.setattr(open_rows, "_MOST_BATCH_BYTES", 20_000)
    producer = ScriptedProducer(log)
    producer.begin()
    small = [Row(env, 0, 0, 0, 30) for env in range(10)]
    producer.send(*small, *(Row(10, 0, chunk, 100 * chunk, 100) for chunk in range(10)))
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.commit()
    (entry,) = partition.live.open
    read = segments.columns(bucket, entry, segments.open_schema(SPEC), ["env"])
    found = [batch.column("env").to_pylist() for batch in read]
    assert sum(found, []) == [*range(10), *[10] * 10]  # noqa: RUF017  (a few)
    large = [batch for batch in found if 10 in batch]
    assert 3 <= len(large) <= 5
    assert 2 <= len(found) - len(large) <= 6
    whole = segments.read(bucket, entry, segments.open_schema(SPEC))
    assert whole.column("env").to_pylist() == sum(found, [])  # noqa: RUF017  (a few)


@pytest.mark.parametrize("rows", [4, 6])
def test_an_open_segment_that_has_other_rows_than_its_commit_says_is_named(
    log: MemoryLog, bucket: Bucket, rows: int
) -> None:
    many_open(log, 5, 3)
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.commit()
    (entry,) = partition.live.open
    batch = segments.read(bucket, entry, segments.open_schema(SPEC))
    other = batch.slice(0, 4) if rows == 4 else pa.concat_batches([batch, batch.slice(0, 1)])
    forged = segments.write_rows(bucket, entry.name, [other])
    # Its size is what the commit names, and its rows are not.
    altered = SegmentEntry(entry.name, 5, entry.steps, forged.bytes, entry.crc32c)
    with pytest.raises(CorruptStoreError, match=rf"{entry.name}: {rows} rows, its commit names 5"):
        OpenSegment.load(bucket, altered, SPEC, Judge(Limits(idle_limit_ms=1_000)))


def test_an_open_segment_whose_keys_were_altered_is_named_before_any_value_is_read(
    log: MemoryLog, bucket: Bucket
) -> None:
    many_open(log, 5, 3)
    partition = open_partition(log, bucket)
    commit_all(partition, log)
    (entry,) = partition.live.open
    batch = segments.read(bucket, entry, segments.open_schema(SPEC))
    at = batch.schema.get_field_index("env")
    other = batch.set_column(at, batch.schema.field(at), pa.array([0, 1, 2, 3, 5], pa.int32()))
    forged = segments.write_rows(bucket, entry.name, [other])
    with pytest.raises(CorruptStoreError, match=rf"{entry.name}: its rows are not those that were written"):
        OpenSegment.load(bucket, replace(forged, keys=entry.keys), SPEC, Judge(Limits(idle_limit_ms=1_000)))


def test_an_open_segment_that_is_gone_when_its_episode_ends_is_named(log: MemoryLog, bucket: Bucket) -> None:
    producer = many_open(log, 2, 3)
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.commit()
    (entry,) = partition.live.open
    bucket.delete(entry.name)
    producer.send(Row(0, 0, 1, 3, 1, Ends.TERMINATED))
    take_all(partition, log)
    with pytest.raises(CorruptStoreError, match=entry.name):
        partition.commit()


@pytest.mark.parametrize("seed", range(3))
def test_an_open_segment_of_which_a_bit_is_altered_becomes_no_other_episode(
    log: MemoryLog, bucket: Bucket, seed: int
) -> None:
    """It is refused, or the bit meant nothing; by the consumer that wrote it too, as far as it reads it."""
    producer = many_open(log, 4, 20)
    first = open_partition(log, bucket)
    commit_all(first, log)
    (entry,) = first.live.open
    whole = bucket.read(entry.name).to_pybytes()
    producer.send(*(Row(env, 0, 1, 20, 1, Ends.TERMINATED) for env in range(4)))
    right = copied(bucket)
    commit_all(open_partition(log, right), log)

    rng = np.random.default_rng(seed)
    refused = 0
    for at in range(seed, len(whole), len(whole) // 40):
        altered = bytearray(whole)
        altered[at] ^= 1 << rng.integers(8)
        bucket.put(entry.name, bytes(altered))
        rotten = copied(bucket)
        try:
            commit_all(open_partition(log, rotten), log)
        except CorruptStoreError:
            refused += 1
        else:
            assert stored_episodes(rotten) == stored_episodes(right)
    assert refused > 10

    rewards = np.arange(20, dtype=np.float32) / 8
    assert rewards.tobytes() in whole
    bucket.put(entry.name, whole.replace(rewards.tobytes(), (rewards + 1).tobytes()))
    with pytest.raises(CorruptStoreError, match=rf"{entry.name}: batch 0 was altered"):
        commit_all(first, log)


def copied(bucket: Bucket) -> Bucket:
    copy = open_bucket("memory://")
    for name in bucket.list(""):
        copy.put(name, bucket.read(name).to_pybytes())
    return copy


# How many there are, and how often a row is written.


def stored(number: int, uid: NDArray[np.int64], size: NDArray[np.int64]) -> OpenSegment:
    """A segment of these episodes, each of which has as many bytes as `size` says."""
    entry = SegmentEntry(str(number), len(uid), 0, 0, 0)
    none = np.zeros(len(uid), np.int32)
    batches = np.array([0, len(uid)])
    return OpenSegment(entry, open_bucket("memory://"), SPEC.schema, uid, none, none, size[uid], batches)


@pytest.mark.parametrize(("scale", "count"), [(1 << 12, 2_000), (1 << 20, 400)])
@pytest.mark.parametrize("dying", [0.0, 0.02, 0.6])
def test_open_segments_stay_few_and_a_row_is_seldom_written_again(scale: int, count: int, dying: float) -> None:
    """Thousands of commits of random sizes, which end any of the episodes that are open."""
    rng = np.random.default_rng(round(dying * 100) + scale)
    kept: list[OpenSegment] = []
    # By uid.
    size = np.ceil(scale * rng.exponential(size=count)).astype(np.int64)
    is_open = np.zeros(len(size), np.bool_)
    new = written = 0
    for number in range(len(size)):
        is_open &= rng.random(len(size)) >= dying
        is_open[number] = True
        still = np.flatnonzero(is_open)
        rewritten = to_rewrite(kept, still, int(size[number]))
        kept = [segment for segment in kept if segment not in rewritten]
        carried = np.concatenate([[number], *(segment.uid[is_open[segment.uid]] for segment in rewritten)])
        kept.append(stored(number, carried, size))
        new, written = new + int(size[number]), written + int(size[carried].sum())
        # Of those that are large half lives at least; of the others there is one a level, or two for a while.
        large = [segment.size for segment in kept if segment.size >= SEGMENT_BYTES]
        assert len(kept) - len(large) <= 2 * 11
        assert sum(large) <= 2.5 * size[still].sum()
        assert np.isin(still, np.concatenate([segment.uid for segment in kept])).all()
    assert written <= 9 * new


def commit_all(partition: Partition, log: MemoryLog) -> None:
    take_all(partition, log)
    partition.commit()


def test_episodes_that_never_end_leave_few_open_segments(log: MemoryLog, bucket: Bucket) -> None:
    """A commit a message for long; every value is there in the end."""
    counting = CountingBucket(bucket)
    producer = ScriptedProducer(log)
    producer.begin()
    partition = open_partition(log, counting)
    for chunk in range(160):
        producer.send(*(Row(env, 0, chunk, 40 * chunk, 40) for env in range(2)))
        take_last(partition, log)
        assert len(partition.live.open) <= 6
        if chunk % 50 == 49:
            partition = open_partition(log, counting)
    live = sum(entry.bytes for entry in partition.live.open)
    assert counting.put_bytes < 12 * live
    producer.end()
    take_last(partition, log)
    assert partition.live.open == ()
    assert [len(episode["reward"]) for episode in stored_episodes(bucket)] == [6_400, 6_400]
    for episode in stored_episodes(bucket):
        assert [item[4] for item in episode["observation"]] == list(range(6_401))


def take_last(partition: Partition, log: MemoryLog) -> None:
    reader = log.reader()
    reader.seek(TOPIC, 0, partition.high_water)
    for record in reader.poll(0):
        partition.take(record)
    reader.close()
    partition.commit()


def test_what_is_mostly_dead_is_written_anew_though_nothing_new_is_open(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = many_open(log, 5, 50)
    partition = open_partition(log, bucket)
    commit_all(partition, log)
    monkeypatch.setattr(open_rows, "SEGMENT_BYTES", 1)
    (entry,) = partition.live.open
    producer.send(*(Row(env, 0, 1, 50, 1, Ends.TERMINATED) for env in (0, 1)))
    commit_all(partition, log)
    assert partition.live.open == (entry,)
    producer.send(Row(3, 0, 1, 50, 1, Ends.TERMINATED))
    commit_all(partition, log)
    newest = commits.newest(bucket, 0)
    assert newest is not None
    # An episode a segment, since the size of one is past the limit.
    assert newest.open_removed == (entry.name,)
    assert [(each.rows, each.steps) for each in newest.open_added] == [(1, 50), (1, 50)]
    append_tick(log)
    commit_all(partition, log)
    assert partition.live.open == newest.open_added


def test_rows_that_are_written_again_after_newer_ones_keep_their_place(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = many_open(log, 3, 50)
    partition = open_partition(log, bucket)
    commit_all(partition, log)
    (older,) = partition.live.open
    monkeypatch.setattr(open_rows, "SEGMENT_BYTES", 2_500)
    producer.send(Row(0, 0, 1, 50, 50))
    commit_all(partition, log)
    producer.send(*(Row(env, 0, 1, 50, 1, Ends.TERMINATED) for env in (1, 2)))
    commit_all(partition, log)
    newer, again = partition.live.open
    commit = partition.commit_found
    assert commit is not None
    assert (commit.open_removed, commit.open_added) == ((older.name,), (again,))
    assert newer.rows == again.rows == 1
    producer.send(Row(0, 0, 2, 100, 1, Ends.TERMINATED))
    commit_all(partition, log)
    longest = stored_episodes(bucket)[0]
    assert longest["chunk_first_step"] == [0, 50, 100]
    assert [item[4] for item in longest["observation"]] == list(range(102))


# Memory.


def carried(folder: Path, envs: int, steps: int, commit_bytes: int) -> dict[str, Any]:
    """What a consumer in a process of its own saw.

    Its resident memory is measured, `VmHWM`: what the kernel would kill a pod for. A limit of its address space would
    say nothing of that, since allocators reserve far more than they use.
    """
    command = [sys.executable, "-m", long_episodes.__name__, str(folder), *map(str, (envs, steps, commit_bytes))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own module)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["right"], found["left_open"]) == (envs, 0)
    return found


def test_memory_does_not_grow_with_what_is_open(tmp_path: Path) -> None:
    found = carried(tmp_path / "store", 8, 704, 8 * MIB)
    assert found["open_bytes"] > 140 * MIB
    assert found["segments"] > 1
    # The episodes that are assembled at once, what waits for a commit, and what the allocators keep.
    assert found["most"] - found["before"] < 200 * MIB


@pytest.mark.soak
def test_sixteen_long_episodes_of_images_fit_into_512_mib(tmp_path: Path) -> None:
    """1.8 GB are open at once, and all end in one commit."""
    found = carried(tmp_path / "store", 16, 4_000, 32 * MIB)
    assert found["open_bytes"] > 1_700 * MIB
    assert found["most"] < 512 * MIB
