from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.store import commits, layout, segments, snapshots
from penstock_consumers.store.commits import FULL_EVERY, Commit, Retired, SegmentEntry
from penstock_consumers.upkeep import Retention, compact, gc, retain
from penstock_consumers.verify import Report, quick, verify
from penstock_schemas.errors import StoreError
from tests.consumers.messages import SPEC, TOPIC, WrappedBucket
from tests.consumers.stores import Writer, episodes, stream
from tests.consumers.upkept import Meddled, Owned, Timed, live, newest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_consumers.store.bucket import Bucket


@pytest.fixture
def owned(bucket: Bucket) -> Owned:
    """A store of two partitions that was compacted, retired and collected, and has a named snapshot."""
    first = Owned(bucket, spec=SPEC, partitions=2)
    second = Owned(bucket, spec=SPEC, beside=first)
    first.step(9)
    second.step(3)
    snapshots.create(bucket, "before")
    compact(bucket, 10**6)
    first.step(4)
    retain(bucket, Retention(steps=15))
    gc(bucket, 0.0)
    return first


def wrong(report: Report) -> dict[str, int]:
    names = (
        *("episodes_missing", "episodes_duplicated", "episodes_unexpected", "episodes_wrong", "open_rows_wrong"),
        *("segments_damaged", "commits_wrong", "snapshots_damaged", "offsets_lost"),
    )
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def change(bucket: Bucket, changed: Callable[[Commit], Commit]) -> None:
    commit = newest(bucket)
    bucket.put(commit.name, changed(commit).to_json())


def test_a_store_that_adds_up(bucket: Bucket, owned: Owned) -> None:
    report = quick(bucket)
    assert (report.ok, wrong(report), report.findings) == (True, {}, [])
    full = verify(bucket, owned.log)
    for name in ("episodes_stored", "steps_stored", "episodes_retired", "steps_retired", "counters", "policy_versions"):
        assert getattr(report, name) == getattr(full, name)
    assert report.episodes_retired
    assert report.rows_open
    counters = report.counters
    assert report.steps_stored + report.steps_retired == counters["steps_ended"] + counters["steps_aborted"]


def test_no_store_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(StoreError, match=r"no store\.json there"):
        quick(bucket)


def test_an_empty_store_is_whole(bucket: Bucket) -> None:
    Writer(bucket, stream())
    assert quick(bucket).ok


def test_a_missing_commit_is_found_wherever_it_is(bucket: Bucket, owned: Owned) -> None:
    for number in (3, newest(bucket).number - 1):
        name = layout.commit(0, number)
        kept = bucket.read(name).to_pybytes()
        bucket.delete(name)
        report = quick(bucket)
        assert report.commits_wrong == 1
        assert report.findings == [
            f"commit {name}: it is missing, though later ones exist",
            *["snapshot before: it needs 1 of the objects that are named above"] * (number == 3),
        ]
        bucket.put(name, kept)
    assert quick(bucket).ok


