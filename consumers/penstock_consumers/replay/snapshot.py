"""Snapshots: one commit of each partition, and the segments that live there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay import arguments
from penstock_consumers.replay.opening import Opener
from penstock_consumers.store import commits, layout, manifest, snapshots
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.cache import Cache
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's commit, and what lives there."""

    commit: commits.Commit
    live: commits.Live


@dataclass(frozen=True)
class Snapshot:
    """What a store held at one commit of each partition; never changes. Its segments are opened when first read.

    Attributes:
        partitions: the commit of each, and what lives there.
        entries: the segments as their commits name them, partition by partition and in log order there.
        opener: opens them.
        name: of a named snapshot.
    """

    partitions: Mapping[int, Partition]
    entries: tuple[SegmentEntry, ...]
    opener: Opener
    name: str | None = None

    def __post_init__(self) -> None:
        self.opener.serve(self)

    def segment(self, number: int) -> Segment:
        """Open the segment of `entries[number]`, or give it where it is open.

        Raises `StoreError` where it was collected since the snapshot was taken, `CorruptStoreError` where it is missing
        otherwise, or not as its commit names it.
        """
        entry = self.entries[number]
        try:
            return self.opener.open(entry)
        except FileNotFoundError as error:
            raise self._missing(entry) from error

    @property
    def segments(self) -> Iterator[Segment]:
        """Open one segment after the other."""
        return map(self.segment, range(len(self.entries)))

    @property
    def numbers(self) -> dict[int, int]:
        """The commit number of each partition."""
        return {partition: at.commit.number for partition, at in self.partitions.items()}

    def hold(self, name: str) -> None:
        """Store this under a name, so that it stays readable, and can be opened again.

        Raises `StoreError` where the name is taken, or is none; where there is nothing to name, or it has a name; and
        where segments of it were joined or retired meanwhile.
        """
        if self.name is not None:
            raise StoreError(f"store {self.opener.bucket.url}: what is read has a name already: {self.name!r}")
        held = {
            number: snapshots.Held(at.commit.number, commits.Live(at.live.segments))
            for number, at in self.partitions.items()
        }
        snapshots.hold(self.opener.bucket, name, held)

    @cached_property
    def first_step(self) -> NDArray[np.int64]:
        """The step at which each segment begins when all lie end to end, and their sum, shape (segments + 1,)."""
        return _cumulative([entry.steps for entry in self.entries])

    @cached_property
    def first_episode(self) -> NDArray[np.int64]:
        """The episode at which each segment begins when all lie end to end, and their sum, shape (segments + 1,)."""
        return _cumulative([entry.rows for entry in self.entries])

    def high_water(self, partition: int) -> int:
        """The next offset that the partition's consumer will judge."""
        at = self.partitions.get(partition)
        return at.commit.high_water if at else 0

    def _missing(self, entry: SegmentEntry) -> StoreError:
        """Tell why a segment is not there."""
        bucket, number = self.opener.bucket, layout.partition_of(entry.name)
        if self.name is not None:
            # A name that was removed may have been given to something else.
            held = snapshots.find(bucket, self.name) or {}
            if number not in held or entry.name not in held[number].live.names:
                return StoreError(
                    f"store {bucket.url}: segment {entry.name} was collected, for the name {self.name!r} of the "
                    "snapshot that is read was removed: open another"
                )
        else:
            at = self.partitions.get(number)
            newest = _newest(bucket, number, at)
            if at and newest and entry.name not in newest.live.names:
                return StoreError(
                    f"store {bucket.url}: segment {entry.name} was collected since the snapshot was taken that is read "
                    f"(partition {number}, commit {at.commit.number}; the newest is {newest.commit.number}): read a "
                    "newer one (`refresh()` more often), or one that has a name, or let it be collected later "
                    "(`--collect-seconds`)"
                )
        return CorruptStoreError(
            f"segment {entry.name}: it is missing from store {bucket.url}, though nothing let it go: restore it"
        )


