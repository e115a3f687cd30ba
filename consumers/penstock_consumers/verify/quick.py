"""Verifying a store by itself, without the log: whether all is there that its newest commits name, and adds up."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store import commits, layout, segments, snapshots
from penstock_consumers.store.commits import Ranges, Retired
from penstock_consumers.verify.keyed import Keyed
from penstock_consumers.verify.opened import EPISODE, open_episodes
from penstock_consumers.verify.report import Report
from penstock_consumers.verify.traces import expect_no_traces
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Live, SegmentEntry
    from penstock_schemas.stream import StreamSpec

_CLASSES = ("ended", "aborted", "duplicate", "orphan", "superseded")


def quick(bucket: Bucket) -> Report:
    """Check a store at its newest commits and its named snapshots.

    No commit is missing; each living segment has its checksum, its counts and ranges; no episode is there twice; what
    was counted is what is stored, open or retired. It reads every segment once, and of the commits those alone that
    tell what lives. Raises `StoreError` where there is no store.
    """
    spec = existing(bucket).spec
    report = Report()
    intact: set[str] = set()
    for partition in sorted({*commits.partitions(bucket), *_with_segments(bucket)}):
        newest = commits.newest(bucket, partition)
        if newest is not None:
            _Quick(bucket, spec, newest, report, intact).run()
        else:
            expect_no_traces(bucket, partition, report)
    for name in snapshots.names(bucket):
        _check_snapshot(bucket, name, report, intact)
    return report


def _with_segments(bucket: Bucket) -> set[int]:
    found = (layout.segments_folder(folder) for kind in layout.SEGMENTS for folder in bucket.folders(kind))
    return {partition for partition in found if partition is not None}


class _Quick:
    """Checks one partition; notes the segments that are intact."""

    def __init__(self, bucket: Bucket, spec: StreamSpec, newest: Commit, report: Report, intact: set[str]) -> None:
        self._bucket = bucket
        self._spec = spec
        self._newest = newest
        self._report = report
        self._intact = intact

    def run(self) -> None:
        report, newest = self._report, self._newest
        for name, count in newest.counters.items():
            report.counters[name] = report.counters.get(name, 0) + count
        report.offsets_lost += newest.counters.get("offsets_lost", 0)
        self._check_chain()
        try:
            live = commits.live_at(self._bucket, newest)
        except CorruptStoreError as error:
            self._wrong(str(error))
            return
        damaged = report.segments_damaged
        self._check_episodes(live)
        rows_open = self._count_open(live)
        if report.segments_damaged == damaged:
            # Of what does not read, nothing adds up.
            self._check_conservation(live, rows_open)

    def _check_chain(self) -> None:
        """Ask for each commit that a listing does not show; none is ever deleted."""
        partition = self._newest.partition
        listed = filter(None, map(layout.commit_named, self._bucket.list(layout.commits(partition))))
        there = {number for _, number in listed}
        for number in range(self._newest.number + 1):
            if number not in there and not self._is_there(layout.commit(partition, number)):
                self._wrong(f"commit {layout.commit(partition, number)}: it is missing, though later ones exist")

    def _is_there(self, name: str) -> bool:
        try:
            self._bucket.modified(name)
        except FileNotFoundError:
            return False
        return True

    def _check_episodes(self, live: Live) -> None:
        report = self._report
        keys = []
        for entry in live.segments:
            batch = self._read(entry, segments.episode_schema(self._spec))
            if batch is None:
                continue
            lengths = fixed(batch, "length")
            report.episodes_stored += batch.num_rows
            report.steps_stored += int(lengths.sum())
            versions = np.unique(batch.column("policy_version").flatten().to_numpy())
            report.policy_versions = np.union1d(np.array(report.policy_versions, np.int64), versions).tolist()
            told, found = (entry.steps, entry.ranges, entry.keys), _described(batch)
            # By how they read, since what is not a number equals nothing, itself included.
            if repr(told) != repr(found):
                self._wrong(f"segment {entry.name}: its commit names steps, ranges and keys {told}, it has {found}")
            # What is taken is copied, so that no more of the segment stays in memory.
            keys.append(batch.select(["producer", *EPISODE, "length"]).take(pa.array(np.arange(batch.num_rows))))
        again = Keyed(keys, EPISODE).repeated()
        lengths = np.concatenate([np.empty(0, np.int64), *(fixed(batch, "length") for batch in keys)])
        if again.any():
            report.episodes_duplicated += int(again.sum())
            report.steps_duplicated += int(lengths[again].sum())
            report.found(f"partition {self._newest.partition}: {int(again.sum())} episodes are stored more than once")

    def _count_open(self, live: Live) -> int:
        """Count the stored rows whose episodes are open."""
        still_open = Keyed([open_episodes(self._newest.producers)], EPISODE)
        rows = 0
        for entry in live.open:
            batch = self._read(entry, segments.open_schema(self._spec))
            if batch is None:
                continue
            of_open = batch.filter(pa.array(still_open.find(batch) >= 0))
            rows += of_open.num_rows
            self._report.rows_open += of_open.num_rows
            self._report.steps_open += int(steps(of_open).sum())
            if entry.steps != (found := int(steps(batch).sum())):
                self._wrong(f"segment {entry.name}: its commit names {entry.steps} steps, it has {found}")
        return rows

    def _check_conservation(self, live: Live, rows_open: int) -> None:
        """Hold what was counted since offset 0 against what is stored, open or retired."""
        counters = self._newest.counters
        held = reduce(Retired.plus, live.segments, self._newest.retired)
        for what, kept in (("episodes", held.episodes), ("steps", held.steps)):
            counted = counters.get(f"{what}_ended", 0) + counters.get(f"{what}_aborted", 0)
            if counted != kept:
                self._wrong(f"commit {self._newest.name}: {counted} {what} were stored, {kept} are there or retired")
        read, told = counters.get("rows_read", 0), rows_open + sum(counters.get(f"rows_{name}", 0) for name in _CLASSES)
        if read != told:
            self._wrong(f"commit {self._newest.name}: {read} chunk rows were read, {told} are accounted for")
        self._report.episodes_retired += self._newest.retired.episodes
        self._report.steps_retired += self._newest.retired.steps

    def _read(self, entry: SegmentEntry, schema: pa.Schema) -> pa.RecordBatch | None:
        """Read a segment; one that is damaged is counted, and None."""
        try:
            batch = segments.read(self._bucket, entry, schema)
        except CorruptStoreError as error:
            self._damaged(str(error))
            return None
        if not segments.intact(self._bucket, entry):
            self._damaged(f"segment {entry.name}: its bytes are not those that were written")
            return None
        self._intact.add(entry.name)
        return batch

    def _damaged(self, what: str) -> None:
        self._report.segments_damaged += 1
        self._report.found(what)

    def _wrong(self, what: str) -> None:
        self._report.commits_wrong += 1
        self._report.found(what)


def _described(batch: pa.RecordBatch) -> tuple[int, Ranges, int]:
    """What an entry says of a segment, told from its episodes: steps, ranges and the sum of keys."""

    def span(values: Any) -> tuple[Any, Any]:
        return values.min().item(), values.max().item()

    ranges = Ranges(
        closed_offset=span(fixed(batch, "closed_offset")),
        closed_ms=span(fixed(batch, "closed_ms")),
        length=span(fixed(batch, "length")),
        return_=span(fixed(batch, "return")),
        policy_version=span(batch.column("policy_version").flatten().to_numpy()),
    )
    return int(fixed(batch, "length").sum()), ranges, segments.key_sum(batch)


def _check_snapshot(bucket: Bucket, name: str, report: Report, intact: set[str]) -> None:
    """Count a snapshot that does not read, or of which a commit or a segment is missing or damaged."""
    try:
        wrong = next(_wrong_in(bucket, name, intact), None)
    except CorruptStoreError as error:
        wrong = str(error)
    if wrong is not None:
        report.snapshots_damaged += 1
        report.found(f"snapshot {name}: {wrong}")


def _wrong_in(bucket: Bucket, name: str, intact: set[str]) -> Iterator[str]:
    """Name what is wrong with a snapshot; raises `CorruptStoreError` where it cannot be told."""
    for partition, held in snapshots.load(bucket, name).items():
        commit = commits.read(bucket, partition, held.commit)
        if repr(commits.live_at(bucket, commit)) != repr(held.live):
            yield f"it does not hold what lives at commit {commit.name}"
        for entry in (*held.live.segments, *held.live.open):
            if entry.name not in intact and not segments.intact(bucket, entry):
                yield f"segment {entry.name}: it is missing, or its bytes were altered"
            intact.add(entry.name)
