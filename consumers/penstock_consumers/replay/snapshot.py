"""Snapshots: one commit of each partition, and the segments that live there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.segment import Segment
from penstock_consumers.store import commits, layout, manifest, snapshots
from penstock_schemas.errors import CorruptStoreError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec

# How often a snapshot is taken anew where what it needs is collected meanwhile.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's commit, and what lives there."""

    commit: commits.Commit
    live: commits.Live


@dataclass(frozen=True)
class Snapshot:
    """What a store held at one commit of each partition; never changes, all its segments are open."""

    partitions: Mapping[int, Partition]
    segments: tuple[Segment, ...]

    @property
    def numbers(self) -> dict[int, int]:
        """The commit number of each partition."""
        return {partition: at.commit.number for partition, at in self.partitions.items()}

    @cached_property
    def first_step(self) -> NDArray[np.int64]:
        """The step at which each segment begins when all lie end to end, and their sum, shape (segments + 1,)."""
        return _cumulative([segment.entry.steps for segment in self.segments])

    @cached_property
    def first_episode(self) -> NDArray[np.int64]:
        """The episode at which each segment begins when all lie end to end, and their sum, shape (segments + 1,)."""
        return _cumulative([segment.entry.rows for segment in self.segments])

    def high_water(self, partition: int) -> int:
        """The next offset that the partition's consumer will judge."""
        at = self.partitions.get(partition)
        return at.commit.high_water if at else 0


def take(bucket: Bucket, spec: StreamSpec, before: Snapshot | None = None) -> Snapshot:
    """Take a snapshot of the newest commits; `before` itself where there are no newer ones."""
    known = before.partitions if before else {}
    found = {
        # A listing may lag behind: what was seen once is asked for whether it is listed or not.
        number: _newest(bucket, number, known.get(number))
        for number in sorted({*known, *commits.partitions(bucket)})
    }
    # A folder is made before the first commit in it.
    partitions = {number: at for number, at in found.items() if at is not None}
    if before and all(partitions[number] is known.get(number) for number in partitions):
        return before
    open_before = {segment.entry.name: segment for segment in before.segments} if before else {}
    opened = {number: _open(bucket, spec, at, open_before) for number, at in partitions.items()}
    return Snapshot(
        {number: at for number, (at, _) in opened.items()},
        tuple(segment for _, segments in opened.values() for segment in segments),
    )


def named(bucket: Bucket, spec: StreamSpec, name: str) -> Snapshot:
    """Take the snapshot of a name; raises `StoreError` where there is none."""
    held = snapshots.load(bucket, name)
    at = {number: Partition(commits.read(bucket, number, of.commit), of.live) for number, of in sorted(held.items())}
    return Snapshot(at, tuple(segment for of in at.values() for segment in _open_segments(bucket, spec, of.live)))


def existing(bucket: Bucket) -> manifest.Manifest:
    """Load the manifest; raises `StoreError` where there is none."""
    found = manifest.load(bucket)
    if found is None:
        raise StoreError(
            f"store {bucket.url}: no {layout.MANIFEST} there, so it is no store yet: "
            "check the URL, or start a consumer that writes to it"
        )
    return found


def _newest(bucket: Bucket, partition: int, known: Partition | None) -> Partition | None:
    """Find a partition's newest commit; None where it has none yet."""
    at_least = known.commit.number if known else -1
    commit = commits.newest(bucket, partition, known=at_least)
    if commit is None:
        return known
    if known is None or commit.number - at_least > commits.FULL_EVERY:
        return Partition(commit, commits.live_at(bucket, commit))
    live = known.live
    for number in range(at_least + 1, commit.number):
        live = live.after(commits.read(bucket, partition, number))
    return Partition(commit, live.after(commit))


def _open(
    bucket: Bucket, spec: StreamSpec, at: Partition, before: Mapping[str, Segment]
) -> tuple[Partition, tuple[Segment, ...]]:
    """Open what lives in a partition, at a newer commit where something was collected meanwhile."""
    collected: CorruptStoreError | None = None
    for _ in range(_TRIES):
        try:
            return at, _open_segments(bucket, spec, at.live, before)
        except CorruptStoreError as error:
            newer = _newest(bucket, at.commit.partition, at)
            # What still lives is not collected: it is missing, or damaged.
            if newer is None or at.live.names <= newer.live.names:
                raise
            at, collected = newer, error
    raise StoreError(
        f"store {bucket.url}: what lived in partition {at.commit.partition} was collected {_TRIES} times while it was "
        f"being opened (the last: {collected}): let it be collected later than opening takes (`--collect-seconds`), or "
        "name a snapshot and open that"
    ) from collected


def _open_segments(
    bucket: Bucket, spec: StreamSpec, live: commits.Live, before: Mapping[str, Segment] = MappingProxyType({})
) -> tuple[Segment, ...]:
    """Open segments in log order, however they were joined; those that are open already are taken over."""
    return tuple(
        before.get(entry.name) or Segment.open(bucket, entry, spec) for entry in commits.in_log_order(live.segments)
    )


def _cumulative(counts: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)], dtype=np.int64)
