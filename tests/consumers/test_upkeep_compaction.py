from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import layout, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Ranges, SegmentEntry
from penstock_consumers.upkeep import compact, compaction, gc
from penstock_consumers.upkeep.compaction import CLASSES, FAN_IN, MOST_JOINED, join, plan, size_class
from penstock_consumers.upkeep.head import Head
from penstock_schemas.errors import CorruptStoreError, FencedError
from tests.consumers.messages import NESTED, stored_episodes
from tests.consumers.stores import Writer, episodes, stream
from tests.consumers.upkept import Owned, counted, live, newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec

MOST = 128 << 20


def entry(at: int, size: int, *, last: int | None = None) -> SegmentEntry:
    """A segment of one commit, number `at`, or of those up to `last`."""
    span = (at, at if last is None else last)
    ranges = Ranges(span, span, (1, 1), (0.0, 0.0), (0, 0), (1,), ("producer",), {})
    return SegmentEntry(f"segment-{span[0]}-{span[1]}", span[1] - span[0] + 1, 1, size, 0, ranges)


def together(joined: Sequence[SegmentEntry]) -> SegmentEntry:
    first, last = joined[0].ranges, joined[-1].ranges
    assert first is not None
    assert last is not None
    return entry(first.closed_offset[0], sum(each.bytes for each in joined), last=last.closed_offset[1])


class Stream:
    """Segments of given sizes that are compacted one after the other; checks that only neighbours are joined."""

    def __init__(self, sizes: Sequence[int], most: int = MOST) -> None:
        self.live: list[SegmentEntry] = []
        self.counts: list[int] = []
        self.rewritten = 0
        self.largest = 0
        for at, size in enumerate(sizes):
            # As a commit's listing: what was joined stands behind what is older.
            self.live.append(entry(at, size))
            while joined := plan(self.live, most):
                assert 2 <= len(joined) <= MOST_JOINED
                assert sum(each.bytes for each in joined) <= most
                spans = [each.ranges.closed_offset for each in joined if each.ranges]
                assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(spans))
                self.live = [each for each in self.live if each not in joined] + [together(joined)]
                self.rewritten += sum(each.bytes for each in joined)
            self.counts.append(len(self.live))
        assert sum(each.rows for each in self.live) == len(sizes)
        self.amplification = self.rewritten / sum(sizes)
        self.bytes = sum(sizes)


def drawn(spread: float, count: int = 3_000) -> list[int]:
    """Sizes about 40 KB, the log-normal's sigma being `spread`."""
    rng = np.random.default_rng(7)
    return np.clip(40_000 * np.exp(rng.normal(0, spread, count)), 3_000, MOST).astype(int).tolist()


@pytest.mark.parametrize(
    "sizes",
    [
        [10_000] * 5_000,
        [1_000_000] * 3_000,
        [40_000_000] * 300,
        [100_000_000] * 300,
        drawn(0.5),
        drawn(1.0),
        drawn(2.5),
        [10_000, 2_000_000] * 1_500,
        ([10_000] * 99 + [90_000_000]) * 30,
        [1 << (at & -at).bit_length() * 2 for at in range(1, 3_000)],
    ],
    ids=["10 KB", "1 MB", "40 MB", "100 MB", "even", "uneven", "wild", "by turns", "seldom huge", "ruler"],
)
def test_segments_stay_few_and_bytes_are_written_seldom(sizes: list[int]) -> None:
    done = Stream(sizes)
    large = sum(1 for each in done.live if each.bytes * 2 > MOST)
    # Between two large ones, and on either side.
    assert max(done.counts) <= (FAN_IN - 1) * CLASSES * (1 + large) + large + 1
    assert large <= 2 * done.bytes / MOST
    assert done.amplification <= CLASSES


