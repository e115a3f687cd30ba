from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.replay import Replay, snapshot
from penstock_consumers.store import commits, layout, snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import Retention, compact, gc, retain
from penstock_consumers.verify.quick import quick
from penstock_schemas.errors import CorruptStoreError, StoreError, StoreFormatError, StoreUnavailableError
from tests.consumers.messages import SPEC, WrappedBucket
from tests.consumers.upkept import Meddled, Owned, live, newest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from penstock_consumers.store.bucket import Bucket

NAME = "snapshots/before.json"


@pytest.fixture
def owned(bucket: Bucket) -> Owned:
    first = Owned(bucket, spec=SPEC, partitions=3)
    second = Owned(bucket, spec=SPEC, beside=first)
    first.step(5)
    second.step(4)
    return first


def ids(replay: Replay) -> list[str]:
    return [episode.id for episode in replay.episodes()]


def test_a_named_snapshot_is_the_newest_of_all_partitions(bucket: Bucket, owned: Owned) -> None:
    held = snapshots.create(bucket, "before")
    assert {number: of.commit for number, of in held.items()} == {0: 4, 1: 3}
    assert all(of.live.segments == live(bucket, number).segments for number, of in held.items())
    assert snapshots.load(bucket, "before") == held
    before = ids(Replay.open(bucket))
    owned.step(3)
    replay = Replay.open(bucket, snapshot="before")
    assert ids(replay) == before
    assert replay.snapshot == {0: 4, 1: 3}
    assert (replay.refresh(), list(replay.follow(lambda: False))) == (False, [])
    assert len(ids(Replay.open(bucket))) > len(before)


def test_names_are_listed_and_removed(bucket: Bucket, owned: Owned) -> None:
    assert snapshots.names(bucket) == []
    for name in ("b", "a.1", "2026-11-22_x"):
        snapshots.create(bucket, name)
    bucket.put("snapshots/no name.json", b"")
    assert snapshots.names(bucket) == ["2026-11-22_x", "a.1", "b"]
    snapshots.remove(bucket, "b")
    assert snapshots.names(bucket) == ["2026-11-22_x", "a.1"]
    snapshots.create(bucket, "b")


def test_a_name_is_taken_once(bucket: Bucket, owned: Owned) -> None:
    first = snapshots.create(bucket, "before")
    owned.step(2)
    with pytest.raises(StoreError, match="there is a snapshot 'before' already: choose another name, or remove it"):
        snapshots.create(bucket, "before")
    assert snapshots.load(bucket, "before") == first


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", ".hidden", "é", "x" * 101, "a\n"])
def test_what_can_be_no_name_is_refused(bucket: Bucket, owned: Owned, name: str) -> None:
    before = set(bucket.list(""))
    for act in (snapshots.create, snapshots.load, snapshots.remove):
        with pytest.raises(StoreError, match=r"(?s)is no name for a snapshot: take up to 100 letters"):
            act(bucket, name)
    assert set(bucket.list("")) == before


def test_a_name_that_is_not_there_is_told_with_those_that_are(bucket: Bucket, owned: Owned) -> None:
    with pytest.raises(StoreError, match=r"no snapshot 'after' in it; there are: none"):
        Replay.open(bucket, snapshot="after")
    snapshots.create(bucket, "before")
    for act in (lambda: Replay.open(bucket, snapshot="after"), lambda: snapshots.remove(bucket, "after")):
        with pytest.raises(StoreError, match=r"no snapshot 'after' in it; there are: before"):
            act()


def test_an_empty_store_has_nothing_to_name(bucket: Bucket) -> None:
    with pytest.raises(StoreError, match="it has no commits yet, so there is nothing to name 'before'"):
        snapshots.create(bucket, "before")
    assert snapshots.names(bucket) == []


def test_another_format_and_garbage_are_refused(bucket: Bucket, owned: Owned) -> None:
    snapshots.create(bucket, "before")
    kept = json.loads(bucket.read(NAME).to_pybytes())
    bucket.put(NAME, json.dumps({**kept, "format": layout.FORMAT + 1}).encode())
    with pytest.raises(StoreFormatError, match=f"snapshot {NAME}: format version 4, this Penstock reads 3"):
        snapshots.load(bucket, "before")
    for data in (b"", b"[]", b"{}", b'{"format":3}', json.dumps({**kept, "partitions": {"0": {}}}).encode()):
        bucket.put(NAME, data)
        with pytest.raises(CorruptStoreError, match=f"snapshot {NAME}: does not read"):
            Replay.open(bucket, snapshot="before")


