from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits, SegmentEntry
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.upkeep import Retention, Upkeep, UpkeepSettings, compact, retain
from penstock_consumers.upkeep.head import Head
from penstock_consumers.verify import verify
from penstock_consumers.worker import Cadence, Worker
from penstock_schemas.errors import FencedError, StoreError
from tests.consumers.messages import DEAD_LETTERS, SPEC, STREAM, TOPIC, WrappedBucket, stored_episodes, take_all
from tests.consumers.upkept import Meddled, Owned, live, newest

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


@pytest.mark.parametrize("tool", ["compact", "retain"])
def test_a_tool_fences_the_owner_which_reloads_and_loses_nothing(bucket: Bucket, tool: str) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.log.create(DEAD_LETTERS)
    registry = CollectorRegistry()
    worker = Worker(
        owned.log,
        ReplayStore(bucket, STREAM, owned.log.describe(TOPIC)),
        DEAD_LETTERS,
        group="group",
        limits=Limits(),
        cadence=Cadence(commit_seconds=0.0),
        metrics=ConsumerMetrics(registry),
        clock=owned.clock,
        wall=owned.clock,
    )

    def go_on(steps: int) -> None:
        for _ in range(steps):
            owned.send()
            end = owned.log.bounds(TOPIC, 0)[1]
            for _ in range(100):
                worker.run_once()
                if worker.committed.get(0) == end:
                    break
            else:
                raise AssertionError("the worker does not commit what there is")

    for _ in range(3):
        go_on(10)
        before = newest(bucket).number
        assert compact(bucket, 10**6) if tool == "compact" else retain(bucket, Retention(steps=20)).episodes
        assert newest(bucket).number > before
    go_on(2)
    fenced = registry.get_sample_value("penstock_consumer_commits_fenced_total")
    worker.close()
    report = verify(bucket, owned.log)
    assert (report.ok, report.findings) == (True, [])
    assert fenced == 3
    assert report.episodes_stored + report.episodes_retired == report.episodes_expected


def test_a_tool_that_is_overtaken_begins_again_at_the_newer_commit(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(10)
    before = stored_episodes(bucket)
    assert compact(Meddled(bucket, "create", "commits/", owned.step), 10**6) == 1
    assert live(bucket).segments[0].rows >= len(before)
    assert verify(bucket, owned.log).ok
    owned.step(5)
    assert retain(Meddled(bucket, "create", "commits/", owned.step), Retention(steps=10)).episodes > len(before)
    assert verify(bucket, owned.log).ok


def test_a_tool_that_is_always_overtaken_says_so(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(10)

    class Faster(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            owned.step()
            return super().create(name, data)

    with pytest.raises(StoreError, match=r"partition 0: its owner made a commit first 20 times: leave this to the"):
        compact(Faster(bucket), 10**6)
    assert verify(bucket, owned.log).ok


def test_what_is_not_as_it_was_written_is_named_and_not_joined(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(10)
    entry = live(bucket).segments[4]
    altered = bytearray(bucket.read(entry.name).to_pybytes())
    altered[len(altered) // 2] ^= 1
    bucket.put(entry.name, bytes(altered))
    apart: set[str] = set()
    compact(bucket, 10**6, apart)
    assert apart == {entry.name}
    assert entry in live(bucket).segments


def test_the_owner_that_is_overtaken_is_fenced_and_has_changed_nothing(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(10)
    other = owned.load()
    owned.step()
    take_all(other, owned.log)
    upkeep = Upkeep(bucket, UpkeepSettings(retention=Retention(steps=10)))
    with pytest.raises(FencedError):
        upkeep.run(other)
    assert newest(bucket) == owned.partition.commit_found
    assert verify(bucket, owned.log).ok


def test_the_owner_makes_one_commit_at_most_and_tells_whether(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(40)
    upkeep = Upkeep(bucket, UpkeepSettings(compact_bytes=100_000, retention=Retention(steps=100)))
    numbers, told = [newest(bucket).number], []
    for _ in range(12):
        told.append(upkeep.run(owned.partition).rewritten)
        numbers.append(newest(bucket).number)
    assert [after - before for before, after in itertools.pairwise(numbers)] == list(map(int, told))
    assert sum(told) >= 2
    assert told == sorted(told, reverse=True)
    # Retention first: what goes need not be joined.
    assert commits.read(bucket, 0, 40).retired.episodes
    assert verify(bucket, owned.log).ok


def test_segments_are_replaced_or_retired_by_one_commit_not_both(bucket: Bucket) -> None:
    owned = Owned(bucket, spec=SPEC)
    owned.step(2)
    one, other = live(bucket).segments[:2]
    wrong: tuple[dict[str, Any], ...] = (
        {"added": [one], "retired": [other]},
        {"removed": [one.name], "retired": [other]},
    )
    for head in (owned.partition, Head(bucket, 0)):
        for words in wrong:
            with pytest.raises(ValueError, match="take a commit for each"):
                head.rewrite(**words)
    assert newest(bucket).number == 1


def test_what_has_no_commit_has_nothing_to_rewrite(bucket: Bucket) -> None:
    with pytest.raises(ValueError, match="partition 0 has no commit yet"):
        Head(bucket, 0).rewrite(retired=[SegmentEntry("segments/a", 1, 1, 1, 1)])
