from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.replay import snapshot
from penstock_consumers.store import commits, layout
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import (
    Commit,
    Envs,
    LastRecord,
    Limits,
    Live,
    ProducerEntry,
    Ranges,
    Retired,
    SegmentEntry,
)
from penstock_schemas.errors import CorruptStoreError, FencedError, StoreFormatError
from tests.consumers.messages import SPEC, WrappedBucket

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket

RANGES = Ranges((1, 2), (3, 4), (5, 6), (-1.5, 2.5), (7, 8), (1, 4), ("a", "b"), {"m": (0.5, 1.5)})
FULL = Commit(
    partition=3,
    number=200,
    writer="w",
    high_water=77,
    topic_id="t",
    cluster_id="c",
    last=LastRecord(76, 1_234, "digest"),
    log_clock_ms=99,
    limits=Limits(1, 2, 3),
    producers={
        "producer-0": ProducerEntry(5, 6, 7, "start", Envs([0, 4], [1, 2], [3, 4], [50, 60], [700, 800])),
        "über": ProducerEntry(1, 0, 0),
    },
    counters={"rows_read": 1 << 40},
    segments_added=(SegmentEntry("segments/a", 1, 2, 3, 4, RANGES, 5),),
    segments_removed=("segments/b",),
    open_added=(SegmentEntry("open/a", 5, 6, 7, 8),),
    open_removed=("open/b", "open/c"),
    retired=Retired(7, 8, 9),
    live=Live((SegmentEntry("segments/a", 1, 2, 3, 4, RANGES, 5),), (SegmentEntry("open/a", 5, 6, 7, 8),)),
)


def entry(number: int) -> SegmentEntry:
    return SegmentEntry(f"segments/{number}", 1, 1, 1, number)


def numbered(number: int, *, writer: str = "one", added: tuple[int, ...] = (), removed: tuple[int, ...] = ()) -> Commit:
    return replace(
        FULL,
        number=number,
        writer=writer,
        live=None,
        segments_added=tuple(entry(at) for at in added),
        segments_removed=tuple(entry(at).name for at in removed),
        open_added=(),
        open_removed=(),
    )


def make_history(bucket: Bucket, length: int) -> list[Live]:
    """Commits that add a segment each, and every third takes an older one away; gives what lives at each."""
    at, lives = Live(), []
    for number in range(length):
        commit = numbered(number, added=(number,), removed=(number // 2,) if number % 3 == 2 else ())
        at = at.after(commit)
        commits.create(bucket, commit, at)
        lives.append(at)
    return lives


def test_json_holds_a_commit() -> None:
    for commit in (FULL, replace(FULL, live=None, last=None, producers={}, segments_added=(), open_removed=())):
        assert Commit.from_json(commit.to_json(), commit.name) == commit


def test_another_format_version_is_refused() -> None:
    data = json.dumps({**json.loads(FULL.to_json()), "format": layout.FORMAT + 1}).encode()
    with pytest.raises(StoreFormatError, match=rf"commit {FULL.name}: format version 4, this Penstock reads 3: use"):
        Commit.from_json(data, FULL.name)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"{}", b'{"format":3}', FULL.to_json()[:-30]])
def test_a_commit_that_does_not_read_is_named(data: bytes) -> None:
    with pytest.raises(CorruptStoreError, match=rf"commit {FULL.name}: does not read"):
        Commit.from_json(data, FULL.name)


def test_what_is_nested_without_end_is_named_too() -> None:
    with pytest.raises(CorruptStoreError, match=rf"commit {FULL.name}: does not read: RecursionError"):
        Commit.from_json(b"[" * 200_000, FULL.name)


def test_a_commit_under_another_name_is_named() -> None:
    for other in (replace(FULL, number=FULL.number + 1), replace(FULL, partition=FULL.partition + 1)):
        with pytest.raises(CorruptStoreError, match=f"commit {FULL.name}: it says that it is {other.name}"):
            Commit.from_json(other.to_json(), FULL.name)