def flip(bucket: Bucket, name: str) -> None:
    """Change a bit in the middle of an object."""
    data = bytearray(bucket.read(name).to_pybytes())
    data[len(data) // 2] ^= 1
    bucket.delete(name)
    bucket.put(name, bytes(data))


@pytest.mark.parametrize("how", ["missing", "unreadable"])
@pytest.mark.parametrize("hole", [0, 3, 5, 11])
def test_what_is_damaged_is_named_though_a_commit_is_missing_too(bucket: Bucket, hole: int, how: str) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    damaged = [live(bucket).segments[at].name for at in (2, 9)]
    for name in damaged:
        flip(bucket, name)
    name = layout.commit(0, hole)
    bucket.delete(name)
    if how == "unreadable":
        bucket.put(name, b"{")
    elif hole == 11:
        # It is the newest then: the one before it is.
        bucket.put(layout.commit(0, 12), b"{")
    report = quick(bucket)
    assert report.segments_damaged == 2
    for wrong_name in (name, *damaged):
        assert sum(wrong_name in finding for finding in report.findings) == 1
    assert len(report.findings) == 3 + (how == "missing" and hole == 11)


def test_a_missing_full_commit_is_filled_from_the_one_before(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(103)
    entries = live(bucket).segments
    flip(bucket, entries[1].name)
    bucket.delete(layout.commit(0, 100))
    report = quick(bucket)
    assert (report.segments_damaged, report.commits_wrong) == (1, 1)
    # What commit 100 added is known to nobody.
    (lost,) = commits_added(bucket, entries, 100)
    assert report.episodes_stored == sum(entry.rows for entry in entries) - entries[1].rows - lost.rows


def commits_added(bucket: Bucket, entries: Sequence[SegmentEntry], number: int) -> list[SegmentEntry]:
    """Those that were written for a commit."""
    return [entry for entry in entries if layout.written_for(entry.name) == number]


def test_what_a_missing_commit_let_go_is_not_missed(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(9)
    compact(bucket, 10**6)
    hole = newest(bucket).number
    owned.step(3)
    gc(bucket, 0.0)
    bucket.delete(layout.commit(0, hole))
    report = quick(bucket)
    assert wrong(report) == {"commits_wrong": 1}
    gone = newest(bucket).segments_added[0].name
    bucket.delete(gone)
    assert wrong(quick(bucket)) == {"commits_wrong": 1, "segments_damaged": 1}


def test_every_fault_is_named_once(bucket: Bucket, owned: Owned) -> None:
    held = snapshots.load(bucket, "before")[0].live.segments
    lone = [entry.name for entry in held if entry not in live(bucket).segments]
    both = [entry.name for entry in (*live(bucket).segments, *live(bucket, 1).segments)]
    names = {*lone, *both}
    assert len(names) > 5
    for name in names:
        flip(bucket, name)
    snapshots.create(bucket, "after")
    report = quick(bucket)
    for name in names:
        assert sum(name in finding for finding in report.findings) == 1
    assert report.snapshots_damaged == 2
    assert f"snapshot after: it needs {len(both)} of the objects that are named above" in report.findings


def test_commits_that_vanished_are_found(bucket: Bucket, owned: Owned) -> None:
    for name in list(bucket.list(layout.commits(1))):
        bucket.delete(name)
    snapshots.remove(bucket, "before")
    report = quick(bucket)
    assert wrong(report) == {"commits_wrong": 1}
    assert report.findings[0].startswith("partition 1: it has no commits, though there is ")


def test_a_listing_that_lags_is_no_fault(bucket: Bucket, owned: Owned) -> None:
    class Lagging(WrappedBucket):
        def list(self, prefix: str) -> list[str]:
            return sorted(self.inner.list(prefix))[:-3]

    assert quick(Lagging(bucket)).ok


@pytest.mark.parametrize("kind", ["segments", "open"])
@pytest.mark.parametrize("how", ["missing", "altered", "cut"])
def test_a_damaged_segment_is_found(bucket: Bucket, owned: Owned, kind: str, how: str) -> None:
    snapshots.remove(bucket, "before")
    entry = getattr(live(bucket), kind)[-1]
    data = bytearray(bucket.read(entry.name).to_pybytes())
    data[len(data) // 2] ^= 1
    bucket.delete(entry.name)
    if how != "missing":
        bucket.put(entry.name, bytes(data[:-9] if how == "cut" else data))
    report = quick(bucket)
    assert wrong(report) == {"segments_damaged": 1}
    assert entry.name in report.findings[0]


@pytest.mark.parametrize("how", ["quick", "full"])
@pytest.mark.parametrize("kind", ["segments", "open"])
def test_what_is_collected_while_it_is_read_is_no_damage(bucket: Bucket, how: str, kind: str) -> None:
    timed = Timed(bucket)
    owned = Owned(timed, spec=SPEC)
    owned.step(12)

    def go_on() -> None:
        compact(timed, 10**6)
        owned.step(11)
        timed.now += 3_600.0
        owned.step()
        assert gc(timed, 3_600.0) > 9

    before = live(timed)
    meddled = Meddled(timed, "read", getattr(before, kind)[0].name, go_on)
    report = quick(meddled) if how == "quick" else verify(meddled, owned.log)
    assert not before.names & live(timed).names
    assert (report.ok, wrong(report), report.findings) == (True, {}, [])
    assert report.episodes_stored == sum(entry.rows for entry in live(timed).segments)


def altered(bucket: Bucket, **changes: object) -> None:
    """Change what the newest commit's listing says of a segment."""

    def changed(commit: Commit) -> Commit:
        (entry,) = commit.segments_added
        return replace(commit, segments_added=(replace(entry, **changes),))  # type: ignore[arg-type]  (one of each kind)

    change(bucket, changed)


def test_what_an_entry_says_is_held_against_the_segment(bucket: Bucket) -> None:
    Owned(bucket, spec=SPEC).step(3)
    (entry,) = newest(bucket).segments_added
    assert entry.ranges is not None
    ranges = [
        replace(entry.ranges, **{name: (least - 1, most)})
        for name in ("closed_offset", "closed_ms", "length", "return_", "policy_version")
        for least, most in [getattr(entry.ranges, name)]
    ]
    sets = ({"ends": (0,)}, {"producers": None}, {"producers": ()}, {"metrics": {"m": (0.0, 0.0)}})
    ranges += [replace(entry.ranges, **each) for each in sets]
    kept = bucket.read(newest(bucket).name).to_pybytes()
    for changes in (*({"ranges": each} for each in ranges), {"keys": entry.keys ^ 1}, {"ranges": None}):
        altered(bucket, **changes)
        assert wrong(quick(bucket)) == {"commits_wrong": 1}
        bucket.put(newest(bucket).name, kept)
    altered(bucket, steps=entry.steps + 1)
    # And then the sum is not what was counted.
    assert wrong(quick(bucket)) == {"commits_wrong": 2}
    bucket.put(newest(bucket).name, kept)
    assert quick(bucket).ok


def test_an_episode_that_is_there_twice_is_found(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(3)
    entry = live(bucket).segments[0]
    again = segments.write_episodes(
        bucket, layout.segment(0, 2), segments.read(bucket, entry, segments.episode_schema(SPEC))
    )
    change(bucket, lambda commit: replace(commit, segments_added=(*commit.segments_added, again)))
    report = quick(bucket)
    assert (report.episodes_duplicated, report.steps_duplicated) == (entry.rows, entry.steps)
    assert not report.ok


@pytest.mark.parametrize("counter", ["episodes_ended", "steps_aborted", "rows_ended", "rows_read", "rows_orphan"])
def test_counts_that_do_not_add_up_are_found(bucket: Bucket, owned: Owned, counter: str) -> None:
    def changed(commit: Commit) -> Commit:
        return replace(commit, counters={**commit.counters, counter: commit.counters.get(counter, 0) + 1})

    change(bucket, changed)
    assert wrong(quick(bucket)) == {"commits_wrong": 1}


def test_a_segment_that_no_commit_names_any_more_is_missed(bucket: Bucket) -> None:
    Owned(bucket, spec=SPEC).step(3)
    change(bucket, lambda commit: replace(commit, segments_added=()))
    # The episodes, their steps; their rows are counted, whatever is stored.
    assert wrong(quick(bucket)) == {"commits_wrong": 2}


def test_open_rows_that_no_commit_names_any_more_are_missed(bucket: Bucket, owned: Owned) -> None:
    while not newest(bucket).open_added:
        owned.step()
    change(bucket, lambda commit: replace(commit, open_added=()))
    assert wrong(quick(bucket)) == {"commits_wrong": 1}


def test_what_was_retired_must_have_been_stored(bucket: Bucket, owned: Owned) -> None:
    change(bucket, lambda commit: replace(commit, retired=Retired()))
    assert wrong(quick(bucket)) == {"commits_wrong": 2}


def test_lost_offsets_are_told(bucket: Bucket, owned: Owned) -> None:
    change(bucket, lambda commit: replace(commit, counters={**commit.counters, "offsets_lost": 3}))
    report = quick(bucket)
    assert (report.exact, report.ok, report.offsets_lost) == (True, False, 3)


@pytest.mark.parametrize("how", ["segment", "altered", "commit", "json", "other"])
def test_a_snapshot_that_does_not_read_is_found(bucket: Bucket, owned: Owned, how: str) -> None:
    held = snapshots.load(bucket, "before")[0]
    lone = next(entry for entry in held.live.segments if entry not in live(bucket).segments)
    if how == "segment":
        bucket.delete(lone.name)
    elif how == "altered":
        data = bytearray(bucket.read(lone.name).to_pybytes())
        data[-30] ^= 1
        bucket.put(lone.name, bytes(data))
    elif how == "json":
        bucket.put("snapshots/before.json", b"{")
    elif how == "other":
        path = "snapshots/before.json"
        bucket.put(path, bucket.read(path).to_pybytes().replace(lone.name.encode(), SPARE.name.encode()))
    else:
        bucket.delete(layout.commit(0, held.commit))
    report = quick(bucket)
    assert report.snapshots_damaged == 1
    assert not report.ok
    assert set(wrong(report)) <= {"snapshots_damaged", "commits_wrong"}


@pytest.mark.parametrize("before", ["snapshots/", layout.commit(0, 8)])
def test_a_snapshot_that_is_removed_while_it_is_checked_is_no_damage(bucket: Bucket, before: str) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(9)
    snapshots.create(bucket, "before")
    compact(bucket, 10**6)
    # So many that the snapshot's commit is read for the snapshot alone.
    owned.step(FULL_EVERY)

    def remove() -> None:
        snapshots.remove(bucket, "before")
        assert gc(bucket, 0.0)

    report = quick(Meddled(bucket, "read", before, remove))
    assert not snapshots.names(bucket)
    assert (report.ok, report.findings) == (True, [])


@pytest.mark.parametrize("how", ["quick", "full"])
def test_a_partition_that_begins_while_it_is_looked_for_is_no_fault(bucket: Bucket, how: str) -> None:
    first = Owned(bucket, spec=SPEC, partitions=2)
    first.step(2)
    # As of a consumer that died in its first commit.
    bucket.put(layout.segment(1, 0), b"cut")
    second = Owned(bucket, spec=SPEC, beside=first)
    meddled = Meddled(bucket, "list", "segments/00001/", lambda: second.step(3))
    report = quick(meddled) if how == "quick" else verify(meddled, first.log)
    assert newest(bucket, 1).segments_added
    assert (report.ok, report.findings) == (True, [])


def test_commits_of_a_partition_that_the_topic_does_not_have_are_found(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(3)
    for number in range(3):
        copy = replace(commits.read(bucket, 0, number), partition=1)
        bucket.put(copy.name, copy.to_json())
    full = verify(bucket, owned.log)
    assert wrong(full) == {"commits_wrong": 1}
    assert full.findings == [
        f"partition 1: it has commits, though the topic {TOPIC!r} has 1 partitions: move them out of the store"
    ]
    report = quick(bucket)
    assert wrong(report) == {"commits_wrong": 1}
    named = min(live(bucket).names)
    assert report.findings == [f"commit {copy.name}: it names a segment of another partition: {named}"]


SPARE = SegmentEntry(f"segments/00000/{'0' * 12}-{'a' * 32}.arrow", 1, 1, 1, 1)


@pytest.mark.parametrize("of", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_a_zero_is_a_zero_whatever_its_sign(bucket: Bucket, of: list[float]) -> None:
    """As rewards of minus a cost are where there is none."""
    writer = Writer(bucket, stream())
    stored = episodes(writer.spec, [3, 2])
    place = stored.batch.schema.get_field_index("return")
    batch = stored.batch.set_column(place, stored.batch.schema.field(place), pa.array(of))
    counters = {"episodes_ended": 2, "steps_ended": 5}
    writer.commit(0, replace(stored, batch=batch), high_water=1, counters=counters)
    report = quick(bucket)
    assert (report.ok, report.findings) == (True, [])


def test_not_a_number_is_a_value_like_any_other(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    stored = episodes(writer.spec, [3, 2])
    place = stored.batch.schema.get_field_index("return")
    batch = stored.batch.set_column(place, stored.batch.schema.field(place), pa.array([np.nan, 1.0]))
    counters = {"episodes_ended": 2, "steps_ended": 5}
    writer.commit(0, replace(stored, batch=batch), high_water=1, counters=counters)
    snapshots.create(bucket, "before")
    report = quick(bucket)
    assert (report.ok, report.findings) == (True, [])
    assert commits.newest(bucket, 0) is not None
