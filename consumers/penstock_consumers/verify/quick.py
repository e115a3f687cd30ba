"""Verifying a store by itself, without the log: whether all is there that its newest commits name, and adds up."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock_consumers.progress import Progress
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store import commits, layout, segments, snapshots
from penstock_consumers.store.commits import FULL_EVERY, Live, Retired
from penstock_consumers.verify.entries import fault_of_episodes, fault_of_rows
from penstock_consumers.verify.keyed import Keyed
from penstock_consumers.verify.opened import EPISODE, open_episodes
from penstock_consumers.verify.report import Report
from penstock_consumers.verify.traces import expect_no_traces
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, SegmentEntry
    from penstock_schemas.stream import StreamSpec

_CLASSES = ("ended", "aborted", "duplicate", "orphan", "superseded")


def quick(bucket: Bucket, progress: Progress | None = None) -> Report:
    """Check a store at its newest commits and its named snapshots; the report names all that is wrong, each once.

    No commit is missing; each living segment has its checksum, its counts and ranges; no episode is there twice; what
    was counted is what is stored, open or retired. It reads every segment once, and of the commits those alone that
    tell what lives; where one of them is missing, what the others tell is checked. `progress` is told of the steps of
    segments. Raises `StoreError` where there is no store.
    """
    spec = existing(bucket).spec
    progress = progress or Progress()
    report = _Whole()
    met = _Met()
    for partition in sorted({*commits.partitions(bucket), *_with_segments(bucket)}):
        _Quick(bucket, spec, partition, report, met, progress).run()
    for name in snapshots.names(bucket):
        _check_snapshot(bucket, name, report, met, progress)
    return report


class _Whole(Report):
    """A report that names everything: each object is to be restored by its name."""

    def found(self, what: str) -> None:
        self.findings.append(what)


@dataclass(frozen=True, slots=True)
class _Met:
    """The objects that were looked at, by name."""

    intact: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the commits that can be read tell of a number; `newest` is the last of these.

    Those that cannot are `wrong`, each with its fault. What they let go is not known, so of `live` only the `certain`
    segments must be there.
    """

    newest: Commit | None
    live: Live
    certain: set[str]
    wrong: dict[str, str]


def _known(bucket: Bucket, partition: int, numbers: range) -> _Known:
    """Read commits, the last first, down to one that lists all that lives; and tell what lives after them."""
    found: list[Commit | None] = []
    wrong: dict[str, str] = {}
    for number in reversed(numbers):
        name = layout.commit(partition, number)
        try:
            found.append(commits.read(bucket, partition, number))
        except CorruptStoreError as error:
            wrong[name] = str(error)
            found.append(None)
            continue
        if found[-1] and found[-1].live is not None:
            break
        if number % FULL_EVERY == 0:
            wrong[name] = f"commit {name}: it lists no segments, though every {FULL_EVERY}th must"
    live, certain = Live(), set[str]()
    for commit in reversed(found):
        if commit is None:
            certain = set()
        elif commit.live is not None:
            live, certain = commit.live, commit.live.names
        else:
            live = live.after(commit)
            certain |= {entry.name for entry in (*commit.segments_added, *commit.open_added)}
    return _Known(next(filter(None, found), None), live, certain & live.names, wrong)


def _with_segments(bucket: Bucket) -> set[int]:
    found = (layout.segments_folder(folder) for kind in layout.SEGMENTS for folder in bucket.folders(kind))
    return {partition for partition in found if partition is not None}


def _is_there(bucket: Bucket, name: str) -> bool:
    try:
        bucket.modified(name)
    except FileNotFoundError:
        return False
    return True


