"""Opening a store opens no segment; each is opened when it is first read, and held against what its commit names."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.replay import Replay, opening, snapshot
from penstock_consumers.store import commits, layout, segments, snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Live
from penstock_consumers.upkeep import retain
from penstock_consumers.upkeep.retention import Retention
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError
from tests.consumers.messages import WrappedBucket
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket

SPEC = stream()
SEGMENTS = 5
MAPS = Path("/proc/self/maps")
RESTORE = "restore it; `penstock-store verify --quick` names all that are damaged"


class Watched(WrappedBucket):
    """A bucket that keeps the names of the segments that are read."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.reads: list[str] = []

    def read(self, name: str) -> pa.Buffer:
        if name.startswith("segments/"):
            self.reads.append(name)
        return self.inner.read(name)


@pytest.fixture
def bucket(bucket: Bucket) -> Watched:
    return Watched(bucket)


@pytest.fixture
def writer(bucket: Bucket) -> Writer:
    made = Writer(bucket, SPEC)
    for at in range(SEGMENTS):
        made.commit(at % 2, episodes(SPEC, [3, 4], first=2 * at, closed_offset=at), high_water=at + 1)
    return made


@pytest.mark.usefixtures("writer")
def test_opening_opens_no_segment(bucket: Watched) -> None:
    replay = Replay.open(bucket)
    assert (replay.steps, replay.episodes_stored, replay.snapshot) == (7 * SEGMENTS, 2 * SEGMENTS, {0: 2, 1: 1})
    taken = snapshot.take(bucket, SPEC)
    assert [entry.steps for entry in taken.entries] == [7] * SEGMENTS
    assert taken.first_step.tolist() == [7 * at for at in range(SEGMENTS + 1)]
    assert taken.first_episode.tolist() == [2 * at for at in range(SEGMENTS + 1)]
    snapshots.create(bucket, "named")
    assert Replay.open(bucket, snapshot="named").steps == replay.steps
    assert bucket.reads == []


@pytest.mark.usefixtures("writer")
def test_a_segment_is_opened_when_it_is_first_read_and_once(bucket: Watched) -> None:
    taken = snapshot.take(bucket, SPEC)
    third = taken.segment(3)
    assert third.entry is taken.entries[3]
    assert taken.segment(3) is third
    assert bucket.reads == [taken.entries[3].name]
    assert list(taken.segments)[3] is third
    assert sorted(bucket.reads) == sorted(entry.name for entry in taken.entries)


def test_what_is_open_is_taken_over_by_a_later_snapshot(bucket: Watched, writer: Writer) -> None:
    before = snapshot.take(bucket, SPEC)
    opened = [before.segment(0), before.segment(4)]
    writer.commit(1, episodes(SPEC, [5], first=20, closed_offset=9), high_water=10)
    after = snapshot.take(bucket, SPEC, before)
    bucket.reads.clear()
    assert [after.segment(0), after.segment(4)] == opened
    assert bucket.reads == []
    assert after.segment(5).entry.steps == 5


