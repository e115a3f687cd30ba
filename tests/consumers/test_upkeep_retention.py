from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import commits, layout
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import KEYS_MODULUS, Ranges, Retired, SegmentEntry
from penstock_consumers.upkeep import Retention, Upkeep, UpkeepSettings, compact, retain
from penstock_consumers.upkeep.retention import expired, shares
from penstock_consumers.verify import verify
from penstock_schemas.errors import SettingsError
from tests.consumers.messages import SPEC, TOPIC, open_partition, stored_episodes, take_all
from tests.consumers.upkept import Owned, counted, live, newest

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket


def segment(at: int, *, steps: int = 10, size: int = 100, ms: int = 0, version: int = 0) -> SegmentEntry:
    versions = (max(version - 5, 0), version)
    ranges = Ranges((at, at), (max(ms - 5, 0), ms), (1, 1), (0.0, 0.0), versions, (1,), ("producer",), {})
    return SegmentEntry(f"segment-{at}", 1, steps, size, 0, ranges)


def gone(live: list[SegmentEntry], newest_ms: int = 0, shares: int = 1, **limits: float) -> list[str]:
    # As a commit lists them: what was joined stands last though it is the oldest.
    listed = [*live[1:], live[0]]
    found = expired(listed, Retention(**limits), newest_ms=newest_ms, shares=shares)  # type: ignore[arg-type]  (steps and bytes are whole)
    assert found == live[: len(found)]
    return [entry.name for entry in found]


TEN = [segment(at) for at in range(10)]


def test_nothing_goes_that_no_limit_lets_go() -> None:
    assert gone(TEN) == []
    assert expired([], Retention(1, 1, 1.0, 1), newest_ms=10**15, shares=1) == []


@pytest.mark.parametrize(
    ("steps", "count"), [(1, 9), (10, 9), (11, 8), (45, 5), (50, 5), (100, 0), (101, 0), (10**9, 0)]
)
def test_so_many_steps_are_kept_at_least(steps: int, count: int) -> None:
    assert len(gone(TEN, steps=steps)) == count


@pytest.mark.parametrize(("size", "count"), [(1, 10), (99, 10), (100, 9), (450, 6), (500, 5), (999, 1), (1_000, 0)])
def test_so_many_bytes_are_kept_at_most(size: int, count: int) -> None:
    assert len(gone(TEN, bytes=size)) == count


@pytest.mark.parametrize(("newest_ms", "count"), [(0, 0), (60_000, 0), (60_001, 1), (63_000, 3), (69_001, 10)])
def test_a_segment_goes_once_all_of_it_is_old(newest_ms: int, count: int) -> None:
    aging = [segment(at, ms=at * 1_000) for at in range(10)]
    assert len(gone(aging, newest_ms, seconds=60.0)) == count


@pytest.mark.parametrize(("versions", "count"), [(1, 9), (2, 8), (9, 1), (10, 0), (99, 0)])
def test_so_many_versions_are_kept(versions: int, count: int) -> None:
    acted = [segment(at, version=at + 7) for at in range(10)]
    assert len(gone(acted, versions=versions)) == count


def test_a_segment_stays_for_the_newest_version_in_it() -> None:
    assert len(gone([segment(at, version=version) for at, version in enumerate((4, 5, 9))], versions=5)) == 1


def test_none_goes_before_an_older_one() -> None:
    acted = [segment(0, version=9), *(segment(at, version=0) for at in range(1, 10))]
    assert gone(acted, versions=1) == []
    aging = [segment(0), segment(1, ms=100_000), segment(2)]
    assert len(gone(aging, 100_000, seconds=1.0)) == 1


def test_a_limit_that_lets_go_is_enough() -> None:
    assert len(gone(TEN, steps=70, bytes=500)) == 5
    assert len(gone(TEN, steps=20, bytes=500)) == 8


@pytest.mark.parametrize(("limits", "count"), [({"steps": 200}, 5), ({"steps": 201}, 4), ({"bytes": 2_000}, 5)])
def test_the_limits_of_the_store_are_shared(limits: dict[str, float], count: int) -> None:
    assert len(gone(TEN, shares=4, **limits)) == count


def test_the_limits_of_the_store_are_shared_by_the_partitions_that_have_commits() -> None:
    bucket = open_bucket("memory://")
    for partition in (0, 3):
        bucket.put(layout.commit(partition, 0), b"{}")
    limits = (Retention(steps=1), Retention(bytes=1), Retention(seconds=1.0), Retention(versions=1))
    assert [shares(bucket, one) for one in limits] == [2, 2, 1, 1]


def two_partitions(bucket: Bucket) -> list[Owned]:
    first = Owned(bucket, spec=SPEC, partitions=2)
    return [first, Owned(bucket, spec=SPEC, beside=first)]


def test_what_goes_is_counted_and_verified() -> None:
    bucket = open_bucket("memory://")
    owned = two_partitions(bucket)
    for each in owned:
        each.step(10)
    before = [live(bucket, number) for number in range(2)]
    stored = stored_episodes(bucket, range(2))
    told = retain(bucket, Retention(steps=60))
    assert told.episodes
    assert 60 <= Replay.open(bucket).steps < 80
    for number in range(2):
        kept = live(bucket, number)
        went = [entry for entry in before[number].segments if entry not in kept.segments]
        assert newest(bucket, number).retired == counted(went)
        assert kept.open == before[number].open
    assert told.episodes + Replay.open(bucket).episodes_stored == len(stored)
    report = verify(bucket, owned[0].log)
    assert (report.ok, report.findings) == (True, [])
    assert (report.episodes_retired, report.steps_retired) == (told.episodes, told.steps)
    assert report.episodes_expected == report.episodes_stored + report.episodes_retired
    assert retain(bucket, Retention(steps=60)) == Retired()