def test_a_name_that_comes_late_is_given_to_what_is_newest_then(bucket: Bucket, owned: Owned) -> None:
    """Between reading the newest commits and naming them, what lived there was joined, and collected."""

    def overtake() -> None:
        owned.step(5)
        compact(bucket, 10**6)
        owned.step(1)
        gc(bucket, 0.0)

    snapshots.create(Meddled(bucket, "create", layout.SNAPSHOTS, overtake), "before")
    at = newest(bucket).number
    owned.step(9)
    compact(bucket, 10**6)
    owned.step(1)
    gc(bucket, 0.0)
    replay = Replay.open(bucket, snapshot="before")
    assert replay.snapshot[0] == at
    assert list(replay.episodes())


def test_a_collection_that_looked_for_names_before_takes_nothing_of_it(bucket: Bucket, owned: Owned) -> None:
    """The creator read the newest commits long ago; the collection ends only when the name is there and checked."""
    created: list[dict[int, snapshots.Held]] = []

    def overtake() -> None:
        owned.step(5)
        compact(bucket, 10**6)
        owned.step(1)
        # It has looked for names, found none, and is about to delete.
        meddled = Meddled(bucket, "delete", "", lambda: created.append(resume()))
        gc(meddled, 0.0)

    def resume() -> dict[int, snapshots.Held]:
        return snapshots.create(bucket, "other")

    snapshots.create(Meddled(bucket, "create", layout.SNAPSHOTS, overtake), "before")
    assert created
    for name in ("before", "other"):
        assert list(Replay.open(bucket, snapshot=name).episodes())