@pytest.mark.usefixtures("writer")
def test_no_more_stay_open_than_can_be_mapped(bucket: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_KEPT", 2)
    taken = snapshot.take(bucket, SPEC)
    for _ in range(100):
        for number in range(3):
            taken.segment(number)
            assert len(taken.opener._kept) <= 2
    # Of three that are read in turn, one of those that were read longest ago would be the next each time.
    assert len(bucket.reads) < 270


def test_what_no_snapshot_in_use_lists_is_let_go_of(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    writer = Writer(bucket, SPEC)
    names: tuple[str, ...] = ()
    replay = None
    for at in range(5):
        made = writer.commit(0, episodes(SPEC, [3, 4], closed_offset=at), removed=names, high_water=at + 1)
        for name in names:
            bucket.delete(name)
        names = tuple(entry.name for entry in made.segments_added)
        if replay is None:
            replay = Replay.open(bucket)
        else:
            assert replay.refresh()
        assert sum(batch["reward"].size for batch in replay.scan()) == 7
        # What the scan had read is let go of, though there is nothing newer.
        gc.collect()
        assert not replay.refresh()
        mapped = [line for line in MAPS.read_text().splitlines() if str(tmp_path) in line]
        assert [("(deleted)" in line, names[0] in line) for line in mapped] == [(False, True)]


def test_what_an_older_snapshot_in_use_lists_stays_open(bucket: Watched, writer: Writer) -> None:
    before = snapshot.take(bucket, SPEC)
    opened, name = before.segment(0), before.entries[0].name
    writer.commit(0, removed=(name,), high_water=20)
    bucket.delete(name)
    after = snapshot.take(bucket, SPEC, before)
    assert before.segment(0) is opened
    opener = before.opener
    del before
    # There is nothing newer, but one is in use no more.
    assert snapshot.take(bucket, SPEC, after) is after
    assert name not in opener._kept


def test_a_cache_that_is_none_is_refused(bucket: Watched, writer: Writer, tmp_path: Path) -> None:
    assert writer.spec == SPEC
    with pytest.raises(SettingsError, match=rf"cache '{tmp_path}': give Replay.open a Cache"):
        Replay.open(bucket, cache=str(tmp_path))  # type: ignore[arg-type]  (that is tested)


def test_what_is_let_go_of_is_unmapped_unless_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_KEPT", 2)
    writer = Writer(open_bucket(tmp_path), SPEC)
    writer.commit(0, *(episodes(SPEC, [3], first=at, closed_offset=at) for at in range(20)))
    taken = snapshot.take(open_bucket(tmp_path), SPEC)
    held = taken.segment(0)
    for segment in taken.segments:
        assert segment.fixed("length").tolist() == [3]
    del segment
    assert MAPS.read_text().count(str(tmp_path)) <= 3
    np.testing.assert_array_equal(held.items("observation").view(slice(None))[:, 1], [0, 1, 2, 3])


@pytest.mark.usefixtures("writer")
def test_threads_open_segments_at_once(bucket: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_KEPT", 2)
    taken = snapshot.take(bucket, SPEC)
    together = threading.Barrier(4)

    def read(seed: int) -> bool:
        together.wait(60)
        order = np.random.default_rng(seed).integers(SEGMENTS, size=500).tolist()
        return all(taken.segment(number).entry is taken.entries[number] for number in order)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(4)))


@pytest.mark.parametrize("harm", ["cut", "empty", "other schema", "no file"])
def test_a_segment_that_is_not_what_was_written_is_refused_when_it_is_opened(
    bucket: Watched, writer: Writer, harm: str
) -> None:
    replay, entry = Replay.open(bucket), snapshot.take(bucket, SPEC).entries[0]
    whole = bucket.inner.read(entry.name).to_pybytes()
    other = Writer(open_bucket("memory://"), replace(SPEC, extras=()))
    batch = episodes(SPEC, [3, 4]).batch.drop_columns(["log_prob", "logits"])
    written = other.segment(0, replace(episodes(SPEC, [3, 4]), batch=batch))
    harmed = {
        "cut": whole[:-100],
        "empty": b"",
        "other schema": other.bucket.read(written.name).to_pybytes(),
        "no file": bytes(len(whole)),
    }[harm]
    bucket.inner.put(entry.name, harmed)
    told = {
        "cut": rf"{len(harmed)} bytes, its commit names {entry.bytes}: it was cut or altered",
        "empty": rf"0 bytes, its commit names {entry.bytes}: it was cut or altered",
        "other schema": "bytes, its commit names",
        "no file": "does not read: .*",
    }[harm]
    with pytest.raises(CorruptStoreError, match=rf"segment {entry.name}: .*{told}.*: {RESTORE}"):
        list(replay.episodes())
    with pytest.raises(CorruptStoreError, match=rf"segment {entry.name}: .*{told}.*: {RESTORE}"):
        list(segments.columns(bucket, entry, segments.episode_schema(SPEC), ["length"]))
    bucket.inner.put(entry.name, whole)
    assert len(list(replay.episodes())) == 2 * SEGMENTS
    assert writer.spec == replay.spec


@pytest.mark.usefixtures("writer")
def test_a_segment_that_is_another_one_is_refused_by_its_size_or_its_schema(bucket: Watched) -> None:
    taken = snapshot.take(bucket, SPEC)
    larger = Writer(open_bucket("memory://"), SPEC)
    bucket.inner.put(taken.entries[0].name, larger.bucket.read(larger.segment(0, episodes(SPEC, [3, 400])).name))
    with pytest.raises(CorruptStoreError, match=r"\d+ bytes, its commit names \d+: it was cut or altered"):
        taken.segment(0)
    rows = larger.segment(0, episodes(SPEC, [3, 4]))
    with pytest.raises(CorruptStoreError, match=f"2 rows, its commit names 3: it was altered: {RESTORE}"):
        opening.Opener(larger.bucket, SPEC).open(replace(rows, rows=3))
    odd = episodes(SPEC, [3, 4]).batch.append_column("metric.height", pa.array([0.0, 0.0]))
    entry = larger.segment(0, replace(episodes(SPEC, [3, 4]), batch=odd))
    with pytest.raises(
        CorruptStoreError, match=f"segment {entry.name}: its schema is not the store's: it was altered: {RESTORE}"
    ):
        opening.Opener(larger.bucket, SPEC).open(entry)


@pytest.mark.usefixtures("writer")
def test_a_value_that_was_altered_is_refused_by_who_verifies(bucket: Watched) -> None:
    entry = snapshot.take(bucket, SPEC).entries[0]
    whole = bucket.inner.read(entry.name).to_pybytes()
    reward = np.array([0.0, 1.0, 2.0]).tobytes()
    at = whole.index(reward)
    bucket.inner.put(entry.name, whole[:at] + np.array([0.0, 1.0, 9.0]).tobytes() + whole[at + len(reward) :])
    assert snapshot.take(bucket, SPEC).segment(0).items("reward").view(slice(3)).tolist() == [0.0, 1.0, 9.0]
    with pytest.raises(CorruptStoreError, match=f"segment {entry.name}: its bytes are not those that were written"):
        snapshot.take(bucket, SPEC, verify=True).segment(0)
    snapshots.create(bucket, "named")
    with pytest.raises(CorruptStoreError, match="its bytes are not those that were written: restore it"):
        snapshot.named(bucket, SPEC, "named", verify=True).segment(0)
    bucket.inner.put(entry.name, whole)
    assert snapshot.take(bucket, SPEC, verify=True).segment(0).entry == entry


def test_a_segment_that_was_collected_before_it_was_opened(bucket: Watched, writer: Writer) -> None:
    taken = snapshot.take(bucket, SPEC)
    opened = taken.segment(0)
    for number in (0, 1):
        writer.commit(0, removed=(taken.entries[number].name,), high_water=20)
        bucket.delete(taken.entries[number].name)
    assert taken.segment(0) is opened
    told = r"was collected since the snapshot was taken .*\(partition 0, commit 2; the newest is 4\): read a newer one"
    with pytest.raises(StoreError, match=told) as gone:
        taken.segment(1)
    assert not isinstance(gone.value, CorruptStoreError)
    assert len(list(snapshot.take(bucket, SPEC, taken).segments)) == SEGMENTS - 2


@pytest.mark.usefixtures("writer")
def test_a_segment_of_a_named_snapshot_that_is_missing(bucket: Watched) -> None:
    snapshots.create(bucket, "paper")
    taken = snapshot.named(bucket, SPEC, "paper")
    name = taken.entries[2].name
    bucket.delete(name)
    with pytest.raises(CorruptStoreError, match=f"segment {name}: it is missing .* nothing let it go: restore it"):
        taken.segment(2)
    snapshots.remove(bucket, "paper")
    with pytest.raises(
        StoreError, match=rf"{name} was collected, for the name 'paper' .* was removed: open another"
    ) as gone:
        taken.segment(2)
    assert not isinstance(gone.value, CorruptStoreError)
    with pytest.raises(StoreError, match="no snapshot 'paper' in it"):
        Replay.open(bucket, snapshot="paper")


def test_a_segment_of_a_named_snapshot_whose_name_was_given_anew(bucket: Watched, writer: Writer) -> None:
    snapshots.create(bucket, "best")
    taken = snapshot.named(bucket, SPEC, "best")
    name = taken.entries[0].name
    writer.commit(0, removed=(name,), high_water=20)
    snapshots.remove(bucket, "best")
    snapshots.create(bucket, "best")
    bucket.delete(name)
    with pytest.raises(StoreError, match=f"{name} was collected, for the name 'best' .* was removed: open") as gone:
        taken.segment(0)
    assert not isinstance(gone.value, CorruptStoreError)


def test_what_lives_after_many_commits_is_what_lives_after_each(bucket: Watched) -> None:
    writer = Writer(bucket, SPEC)
    rng = np.random.default_rng(0)
    made, names, live = [], [], Live()
    for number in range(30):
        gone = tuple(name for name in names if rng.random() < 0.2)
        added = tuple(replace(ENTRY, name=layout.segment(0, number)) for _ in range(rng.integers(3)))
        opened = tuple(replace(ENTRY, name=layout.open_segment(0, number), ranges=None) for _ in range(rng.integers(2)))
        commit = writer.commit(0, *added, removed=gone)
        made.append(replace(commit, open_added=opened, open_removed=tuple(entry.name for entry in live.open)))
        live = live.after(made[-1])
        names = [entry.name for entry in live.segments]
        assert Live().after(*made) == live
        assert [entry.name for entry in live.open] == [entry.name for entry in opened]
        assert not live.names & {*gone}
    assert commits.live_at(bucket, commit).segments == live.segments


ENTRY = commits.SegmentEntry(
    "", 1, 1, 1, 0, commits.Ranges((0, 0), (0, 0), (1, 1), (0.0, 0.0), (0, 0), (1,), ("producer",), {})
)


def test_what_retention_removed_was_stored_once() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3, 4]))
    writer.commit(0, episodes(writer.spec, [5], first=2, closed_offset=9), high_water=10)
    replay = Replay.open(bucket)
    assert retain(bucket, Retention(steps=5)).steps == 7
    assert replay.refresh()
    assert (replay.steps, replay.steps_ever) == (5, 12)