class _Quick:
    """Checks one partition."""

    def __init__(
        self, bucket: Bucket, spec: StreamSpec, partition: int, report: Report, met: _Met, progress: Progress
    ) -> None:
        self._bucket = bucket
        self._spec = spec
        self._partition = partition
        self._report = report
        self._met = met
        self._progress = progress

    def run(self) -> None:
        report = self._report
        count = self._check_chain()
        if not count:
            expect_no_traces(self._bucket, self._partition, report)
            return
        known = _known(self._bucket, self._partition, range(count))
        for name, fault in known.wrong.items():
            if name not in self._met.wrong:
                self._wrong(name, fault)
        if known.newest is None:
            return
        counters, retired = known.newest.counters, known.newest.retired
        for name, counted in counters.items():
            report.counters[name] = report.counters.get(name, 0) + counted
        report.offsets_lost += counters.get("offsets_lost", 0)
        report.episodes_retired += retired.episodes
        report.steps_retired += retired.steps
        damaged = report.segments_damaged
        self._check_episodes(known)
        rows_open = self._count_open(known, known.newest)
        if not known.wrong and report.segments_damaged == damaged:
            # Of what does not read, nothing adds up.
            self._check_conservation(known.live, known.newest, rows_open)

    def _check_chain(self) -> int:
        """Ask for each commit that a listing does not show, and answer how many there must be; none is ever deleted."""
        listed = filter(None, map(layout.commit_named, self._bucket.list(layout.commits(self._partition))))
        there = {number for _, number in listed}
        count = max(there, default=-1) + 1
        while _is_there(self._bucket, layout.commit(self._partition, count)):
            there.add(count)
            count += 1
        for number in range(count):
            name = layout.commit(self._partition, number)
            if number not in there and not _is_there(self._bucket, name):
                self._wrong(name, f"commit {name}: it is missing, though later ones exist")
        return count

    def _check_episodes(self, known: _Known) -> None:
        report = self._report
        keys = []
        self._progress.expect(sum(entry.steps for entry in known.live.segments))
        for entry in known.live.segments:
            batch = self._read(entry, segments.episode_schema(self._spec), known)
            self._progress.advance(entry.steps)
            if batch is None:
                continue
            lengths = fixed(batch, "length")
            report.episodes_stored += batch.num_rows
            report.steps_stored += int(lengths.sum())
            versions = np.unique(batch.column("policy_version").flatten().to_numpy())
            report.policy_versions = np.union1d(np.array(report.policy_versions, np.int64), versions).tolist()
            if fault := fault_of_episodes(entry, batch):
                self._wrong(entry.name, fault)
            if entry.name in known.certain:
                # What is taken is copied, so that no more of the segment stays in memory.
                keys.append(batch.select(["producer", *EPISODE, "length"]).take(pa.array(np.arange(batch.num_rows))))
        again = Keyed(keys, EPISODE).repeated()
        lengths = np.concatenate([np.empty(0, np.int64), *(fixed(batch, "length") for batch in keys)])
        if again.any():
            report.episodes_duplicated += int(again.sum())
            report.steps_duplicated += int(lengths[again].sum())
            report.found(f"partition {self._partition}: {int(again.sum())} episodes are stored more than once")

    def _count_open(self, known: _Known, newest: Commit) -> int:
        """Count the stored rows whose episodes are open."""
        still_open = Keyed([open_episodes(newest.producers)], EPISODE)
        rows = 0
        for entry in known.live.open:
            batch = self._read(entry, segments.open_schema(self._spec), known)
            if batch is None:
                continue
            of_open = batch.filter(pa.array(still_open.find(batch) >= 0))
            rows += of_open.num_rows
            self._report.rows_open += of_open.num_rows
            self._report.steps_open += int(steps(of_open).sum())
            if fault := fault_of_rows(entry, batch):
                self._wrong(entry.name, fault)
        return rows

    def _check_conservation(self, live: Live, newest: Commit, rows_open: int) -> None:
        """Hold what was counted since offset 0 against what is stored, open or retired."""
        name, counters = newest.name, newest.counters
        held = reduce(Retired.plus, live.segments, newest.retired)
        for what, kept in (("episodes", held.episodes), ("steps", held.steps)):
            counted = counters.get(f"{what}_ended", 0) + counters.get(f"{what}_aborted", 0)
            if counted != kept:
                self._wrong(name, f"commit {name}: {counted} {what} were stored, {kept} are there or retired")
        read = counters.get("rows_read", 0)
        told = rows_open + sum(counters.get(f"rows_{kind}", 0) for kind in _CLASSES)
        if read != told:
            self._wrong(name, f"commit {name}: {read} chunk rows were read, {told} are accounted for")

    def _read(self, entry: SegmentEntry, schema: pa.Schema, known: _Known) -> pa.RecordBatch | None:
        """Read a segment; None for one that is damaged, which is counted, or that may have been let go."""
        if entry.name not in known.certain and not _is_there(self._bucket, entry.name):
            return None
        try:
            batch = segments.read(self._bucket, entry, schema)
        except CorruptStoreError as error:
            self._damaged(entry.name, str(error))
            return None
        if not segments.intact(self._bucket, entry):
            self._damaged(entry.name, f"segment {entry.name}: its bytes are not those that were written")
            return None
        self._met.intact.add(entry.name)
        return batch

    def _damaged(self, name: str, fault: str) -> None:
        self._report.segments_damaged += 1
        self._met.wrong.add(name)
        self._report.found(fault)

    def _wrong(self, name: str, fault: str) -> None:
        self._report.commits_wrong += 1
        self._met.wrong.add(name)
        self._report.found(fault)


def _check_snapshot(bucket: Bucket, name: str, report: Report, met: _Met, progress: Progress) -> None:
    """Count a snapshot that does not read, or of which a commit or a segment is missing or damaged."""
    try:
        faults = list(_faults_in(bucket, name, met, progress))
    except CorruptStoreError as error:
        faults = [(None, str(error))]
    if not faults:
        return
    report.snapshots_damaged += 1
    for fault in (fault for wrong, fault in faults if wrong not in met.wrong):
        report.found(f"snapshot {name}: {fault}")
    named = {wrong for wrong, _ in faults if wrong in met.wrong}
    if named:
        report.found(f"snapshot {name}: it needs {len(named)} of the objects that are named above")
    met.wrong.update(wrong for wrong, _ in faults if wrong is not None)


def _faults_in(bucket: Bucket, name: str, met: _Met, progress: Progress) -> Iterator[tuple[str | None, str]]:
    """Tell what is wrong with a snapshot, and with which object where it is with one that it names."""
    for partition, held in snapshots.load(bucket, name).items():
        known = _known(bucket, partition, range(held.commit - held.commit % FULL_EVERY, held.commit + 1))
        yield from known.wrong.items()
        if not known.wrong and repr(known.live.segments) != repr(held.live.segments):
            yield None, f"it does not hold what lives at commit {layout.commit(partition, held.commit)}"
        for entry in (*held.live.segments, *held.live.open):
            if entry.name in met.intact:
                continue
            progress.expect(entry.steps)
            whole = segments.intact(bucket, entry)
            progress.advance(entry.steps)
            if whole:
                met.intact.add(entry.name)
            else:
                yield entry.name, f"segment {entry.name}: it is missing, or its bytes were altered"