@pytest.mark.parametrize("sizes", [[10_000] * 5_000, [1_000_000] * 3_000, drawn(1.0), drawn(2.5)])
def test_segments_are_as_few_as_classes_and_bytes_ask_for(sizes: list[int]) -> None:
    done = Stream(sizes)
    for at, count in enumerate(done.counts):
        assert count <= (FAN_IN - 1) * CLASSES + 2 * sum(sizes[: at + 1]) / MOST + 1
    # As many as the classes above that in which they begin.
    assert done.amplification <= CLASSES - size_class(entry(0, sorted(sizes)[len(sizes) // 10]), MOST)


def test_size_classes_are_a_fan_in_apart() -> None:
    sizes = [MOST // FAN_IN**power for power in range(CLASSES)]
    assert [size_class(entry(0, size), MOST) for size in sizes] == [4, 3, 2, 1, 0]
    assert [size_class(entry(0, size), MOST) for size in (1, 32_768, 32_769, MOST + 1, 10 * MOST)] == [0, 0, 1, 4, 4]


def test_neighbours_of_one_class_are_joined_from_the_oldest_on() -> None:
    live = [entry(at, 5_000) for at in range(FAN_IN)]
    assert plan(live[:-1], MOST) == ()
    assert list(plan(live[::-1], MOST)) == live


def test_a_few_small_ones_after_a_large_one_wait() -> None:
    live = [entry(0, 10_000_000), *(entry(at, 5_000) for at in range(1, FAN_IN))]
    assert plan(live, MOST) == ()
    live.append(entry(FAN_IN, 5_000))
    assert list(plan(live, MOST)) == live[1:]


def test_small_ones_between_larger_ones_are_joined_with_them() -> None:
    """Or there would be no end of them."""
    live = [entry(at, 5_000 if at % 2 else 1_000_000) for at in range(FAN_IN + 1)]
    assert list(plan(live, MOST)) == live


def test_large_ones_stay_and_part_what_lies_on_either_side() -> None:
    small = [entry(at, 5_000) for at in range(2 * FAN_IN - 2)]
    live = [*small[: FAN_IN - 1], entry(99, MOST // 2 + 1), *small[FAN_IN - 1 :]]
    live = [entry(at, each.bytes) for at, each in enumerate(live)]
    assert plan(live, MOST) == ()
    assert list(plan([*live, entry(99, 5_000)], MOST)) == [*live[FAN_IN:], entry(99, 5_000)]


def test_what_is_set_apart_stays() -> None:
    live = [entry(at, 5_000) for at in range(2 * FAN_IN)]
    assert list(plan(live, MOST, apart={live[3].name})) == live[4:]


def test_no_more_are_joined_than_fit() -> None:
    live = [entry(at, 30_000_000) for at in range(FAN_IN)]
    assert list(plan(live, MOST)) == live[:4]
    assert len(plan([entry(at, 100) for at in range(1_000)], MOST)) == MOST_JOINED


def test_joining_changes_no_episode(bucket: Bucket) -> None:
    Owned(bucket).step(30)
    before = stored_episodes(bucket)
    seen = [episode.id for episode in Replay.open(bucket).episodes()]
    parts = live(bucket).segments

    assert compact(bucket, MOST) == 1
    (joined,) = live(bucket).segments
    assert newest(bucket).segments_added == (joined,)
    assert set(newest(bucket).segments_removed) == {part.name for part in parts}
    assert layout.written_for(joined.name) == newest(bucket).number == 30
    assert stored_episodes(bucket) == before
    assert [episode.id for episode in Replay.open(bucket).episodes()] == seen
    assert segments.intact(bucket, joined)
    # What an entry says of the whole follows from what was said of its parts.
    assert counted([joined]) == counted(parts)
    assert joined.ranges is not None
    for name in ("closed_offset", "closed_ms", "length", "return_", "policy_version"):
        spans = [getattr(part.ranges, name) for part in parts]
        assert getattr(joined.ranges, name) == (min(spans)[0], max(span[1] for span in spans))
    for name in ("ends", "producers"):
        assert getattr(joined.ranges, name) == tuple(
            sorted({one for part in parts for one in getattr(part.ranges, name)})
        )
    assert compact(bucket, MOST) == 0


def test_the_order_of_the_log_outlives_any_compaction(bucket: Bucket) -> None:
    owned = Owned(bucket)
    for _ in range(4):
        owned.step(9)
        compact(bucket, 60_000)
    owned.step(3)
    assert len(live(bucket).segments) < 20
    closed = [episode.closed_offset for episode in Replay.open(bucket).episodes()]
    assert closed == sorted(closed)


def test_who_follows_is_given_each_episode_once_through_compactions(bucket: Bucket) -> None:
    owned, made = Owned(bucket), 0
    owned.step(5)
    replay = Replay.open(bucket)
    first = [episode.id for episode in replay.episodes()]

    def wait() -> bool:
        nonlocal made
        if owned.steps >= 50:
            return False
        owned.step(owned.steps % 4)
        # What is joined was partly given before, and partly was not.
        made += compact(bucket, 200_000)
        owned.step(1)
        return True

    followed = [episode.id for episode in replay.follow(wait)]
    assert made > 3
    assert sorted(first + followed) == sorted(episode.id for episode in Replay.open(bucket).episodes())


@pytest.mark.parametrize("how", ["altered", "missing"])
def test_a_damaged_segment_is_left_alone_and_told(bucket: Bucket, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Joined with others, it would pass for whole."""
    Owned(bucket).step(30)
    damaged = live(bucket).segments[4]
    kept = bucket.read(damaged.name).to_pybytes()
    if how == "altered":
        bucket.put(damaged.name, kept[:-20] + bytes([kept[-20] ^ 1]) + kept[-19:])
    else:
        bucket.delete(damaged.name)
    assert compact(bucket, MOST) == 1
    assert damaged in live(bucket).segments
    assert len(live(bucket).segments) == 6
    assert damaged.name in caplog.text
    bucket.put(damaged.name, kept)
    assert Replay.open(bucket).episodes_stored == counted(live(bucket).segments).episodes


def test_what_a_newer_commit_let_go_is_no_damage(bucket: Bucket) -> None:
    owned = Owned(bucket)
    owned.step(10)
    overtaken, apart = Head(bucket, 0), set[str]()
    compact(bucket, MOST)
    owned.step()
    gc(bucket, 0.0)
    with pytest.raises(FencedError):
        compaction.compact(bucket, overtaken, MOST, apart)
    assert not apart


def batches(bucket: Bucket, entries: Sequence[SegmentEntry], spec: StreamSpec) -> list[pa.RecordBatch | None]:
    return [segments.read_intact(bucket, entry, segments.episode_schema(spec)) for entry in entries]


def test_what_does_not_add_up_is_not_committed(bucket: Bucket) -> None:
    Owned(bucket).step(9)
    parts = live(bucket).segments
    doubled = [replace(part, keys=part.keys ^ 1) if part is parts[3] else part for part in parts]
    with pytest.raises(CorruptStoreError, match="nothing was committed; report this"):
        join(bucket, layout.segment(0, 9), doubled, batches(bucket, doubled, NESTED))


def test_joining_is_not_python_by_the_episode() -> None:
    """So many episodes take so little time that none of it can be theirs, one by one."""
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    many = episodes(writer.spec, np.ones(20_000, np.int64))
    for number in range(FAN_IN):
        writer.commit(0, replace(many, first=number), high_water=number + 1)
    parts = live(bucket).segments
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        joined = join(bucket, layout.segment(0, FAN_IN), parts, batches(bucket, parts, writer.spec))
    finally:
        sys.setprofile(None)
    assert joined.rows == 20_000 * FAN_IN
    assert calls < 5_000