def test_the_owner_retires_between_its_commits_and_counts_on() -> None:
    bucket = open_bucket("memory://")
    owned, upkeep = Owned(bucket, spec=SPEC), Upkeep(bucket, UpkeepSettings(retention=Retention(seconds=5.0)))
    for _ in range(20):
        owned.step()
        upkeep.run(owned.partition)
        # What was judged meanwhile waits on.
        take_all(owned.partition, owned.log)
    retired = newest(bucket).retired
    assert retired.episodes > 10
    last = newest(bucket).last
    assert last is not None
    oldest = min(entry.ranges.closed_ms[1] for entry in live(bucket).segments if entry.ranges)
    assert oldest >= last.timestamp_ms - 5_000
    assert open_partition(owned.log, bucket).commit_found == newest(bucket)
    report = verify(bucket, owned.log)
    assert (report.ok, report.episodes_retired) == (True, retired.episodes)


def test_little_is_joined_where_little_is_kept() -> None:
    """What goes by bytes goes by whole segments: were all one segment, all would go at once."""
    bucket = open_bucket("memory://")
    most = 100_000
    owned, upkeep = Owned(bucket, spec=SPEC), Upkeep(bucket, UpkeepSettings(retention=Retention(bytes=most)))
    sizes = []
    for _ in range(40):
        owned.step()
        while upkeep.run(owned.partition).rewritten:
            pass
        sizes.append(sum(entry.bytes for entry in live(bucket).segments))
    assert max(sizes) <= most
    assert max(entry.bytes for entry in live(bucket).segments) <= most / 8
    assert min(sizes[sizes.index(max(sizes)) :]) >= most * 3 / 4


def test_an_episode_that_was_retired_unknown_to_the_commits_is_missing() -> None:
    bucket = open_bucket("memory://")
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    retain(bucket, Retention(steps=30))
    commit = newest(bucket)
    # Another episode of the same length is as many and as long, and has another name.
    for retired in (
        replace(commit.retired, keys=commit.retired.keys ^ 1),
        replace(commit.retired, episodes=commit.retired.episodes + 1),
        replace(commit.retired, steps=commit.retired.steps - 1),
        Retired(),
    ):
        bucket.put(commit.name, replace(commit, retired=retired).to_json())
        report = verify(bucket, owned.log)
        assert not report.ok
        assert (report.episodes_missing, report.episodes_retired) == (commit.retired.episodes, 0)
        assert report.steps_missing == commit.retired.steps
        assert report.commits_wrong == (retired != Retired())
    bucket.put(commit.name, commit.to_json())
    assert verify(bucket, owned.log).ok


def test_other_episodes_than_those_that_were_retired_are_missing() -> None:
    """As many, and as long, by commits that agree with each other: only their names tell."""
    bucket = open_bucket("memory://")
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    retain(bucket, Retention(steps=30))
    commit = newest(bucket)
    for number in range(1, commit.number):
        added = commits.read(bucket, 0, number)
        if added.segments_added and added.segments_added[0].name in commit.segments_removed:
            other = replace(added.segments_added[0], keys=added.segments_added[0].keys ^ 1)
            bucket.put(added.name, replace(added, segments_added=(other,)).to_json())
            keys = commit.retired.keys - added.segments_added[0].keys + other.keys
            break
    bucket.put(commit.name, replace(commit, retired=replace(commit.retired, keys=keys % KEYS_MODULUS)).to_json())
    report = verify(bucket, owned.log)
    assert (report.ok, report.episodes_missing, report.commits_wrong) == (False, other.rows, 1)
    assert report.episodes_retired == commit.retired.episodes - other.rows


def test_what_is_missing_beside_what_was_retired_is_found() -> None:
    bucket = open_bucket("memory://")
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    retain(bucket, Retention(steps=30))
    commit = newest(bucket)
    lost, lost_too = live(bucket).segments[0], live(bucket).segments[-1]
    for entry in (lost, lost_too):
        bucket.put(commit.name, replace(commit, segments_removed=(*commit.segments_removed, entry.name)).to_json())
        report = verify(bucket, owned.log)
        assert not report.ok
        # The commit says less than it removed: then nothing of it is taken for retired.
        assert report.episodes_missing == commit.retired.episodes + entry.rows
        bucket.put(commit.name, commit.to_json())


@pytest.mark.parametrize("steps", [50, 10])
def test_a_log_that_begins_later_is_held_against_what_went_of_it(steps: int) -> None:
    """Also where a segment that went had episodes of before and after."""
    bucket = open_bucket("memory://")
    owned = Owned(bucket, spec=SPEC)
    owned.step(9)
    start = newest(bucket).high_water - 4
    owned.step(9)
    assert compact(bucket, 10**6)
    owned.step(4)
    retired = retain(bucket, Retention(steps=steps))
    assert verify(bucket, owned.log).episodes_retired == retired.episodes
    for at in (start, newest(bucket).high_water - 2, newest(bucket).high_water):
        owned.log.trim(TOPIC, 0, at)
        report = verify(bucket, owned.log)
        assert (report.ok, report.findings) == (True, [])
        assert report.episodes_retired <= retired.episodes


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="compact_bytes 1073741825: it may be 1073741824 at most"):
        UpkeepSettings(compact_bytes=(1 << 30) + 1)