def take(
    bucket: Bucket,
    spec: StreamSpec,
    before: Snapshot | None = None,
    *,
    cache: Cache | None = None,
    verify: bool = False,
) -> Snapshot:
    """Take a snapshot of the newest commits; `before` itself where there are no newer ones.

    Segments are opened as `Opener` does; with `before`, by the same one, so that what is open stays so. Raises
    `StoreError` where the store was begun anew since `before`.
    """
    known = before.partitions if before else {}
    found = {
        # A listing may lag behind: what was seen once is asked for whether it is listed or not.
        number: _newest(bucket, number, known.get(number))
        for number in sorted({*known, *commits.partitions(bucket)})
    }
    # A folder is made before the first commit in it.
    partitions = {number: at for number, at in found.items() if at is not None}
    if before and all(partitions[number] is known.get(number) for number in partitions):
        before.opener.tidy()
        return before
    opener = before.opener if before else Opener(bucket, spec, cache=cache, verify=verify)
    return Snapshot(partitions, _laid(partitions), opener)


def named(bucket: Bucket, spec: StreamSpec, name: str, *, cache: Cache | None = None, verify: bool = False) -> Snapshot:
    """Take the snapshot of a name; raises `StoreError` where there is none."""
    held = snapshots.load(bucket, name)
    at = {number: Partition(commits.read(bucket, number, of.commit), of.live) for number, of in sorted(held.items())}
    return Snapshot(at, _laid(at), Opener(bucket, spec, cache=cache, verify=verify), name)


def numbered(
    bucket: Bucket, spec: StreamSpec, numbers: Mapping[int, int], *, cache: Cache | None = None, verify: bool = False
) -> Snapshot:
    """Take the snapshot of a commit of each partition, as `Snapshot.numbers` has them.

    Unlike one that has a name, it keeps nothing from being collected. Raises `SettingsError` where these are no numbers
    of partitions and commits, `StoreError` where one of them is none of the store's.
    """
    # What is given may be of any type, whatever is declared.
    if not isinstance(numbers, Mapping):
        raise SettingsError(f"snapshot {numbers!r}: a name, or a commit number for each partition")
    numbers = {_whole("partition", partition): _whole("commit", number) for partition, number in numbers.items()}
    read = {partition: _numbered(bucket, partition, number) for partition, number in sorted(numbers.items())}
    at = {partition: Partition(commit, commits.live_at(bucket, commit)) for partition, commit in read.items()}
    return Snapshot(at, _laid(at), Opener(bucket, spec, cache=cache, verify=verify))


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
    if known and commits.read(bucket, partition, at_least).writer != known.commit.writer:
        raise StoreError(
            f"store {bucket.url}: it was begun anew since it was read: commit {at_least} of partition {partition} is "
            "not the one that was read: open it again"
        )
    if known is None or commit.number - at_least > commits.FULL_EVERY:
        return Partition(commit, commits.live_at(bucket, commit))
    since = (commits.read(bucket, partition, number) for number in range(at_least + 1, commit.number))
    return Partition(commit, known.live.after(*since, commit))


def _numbered(bucket: Bucket, partition: int, number: int) -> commits.Commit:
    try:
        return commits.read(bucket, partition, number)
    except CorruptStoreError as error:
        newest = commits.newest(bucket, partition)
        if newest is not None and number <= newest.number:
            raise
        there = f"the newest is {newest.number}" if newest else "it has none"
        raise StoreError(
            f"store {bucket.url}: no commit {number} of partition {partition} in it, {there}: give the commits that "
            "`Replay.snapshot` told of this store"
        ) from error


def _laid(partitions: Mapping[int, Partition]) -> tuple[SegmentEntry, ...]:
    laid = (commits.in_log_order(at.live.segments) for at in partitions.values())
    return tuple(entry for entries in laid for entry in entries)


def _cumulative(counts: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)], dtype=np.int64)


def _whole(what: str, number: Any) -> int:
    return arguments.whole(f"snapshot: {what}", number, 0, "they are counted from 0 on")
