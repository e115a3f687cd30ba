from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import commits, layout, snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Live
from penstock_consumers.upkeep import Retention, Upkeep, UpkeepSettings, compact, gc, retain, upkeep
from penstock_consumers.upkeep.head import Head
from penstock_consumers.upkeep.upkeep import COLLECT_EVERY
from penstock_consumers.verify import verify
from penstock_schemas.errors import CorruptStoreError, FencedError, StoreError, StoreUnavailableError
from tests.consumers.messages import SPEC, WrappedBucket, open_partition, take_all
from tests.consumers.stores import Writer, episodes, stream
from tests.consumers.upkept import Meddled, Owned, Timed, live, newest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket


@pytest.fixture
def bucket() -> Timed:
    return Timed(open_bucket("memory://"))


def stored(bucket: Bucket) -> set[str]:
    return {name for prefix in layout.segments(0) for name in bucket.list(prefix)}


def live_at(bucket: Bucket, number: int) -> set[str]:
    return commits.live_at(bucket, commits.read(bucket, 0, number)).names


def settled(bucket: Timed, seconds: float) -> int:
    """The newest commit that was written so long before the newest of all, found the simple way."""
    last = newest(bucket).number
    written = [bucket.modified(layout.commit(0, number)) for number in range(last + 1)]
    return max((number for number, at in enumerate(written) if at <= written[-1] - seconds), default=0)


@pytest.mark.parametrize("seconds", [0.0, 7.0, 25.0])
def test_exactly_what_is_out_of_reach_goes(bucket: Timed, seconds: float) -> None:
    owned = Owned(bucket, spec=SPEC)
    for turn in range(6):
        owned.step(5)
        compact(bucket, 10**6)
        if turn == 4:
            retain(bucket, Retention(steps=30))
        before = stored(bucket)
        gc(bucket, seconds)
        at = settled(bucket, seconds)
        reachable = set().union(*(live_at(bucket, number) for number in range(at, newest(bucket).number + 1)))
        after = stored(bucket)
        assert reachable <= after
        assert all(name in reachable or (layout.written_for(name) or 0) >= at for name in after)
        assert before - after == set(bucket.deleted)
        bucket.deleted.clear()
    assert len(stored(bucket)) < 30
    assert verify(bucket, owned.log).ok