def test_lists_of_envs_that_are_not_equally_long_do_not_read() -> None:
    described = json.loads(FULL.to_json())
    described["producers"]["producer-0"]["envs"]["bytes"].pop()
    with pytest.raises(CorruptStoreError, match=r"does not read: ValueError.'lists of envs are not equally long'"):
        Commit.from_json(json.dumps(described).encode(), FULL.name)


def test_names_sort_as_numbers_do() -> None:
    names = [layout.commit(0, number) for number in (9, 10, 99, 100, 12_345)]
    assert names == sorted(names)
    assert [layout.commit_named(name) for name in names] == [(0, number) for number in (9, 10, 99, 100, 12_345)]
    assert layout.commit_named(layout.commit(123_456, 10**13)) == (123_456, 10**13)


# What backups, desktops and people leave in a store.
STRAY = (
    "commits/00003/000000000009.json.bak",
    "commits/00003/000000000009.json~",
    "commits/00003/Thumbs.db",
    "commits/00003/9.json",
    "commits/00003/kept/000000000009.json",
    "commits/notanumber/000000000000.json",
    "commits/notanumber/README",
    "commits/000000000009.json",
    "commits/README",
)


@pytest.mark.parametrize("name", STRAY)
def test_what_is_no_commit_does_not_hide_the_newest(name: str) -> None:
    bucket = open_bucket("memory://")
    make_history(bucket, 5)
    bucket.put(name, b"stray")
    found = commits.newest(bucket, 3)
    assert found is not None
    assert found.number == 4


@pytest.mark.parametrize("name", STRAY)
def test_a_snapshot_passes_over_what_is_no_commit(name: str) -> None:
    bucket = open_bucket("memory://")
    commits.create(bucket, numbered(0), Live())
    bucket.put(name, b"stray")
    assert snapshot.take(bucket, SPEC).numbers == {3: 0}


def test_the_newest_commit_is_found() -> None:
    bucket = open_bucket("memory://")
    assert commits.newest(bucket, 3) is None
    make_history(bucket, 5)
    assert commits.newest(bucket, 2) is None
    for after in (-1, 0, 3, 4):
        found = commits.newest(bucket, 3, known=after)
        assert (found.number if found else None) == (4 if after < 4 else None)


class LaggingBucket(WrappedBucket):
    """A bucket whose listing does not show the newest names yet."""

    def __init__(self, inner: Bucket, hides: int) -> None:
        super().__init__(inner)
        self.hides = hides

    def list(self, prefix: str) -> list[str]:
        names = sorted(self.inner.list(prefix))
        return names[: max(len(names) - self.hides, 0)]


@pytest.mark.parametrize("hides", [1, 2, 7, 20])
def test_the_newest_commit_is_found_though_the_listing_lags(hides: int) -> None:
    bucket = open_bucket("memory://")
    make_history(bucket, 8)
    found = commits.newest(LaggingBucket(bucket, hides), 3)
    assert found is not None
    assert found.number == 7


def test_the_newest_commit_is_found_though_the_listing_has_no_order() -> None:
    class Reversed(WrappedBucket):
        def list(self, prefix: str) -> list[str]:
            return sorted(self.inner.list(prefix), reverse=True)

    bucket = open_bucket("memory://")
    make_history(bucket, 12)
    found = commits.newest(Reversed(bucket), 3)
    assert found is not None
    assert found.number == 11


def test_what_lives_is_told_at_every_commit() -> None:
    bucket = open_bucket("memory://")
    lives = make_history(bucket, 220)
    for number in (0, 1, 57, 99, 100, 101, 199, 200, 219):
        assert commits.live_at(bucket, commits.read(bucket, 3, number)) == lives[number]
    assert len(lives[219].segments) == 220 - 73


class CountingBucket(WrappedBucket):
    """Counts what is read."""

    reads = 0

    def read(self, name: str) -> object:
        self.reads += 1
        return self.inner.read(name)


