"""What opening a store costs does not grow with its number of commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import commits, layout
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import FULL_EVERY
from penstock_consumers.upkeep import gc
from penstock_consumers.upkeep.head import Head
from tests.consumers.messages import SPEC, WrappedBucket, open_partition
from tests.consumers.upkept import Owned, live, newest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock_consumers.store.bucket import Bucket

SEGMENTS = 5


class Long(WrappedBucket):
    """A store whose newest commit has been made again and again, unchanged but for its number, as often as is told.

    Its objects are made where they are asked for; it counts the operations, and the names that listings answer.
    """

    def __init__(self, inner: Bucket, length: int) -> None:
        super().__init__(inner)
        self.length = length
        self.counts: Counter[str] = Counter()
        last = newest(inner)
        bare = replace(last, segments_added=(), segments_removed=(), open_added=(), open_removed=(), live=None)
        self.first = last.number + 1
        self._bare, self._full = bare, replace(bare, live=live(inner))

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.counts[operation.__name__] += 1
        return operation(*arguments)

    def read(self, name: str) -> pa.Buffer:
        number = self._made(name)
        if number is None:
            return super().read(name)
        self.counts["read"] += 1
        of = self._bare if number % FULL_EVERY else self._full
        return pa.py_buffer(replace(of, number=number).to_json())

    def modified(self, name: str) -> float:
        number = self._made(name)
        if number is None:
            return super().modified(name)
        self.counts["modified"] += 1
        return float(number)

    def list(self, prefix: str) -> Iterator[str]:
        for name in (*super().list(prefix), *self._listed(prefix)):
            self.counts["names"] += 1
            yield name

    def folders(self, prefix: str) -> Iterator[str]:
        found = {*super().folders(prefix)}
        if prefix == layout.commits(0):
            found |= {_folder(number) for number in range(0, self.length, layout.COMMITS_PER_FOLDER)}
        for name in found:
            self.counts["folders named"] += 1
            yield name

    def _listed(self, prefix: str) -> Iterable[str]:
        found = layout.commits(0)
        if not prefix.startswith(found):
            return ()
        start = int(prefix.removeprefix(found).rstrip("/") or 0) * layout.COMMITS_PER_FOLDER
        numbers = range(max(start, self.first), min(start + layout.COMMITS_PER_FOLDER, self.length))
        return (layout.commit(0, number) for number in numbers)

    def _made(self, name: str) -> int | None:
        number = layout.commit_named(name)
        return number[1] if number and self.first <= number[1] < self.length else None


def _folder(number: int) -> str:
    return layout.commit(0, number).rpartition("/")[0] + "/"


@pytest.fixture
def owned() -> Owned:
    made = Owned(open_bucket("memory://"), spec=SPEC)
    made.step(SEGMENTS)
    return made


def cost(store: Long, act: Callable[[Bucket], object]) -> Counter[str]:
    store.counts.clear()
    act(store)
    return store.counts


def open_for_reading(store: Bucket) -> None:
    assert Replay.open(store).episodes_stored


@pytest.mark.parametrize("length", [100, 1_000, 100_000])
@pytest.mark.parametrize("what", ["reading", "writing", "upkeep"])
def test_opening_costs_no_more_the_more_commits_there_are(owned: Owned, length: int, what: str) -> None:
    def open_for_writing(store: Bucket) -> None:
        assert open_partition(owned.log, store).live.segments

    acts = {"reading": open_for_reading, "writing": open_for_writing, "upkeep": lambda store: Head(store, 0)}
    # With as many commits since the last that lists what lives.
    counts = cost(Long(owned.bucket, length), acts[what])
    short = cost(Long(owned.bucket, 100), acts[what])
    for name in ("read", "open", "list", "folders", "modified"):
        assert counts[name] <= short[name] + 1
    assert counts["read"] <= FULL_EVERY + 20
    # One listing of names, of the last folder; and one of the folders, which are a thousandth.
    assert counts["names"] <= layout.COMMITS_PER_FOLDER + 20
    assert counts["folders named"] <= length / layout.COMMITS_PER_FOLDER + 5


def test_what_is_opened_is_the_newest(owned: Owned) -> None:
    store = Long(owned.bucket, 100_000)
    found = commits.newest(store, 0)
    assert found is not None
    assert found.number == 99_999
    assert commits.live_at(store, found) == live(owned.bucket)


def test_collecting_looks_at_the_ages_of_few(owned: Owned) -> None:
    counts = cost(Long(owned.bucket, 100_000), lambda store: gc(store, 3600.0))
    assert counts["modified"] <= 20
    assert counts["read"] <= FULL_EVERY + 20