def test_a_store_that_always_changes_is_not_named(bucket: Bucket, owned: Owned) -> None:
    class Restless(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            created = super().create(name, data)
            owned.step()
            retain(bucket, Retention(steps=1))
            return created

    with pytest.raises(StoreError, match=r"compacted or retired each of the 5 times .* 'before': try again"):
        snapshots.create(Restless(bucket), "before")
    assert snapshots.names(bucket) == []


def test_two_that_name_at_once_do_not_both_believe_it(bucket: Bucket, owned: Owned) -> None:
    meddled = Meddled(bucket, "create", layout.SNAPSHOTS, lambda: snapshots.create(bucket, "before"))
    with pytest.raises(StoreError, match="there is a snapshot 'before' already"):
        snapshots.create(meddled, "before")


def test_an_answer_that_was_lost_is_no_other_one(bucket: Bucket, owned: Owned) -> None:
    class Lossy(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            super().create(name, data)
            return False

    held = snapshots.create(Lossy(bucket), "before")
    assert snapshots.load(bucket, "before") == held


def test_a_partition_that_came_later_is_not_in_it(bucket: Bucket, owned: Owned) -> None:
    snapshots.create(bucket, "before")
    third = Owned(bucket, spec=SPEC, beside=Owned(bucket, spec=SPEC, beside=owned))
    third.step(2)
    assert commits.newest(bucket, 2) is not None
    assert set(Replay.open(bucket, snapshot="before").snapshot) == {0, 1}


def test_commits_that_come_meanwhile_do_not_keep_a_snapshot_from_its_name(bucket: Bucket) -> None:
    """Each replaces open segments, which no reader of a snapshot opens."""
    owned = Owned(bucket, spec=SPEC)
    owned.step(5)

    class Busy(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            created = self.inner.create(name, data)
            owned.step()
            return created

    snapshots.create(Busy(bucket), "busy")
    owned.step(5)
    assert Replay.open(bucket, snapshot="busy").steps


def test_a_reader_names_exactly_what_it_reads(bucket: Bucket, owned: Owned) -> None:
    replay = Replay.open(bucket)
    before = ids(replay)
    first = [batch["reward"].tolist() for batch in islice(replay.transitions(32, seed=5), 3)]
    owned.step(3)
    replay.name("paper-v1")
    named = {number: of.commit for number, of in snapshots.load(bucket, "paper-v1").items()}
    assert named == replay.snapshot == {0: 4, 1: 3}
    owned.step(9)
    compact(bucket, 10**6)
    retain(bucket, Retention(steps=5))
    owned.step(1)
    gc(bucket, 0.0)
    again = Replay.open(bucket, snapshot="paper-v1")
    assert ids(again) == before
    assert [batch["reward"].tolist() for batch in islice(again.transitions(32, seed=5), 3)] == first
    assert quick(bucket).ok


def test_what_was_joined_or_retired_meanwhile_gets_no_name(bucket: Bucket, owned: Owned) -> None:
    """Its segments are there still, but a collection that is under way may take them."""
    for act in (lambda: compact(bucket, 10**6), lambda: retain(bucket, Retention(steps=5))):
        owned.step(9)
        taken = snapshot.take(bucket, SPEC)
        act()
        with pytest.raises(StoreError, match=r"named 'late' were joined or retired since they were read.*refresh\(\)"):
            taken.hold("late")
        assert snapshots.names(bucket) == []
        again = snapshot.take(bucket, SPEC, taken)
        again.hold("late")
        snapshots.remove(bucket, "late")


def test_who_is_killed_while_naming_what_is_gone_leaves_no_name(bucket: Bucket, owned: Owned) -> None:
    class Killed(BaseException):
        pass

    class Killing(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            super().create(name, data)
            raise Killed

    taken = snapshot.take(Killing(bucket), SPEC)
    owned.step(9)
    compact(bucket, 10**6)
    with pytest.raises(StoreError, match="were joined or retired"):
        taken.hold("late")
    assert snapshots.names(bucket) == []


@pytest.mark.parametrize("failure", [StoreUnavailableError("away"), StoreError("refused"), KeyboardInterrupt()])
def test_what_cannot_be_checked_once_it_has_a_name_loses_it(
    bucket: Bucket, owned: Owned, failure: BaseException
) -> None:
    class Failing(WrappedBucket):
        named = False

        def create(self, name: str, data: bytes) -> bool:
            self.named = True
            return super().create(name, data)

        def read(self, name: str) -> pa.Buffer:
            if self.named:
                raise failure
            return super().read(name)

    for act in (
        lambda failing: snapshots.create(failing, "before"),
        lambda failing: snapshot.take(failing, SPEC).hold("before"),
    ):
        with pytest.raises(type(failure)):
            act(Failing(bucket))
        assert snapshots.names(bucket) == []


def test_what_was_joined_gets_no_name_though_no_listing_shows_its_partition(bucket: Bucket, owned: Owned) -> None:
    class Lagging(WrappedBucket):
        def folders(self, prefix: str) -> Iterable[str]:
            return []

    owned.step(9)
    at = snapshot.take(bucket, SPEC).numbers
    compact(bucket, 10**6)
    with pytest.raises(StoreError, match="were joined or retired"):
        snapshot.numbered(Lagging(bucket), SPEC, at).hold("late")
    assert snapshots.names(bucket) == []


def test_what_is_joined_while_it_is_named_gets_no_name(bucket: Bucket, owned: Owned) -> None:
    owned.step(9)
    meddled = Meddled(bucket, "create", layout.SNAPSHOTS, lambda: compact(bucket, 10**6))
    taken = snapshot.take(meddled, SPEC)
    with pytest.raises(StoreError, match="were joined or retired"):
        taken.hold("late")
    assert snapshots.names(bucket) == []


def test_a_reader_is_told_why_it_cannot_name_what_it_reads(bucket: Bucket, owned: Owned) -> None:
    taken = snapshot.take(bucket, SPEC)
    taken.hold("one")
    with pytest.raises(StoreError, match="there is a snapshot 'one' already"):
        taken.hold("one")
    with pytest.raises(StoreError, match="is no name for a snapshot"):
        taken.hold("a/b")
    with pytest.raises(StoreError, match="what is read has a name already: 'one'"):
        snapshot.named(bucket, SPEC, "one").hold("two")
    with pytest.raises(StoreError, match="it has no commits yet, so there is nothing to name 'one'"):
        snapshot.take(open_bucket("memory://"), SPEC).hold("one")
    assert snapshots.names(bucket) == ["one"]