def test_telling_what_lives_reads_no_more_than_the_commits_since_the_last_full_one() -> None:
    bucket = open_bucket("memory://")
    make_history(bucket, 205)
    counting = CountingBucket(bucket)
    commits.live_at(counting, commits.read(bucket, 3, 204))
    assert counting.reads == 4


def test_every_fiftieth_lists_what_lives() -> None:
    bucket = open_bucket("memory://")
    make_history(bucket, 202)
    listing = [number for number in range(202) if commits.read(bucket, 3, number).live is not None]
    assert listing == [0, 50, 100, 150, 200]


def test_a_full_commit_that_lists_nothing_is_refused() -> None:
    bucket = open_bucket("memory://")
    make_history(bucket, 3)
    bucket.put(layout.commit(3, 0), numbered(0).to_json())
    with pytest.raises(CorruptStoreError, match=r"000000000000\.json: it lists no segments"):
        commits.live_at(bucket, commits.read(bucket, 3, 2))


def test_a_missing_commit_is_named() -> None:
    with pytest.raises(CorruptStoreError, match=rf"commit {layout.commit(3, 1)}: it is missing"):
        commits.read(open_bucket("memory://"), 3, 1)


def test_the_second_writer_of_a_number_is_fenced() -> None:
    bucket = open_bucket("memory://")
    commits.create(bucket, numbered(1, writer="one"), Live())
    with pytest.raises(FencedError, match=rf"commit {layout.commit(3, 1)}: another consumer made it"):
        commits.create(bucket, numbered(1, writer="two"), Live())
    assert commits.read(bucket, 3, 1).writer == "one"


def test_the_same_writer_finds_its_own() -> None:
    bucket = open_bucket("memory://")
    commit = numbered(1)
    assert commits.create(bucket, commit, Live()) == commits.create(bucket, commit, Live()) == commit


def test_a_commit_that_judges_nothing_is_the_newest_but_for_its_segments() -> None:
    bucket = open_bucket("memory://")
    (at,) = make_history(bucket, 1)
    # What it did to open segments is not done twice.
    newest = replace(commits.read(bucket, 3, 0), open_added=FULL.open_added, open_removed=FULL.open_removed)
    commit, after = commits.rewrite(bucket, newest, at, added=[entry(7)], removed=[entry(0).name])
    assert (commit.number, commit.segments_added, commit.segments_removed) == (1, (entry(7),), (entry(0).name,))
    assert (commit.open_added, commit.open_removed) == ((), ())
    assert after == commits.live_at(bucket, commit) == Live((entry(7),))
    kept = ("partition", "high_water", "last", "log_clock_ms", "producers", "counters", "limits", "topic_id", "retired")
    assert all(getattr(commit, name) == getattr(newest, name) for name in kept)
    assert commit.writer != newest.writer
    last, nothing = commits.rewrite(bucket, commit, after, retired=[replace(entry(7), keys=(1 << 64) - 1)])
    # The sum of hashes is modulo 2^64, and goes on from that of FULL.
    assert last.retired == Retired(8, 9, 8)
    assert nothing == Live()
    with pytest.raises(FencedError):
        commits.rewrite(bucket, commit, after, removed=[entry(7).name])


def test_segments_lie_in_the_order_of_the_log_whatever_their_place_in_the_listing() -> None:
    ranges = [replace(RANGES, closed_offset=span) for span in ((4, 9), (0, 3), (10, 10))]
    listed = [replace(entry(at), ranges=of) for at, of in enumerate(ranges)]
    assert [each.name for each in commits.in_log_order(listed)] == ["segments/1", "segments/0", "segments/2"]


def test_an_empty_folder_of_commits_hides_nothing_and_costs_nothing(tmp_path: Path) -> None:
    """A writer that dies between making the folder and its first commit leaves one."""
    bucket = CountingBucket(open_bucket(tmp_path))
    make_history(bucket.inner, 12)
    (tmp_path / layout.commits(3) / "000000001").mkdir()
    found = commits.newest(bucket, 3)
    assert found is not None
    assert found.number == 11
    assert bucket.reads == 2