def test_nothing_goes_while_all_commits_are_young(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(10)
    compact(bucket, 10**6)
    assert gc(bucket, 3600.0) == 0
    bucket.now += 3600.0
    # Only the storage's clock counts, and it is read where there is a commit.
    assert gc(bucket, 3600.0) == 0
    owned.step()
    assert gc(bucket, 3600.0) > 0


def test_a_writer_that_was_paused_finds_its_number_taken_when_its_segments_are_gone(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(3)
    left: list[bool] = []

    class Paused(WrappedBucket):
        """Where a zombie stands still: it has written its segments, and not its commit."""

        def create(self, name: str, data: bytes) -> bool:
            number = newest(bucket).number + 1
            assert name == layout.commit(0, number)
            written = {at for at in stored(bucket) if layout.written_for(at) == number}
            assert written
            for _ in range(8):
                # Others take its number, and go on.
                owned.step()
                gc(bucket, 9.0)
                assert settled(bucket, 9.0) > number or written <= stored(bucket)
                left.append(bool(written & stored(bucket)))
            return super().create(name, data)

    zombie = open_partition(owned.log, Paused(bucket))
    owned.send()
    take_all(zombie, owned.log)
    with pytest.raises(FencedError):
        zombie.commit()
    assert (left[0], left[-1]) == (True, False)
    assert verify(bucket, owned.log).ok


def test_what_is_written_for_the_next_commit_stays_whatever_the_age(bucket: Timed) -> None:
    writer = Writer(bucket, stream())
    for number in range(4):
        writer.commit(0, episodes(writer.spec, [3], first=number), high_water=number + 1)
    for at in range(6):
        ahead = bucket.inner, layout.segment(0, at)
        ahead[0].put(ahead[1], b"written, and not committed")
        gc(bucket, 0.0)
        assert (ahead[1] in stored(bucket)) == (at >= 3)


def test_what_is_no_segment_stays(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    strays = ["segments/00000/README", "open/00000/7.arrow", "segments/00000/000000000000-x.arrow"]
    for name in strays:
        bucket.put(name, b"stray")
    owned.step(5)
    compact(bucket, 10**6)
    gc(bucket, 0.0)
    assert set(strays) <= stored(bucket)


def test_a_named_snapshot_holds_what_it_names_until_it_is_removed(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    snapshots.create(bucket, "before")
    seen = [episode.id for episode in Replay.open(bucket).episodes()]
    owned.step(9)
    compact(bucket, 10**6)
    retain(bucket, Retention(steps=5))
    owned.step(2)
    gc(bucket, 0.0)
    held = Replay.open(bucket, snapshot="before")
    assert [episode.id for episode in held.episodes()] == seen
    assert held.snapshot == {0: 11}
    snapshots.remove(bucket, "before")
    assert gc(bucket, 0.0) > 10
    assert stored(bucket) == live_at(bucket, newest(bucket).number)


@pytest.mark.parametrize("before", ["list", "delete"])
def test_a_snapshot_that_is_named_while_a_collection_runs_is_whole(bucket: Timed, before: str) -> None:
    """Whether the collection has looked for names already or not: what is named lives, so it is not taken."""
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    compact(bucket, 10**6)
    owned.step(3)

    def named() -> None:
        snapshots.create(bucket, "meanwhile")
        owned.step(9)
        compact(bucket, 10**6)

    gc(Meddled(bucket, before, "segments/" if before == "delete" else layout.SNAPSHOTS, named), 0.0)
    owned.step(2)
    gc(bucket, 0.0)
    assert Replay.open(bucket, snapshot="meanwhile").steps


def test_what_a_snapshot_does_not_tell_is_not_guessed(bucket: Timed, caplog: pytest.LogCaptureFixture) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    snapshots.create(bucket, "before")
    compact(bucket, 10**6)
    owned.step(COLLECT_EVERY)
    bucket.put("snapshots/before.json", b"{")
    before = stored(bucket)
    with pytest.raises(CorruptStoreError, match=r"snapshot snapshots/before\.json: does not read.*remove or restore"):
        gc(bucket, 0.0)
    # The owner goes on.
    Upkeep(bucket, UpkeepSettings(collect_seconds=0.0)).run(owned.partition)
    assert before <= stored(bucket)
    assert "partition 0 is not wholly collected" in caplog.text


def test_a_reader_that_is_overtaken_is_told_and_goes_on_at_a_newer_commit(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    replay = Replay.open(bucket)
    found = replay.episodes()
    first = next(found).id
    compact(bucket, 10**6)
    owned.step(1)
    gc(bucket, 0.0)
    with pytest.raises(
        StoreError,
        match=r"was collected since the snapshot was taken that is read \(partition 0, commit 11; the newest is 13\): "
        r"read a newer one \(`refresh\(\)` more often\), .*`--collect-seconds`",
    ) as told:
        list(found)
    assert not isinstance(told.value, CorruptStoreError)
    assert replay.refresh()
    again = [episode.id for episode in replay.episodes()]
    assert again[0] == first
    assert again == [episode.id for episode in Replay.open(bucket).episodes()]


def test_a_segment_that_is_missing_though_it_lives_is_no_collected_one(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    gone = live(bucket).segments[3]
    replay = Replay.open(bucket)
    bucket.delete(gone.name)
    owned.step(3)
    with pytest.raises(CorruptStoreError, match=f"{gone.name}: it is missing from store"):
        list(replay.episodes())


def test_leftovers_go_once_their_writers_are_out_of_reach(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    names = [f"{folder}.x.json.0" for folder in (*layout.segments(0), "commits/00000/000000000/", "policies/")]
    for name in names:
        bucket.left[name] = bucket.now
    owned.step(1)
    bucket.left["open/00000/.young.0"] = bucket.now + 3.0
    bucket.left["open/00001/.another's.0"] = 0.0
    owned.step(5)
    gc(bucket, 3600.0)
    assert not bucket.deleted
    gc(bucket, bucket.now - bucket.left[names[0]] - 5.0)
    assert set(names) <= set(bucket.deleted)
    assert list(bucket.left) == ["open/00000/.young.0", "open/00001/.another's.0"]


def test_what_a_dead_writer_left_in_a_folder_is_deleted(tmp_path: Path) -> None:
    owned = Owned(open_bucket(tmp_path), spec=SPEC)
    owned.step(2)
    left = [
        tmp_path / "segments/00000" / f".{'0' * 11}2-{'a' * 32}.arrow.{'b' * 32}",
        tmp_path / "commits/00000/000000000" / f".000000000002.json.{'c' * 32}",
    ]
    for path in left:
        path.write_bytes(b"half")
    owned.step()
    young = left[0].with_name(f".young.{'d' * 32}")
    young.write_bytes(b"half")
    committed = owned.bucket.modified(newest(owned.bucket).name)
    while young.stat().st_ctime <= committed:  # a file system's clock goes in steps
        young.touch()
    gc(owned.bucket, 0.0)
    assert not any(path.exists() for path in left)
    assert young.exists()


def test_what_dead_writers_left_of_older_commits_and_of_the_manifest_goes(bucket: Timed) -> None:
    writer = Writer(bucket, stream())
    left = ["commits/00000/000000000/.000000000999.json.0", ".store.json.0"]
    bucket.left = dict.fromkeys(left, bucket.now)
    for number in range(layout.COMMITS_PER_FOLDER + 10):
        writer.commit(0, high_water=number)
    gc(bucket, 0.0)
    assert sorted(bucket.deleted) == sorted(left)


class Counting(WrappedBucket):
    """Counts the operations by kind, and what listings answer."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.counts: dict[str, int] = {}

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.counts[operation.__name__] = self.counts.get(operation.__name__, 0) + 1
        return operation(*arguments)


def test_a_collection_asks_for_the_age_of_few_commits(bucket: Timed) -> None:
    writer = Writer(bucket, stream())
    for number in range(1_000):
        writer.commit(0, high_water=number)
    counting = Counting(bucket)
    gc(counting, 300.0)
    assert counting.counts["modified"] <= 12
    # The newest, the one that is absent; the settled one, and those since the last that lists what lives.
    assert counting.counts["read"] <= 4 + 100


def test_a_clock_that_went_back_takes_nothing_that_is_needed(bucket: Timed) -> None:
    owned = Owned(bucket, spec=SPEC)
    for turn in range(8):
        owned.step(4)
        compact(bucket, 10**6)
        bucket.now += (-1) ** turn * 50.0
        gc(bucket, 20.0)
        assert live_at(bucket, newest(bucket).number) <= stored(bucket)
    assert verify(bucket, owned.log).ok


def test_the_owner_collects_every_so_many_commits(bucket: Timed) -> None:
    writer, upkeep = Writer(bucket, stream()), Upkeep(bucket, UpkeepSettings(collect_seconds=0.0))
    collected = []
    for number in range(3 * COLLECT_EVERY):
        bucket.put(layout.segment(0, number), b"of one that died")
        writer.commit(0, high_water=number)
        upkeep.run(Head(bucket, 0))
        if bucket.deleted:
            collected.append(number)
            bucket.deleted.clear()
    assert collected == [COLLECT_EVERY, 2 * COLLECT_EVERY]


def test_a_missing_commit_is_named(bucket: Timed) -> None:
    writer = Writer(bucket, stream())
    for number in range(9):
        writer.commit(0, high_water=number)
    bucket.inner.delete(layout.commit(0, 4))
    with pytest.raises(CorruptStoreError, match=rf"commit {layout.commit(0, 4)}: it is missing"):
        gc(bucket, 3.0)


def test_a_partition_without_commits_has_nothing_to_collect(bucket: Timed) -> None:
    assert gc(bucket, 0.0) == 0
    owned = Owned(bucket, spec=SPEC)
    assert Upkeep(bucket, UpkeepSettings()).run(owned.partition).rewritten is False
    assert owned.partition.live == Live()


@pytest.mark.parametrize("operation", ["delete", "list"])
@pytest.mark.parametrize("error", [StoreError, StoreUnavailableError])
def test_what_may_not_be_deleted_stays_and_the_owner_goes_on(
    bucket: Timed, caplog: pytest.LogCaptureFixture, operation: str, error: type[Exception]
) -> None:
    class Locked(WrappedBucket):
        def operate(self, call: Callable[..., Any], *arguments: Any) -> Any:
            if call.__name__ == operation:
                raise error(f"store {self.url}: cannot {operation} {arguments[0]!r}: the bucket has a lock")
            return super().operate(call, *arguments)

    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    compact(bucket, 10**6)
    owned.step(COLLECT_EVERY)
    assert Upkeep(Locked(bucket), UpkeepSettings(collect_seconds=0.0)).run(owned.partition).collected == 0
    assert "the bucket has a lock" in caplog.text


def test_one_object_that_may_not_be_deleted_keeps_no_other(bucket: Timed) -> None:
    class Locked(WrappedBucket):
        def delete(self, name: str) -> None:
            if name == locked:
                raise StoreError(f"store {self.url}: cannot delete {name!r}: the object has a lock")
            super().delete(name)

    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    compact(bucket, 10**6)
    owned.step(COLLECT_EVERY)
    goes = stored(bucket) - live_at(bucket, newest(bucket).number)
    locked = min(goes)
    with pytest.raises(StoreError, match=f"{locked}.*the object has a lock"):
        gc(Locked(bucket), 0.0)
    assert stored(bucket) & goes == {locked}


def test_a_partition_that_may_not_be_collected_keeps_no_other(bucket: Timed) -> None:
    class Locked(WrappedBucket):
        def delete(self, name: str) -> None:
            if name.startswith("segments/00000/"):
                raise StoreError(f"store {self.url}: cannot delete {name!r}: the object has a lock")
            super().delete(name)

    writer = Writer(bucket, stream())
    for partition in range(3):
        for number in range(partition + 1):
            bucket.put(layout.segment(partition, number), b"of one that died")
        for _ in range(4):
            writer.commit(partition)
    with pytest.raises(StoreError, match=r"segments/00000/.*the object has a lock"):
        gc(Locked(bucket), 0.0)
    assert stored(bucket) == set(bucket.list("segments/"))
    bucket.put(layout.segment(1, 0), b"of one that died")
    assert gc(bucket, 0.0) == 2
    assert not list(bucket.list("segments/"))


def test_a_call_tries_so_many_at_most_and_the_next_ones_others(bucket: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked(WrappedBucket):
        def delete(self, name: str) -> None:
            tried.append(name)
            if name in locked:
                raise StoreError(f"store {self.url}: cannot delete {name!r}: the object has a lock")
            super().delete(name)

    monkeypatch.setattr(upkeep, "MOST_COLLECTED", 5)
    monkeypatch.setattr(upkeep, "COLLECT_EVERY", 3)
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    compact(bucket, 10**6)
    owned.step(3)
    tried: list[str] = []
    locked = set(sorted(stored(bucket) - live_at(bucket, newest(bucket).number))[:6])
    keeper = Upkeep(Locked(bucket), UpkeepSettings(collect_seconds=0.0, compact_bytes=1))
    while stored(bucket) - locked - live_at(bucket, newest(bucket).number):
        tried.clear()
        keeper.run(owned.partition)
        assert len(tried) <= 5
        owned.step(1)
    assert locked <= stored(bucket)


def test_a_call_deletes_so_many_at_most_and_the_next_ones_the_rest(
    bucket: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_COLLECTED", 5)
    owned = Owned(bucket, spec=SPEC)
    owned.step(12)
    compact(bucket, 10**6)
    owned.step(COLLECT_EVERY)
    expected = len(stored(bucket))
    keeper = Upkeep(bucket, UpkeepSettings(collect_seconds=0.0, compact_bytes=1))
    told = [keeper.run(owned.partition).collected]
    while told[-1] == 5:
        told.append(keeper.run(owned.partition).collected)
    assert max(told) == 5
    assert sum(told) == expected - len(stored(bucket)) > 5
    assert gc(bucket, 0.0) == 0
