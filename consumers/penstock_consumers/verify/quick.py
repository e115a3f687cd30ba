"""Verifying a store by itself, without the log: whether all is there that its newest commits name, and adds up."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.progress import Progress
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store import commits, layout, segments, snapshots
from penstock_consumers.store.commits import FULL_EVERY, Live, Retired
from penstock_consumers.verify.entries import fault_of_episodes, fault_of_rows
from penstock_consumers.verify.keyed import Keyed
from penstock_consumers.verify.opened import EPISODE, open_episodes
from penstock_consumers.verify.reading import Segments, read_living
from penstock_consumers.verify.report import Report
from penstock_consumers.verify.traces import expect_no_traces
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit
    from penstock_consumers.store.snapshots import Held
    from penstock_consumers.verify.reading import Read
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


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is counted of a segment: its rows' names and steps, and of episodes the versions of the policy."""

    keys: pa.RecordBatch
    steps: NDArray[Any]
    versions: NDArray[np.int64]


def _keep_of_episodes(batch: pa.RecordBatch) -> _Kept:
    versions: NDArray[np.int64] = np.unique(batch.column("policy_version").flatten().to_numpy())
    return _Kept(_keys(batch), fixed(batch, "length").copy(), versions)


def _keep_of_rows(batch: pa.RecordBatch) -> _Kept:
    return _Kept(_keys(batch), steps(batch), np.empty(0, np.int64))


def _keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    # What is taken is copied, so that no more of the segment stays in memory.
    return batch.select(["producer", *EPISODE]).take(pa.array(np.arange(batch.num_rows)))


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
        self._partition = partition
        self._report = report
        self._met = met
        self._episodes = Segments(bucket, segments.episode_schema(spec), _keep_of_episodes, fault_of_episodes, progress)
        self._rows = Segments(bucket, segments.open_schema(spec), _keep_of_rows, fault_of_rows, progress)

    def run(self) -> None:
        report = self._report
        count = self._check_chain()
        if not count:
            expect_no_traces(self._bucket, self._partition, report)
            return
        known = read_living(
            lambda: _known(self._bucket, self._partition, range(self._count_on(count))), self._episodes, self._rows
        )
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
        self._check_names(known.live, known.newest)
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
        for number in range(count):
            name = layout.commit(self._partition, number)
            if number not in there and not _is_there(self._bucket, name):
                self._wrong(name, f"commit {name}: it is missing, though later ones exist")
        return self._count_on(count)

    def _count_on(self, count: int) -> int:
        """Answer how many commits there are by now, of which there were so many."""
        while _is_there(self._bucket, layout.commit(self._partition, count)):
            count += 1
        return count

    def _check_names(self, live: Live, newest: Commit) -> None:
        """Expect segments of this partition: those of another are read as its own as well."""
        strays = [name for name in live.names if not name.startswith(layout.segments(self._partition))]
        if strays:
            self._wrong(newest.name, f"commit {newest.name}: it names a segment of another partition: {min(strays)}")

    def _check_episodes(self, known: _Known) -> None:
        report = self._report
        keys = []
        for name, kept in self._kept(self._episodes.read(known.live.segments), known):
            report.episodes_stored += kept.keys.num_rows
            report.steps_stored += int(kept.steps.sum())
            report.policy_versions = np.union1d(np.array(report.policy_versions, np.int64), kept.versions).tolist()
            if name in known.certain:
                keys.append(kept)
        again = Keyed([kept.keys for kept in keys], EPISODE).repeated()
        lengths = np.concatenate([np.empty(0, np.int64), *(kept.steps for kept in keys)])
        if again.any():
            report.episodes_duplicated += int(again.sum())
            report.steps_duplicated += int(lengths[again].sum())
            report.found(f"partition {self._partition}: {int(again.sum())} episodes are stored more than once")

    def _count_open(self, known: _Known, newest: Commit) -> int:
        """Count the stored rows whose episodes are open."""
        still_open = Keyed([open_episodes(newest.producers)], EPISODE)
        rows = 0
        for _, kept in self._kept(self._rows.read(known.live.open), known):
            of_open = still_open.find(kept.keys) >= 0
            rows += int(of_open.sum())
            self._report.steps_open += int(kept.steps[of_open].sum())
        self._report.rows_open += rows
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

    def _kept(self, found: Iterable[Read[_Kept]], known: _Known) -> Iterator[tuple[str, _Kept]]:
        """Give what was kept of segments, by name; those that are damaged are counted, and entries that are wrong."""
        for read in found:
            name = read.entry.name
            if read.kept is None:
                # Whether another was let go is not known.
                if name in known.certain or not read.missing:
                    self._report.segments_damaged += 1
                    self._note(name, read.fault)
                continue
            self._met.intact.add(name)
            if read.fault:
                self._wrong(name, read.fault)
            yield name, read.kept

    def _wrong(self, name: str, fault: str) -> None:
        self._report.commits_wrong += 1
        self._note(name, fault)

    def _note(self, name: str, fault: str) -> None:
        self._met.wrong.add(name)
        self._report.found(fault)


def _check_snapshot(bucket: Bucket, name: str, report: Report, met: _Met, progress: Progress) -> None:
    """Count a snapshot that does not read, or of which a commit or a segment is missing or damaged."""
    try:
        held = snapshots.find(bucket, name)
        faults = list(_faults_in(bucket, held or {}, met, progress))
        # What a name that was removed meanwhile held may be collected.
        if not faults or repr(snapshots.find(bucket, name)) != repr(held):
            return
    except CorruptStoreError as error:
        faults = [(None, str(error))]
    report.snapshots_damaged += 1
    for fault in (fault for wrong, fault in faults if wrong not in met.wrong):
        report.found(f"snapshot {name}: {fault}")
    named = {wrong for wrong, _ in faults if wrong in met.wrong}
    if named:
        report.found(f"snapshot {name}: it needs {len(named)} of the objects that are named above")
    met.wrong.update(wrong for wrong, _ in faults if wrong is not None)


def _faults_in(
    bucket: Bucket, snapshot: Mapping[int, Held], met: _Met, progress: Progress
) -> Iterator[tuple[str | None, str]]:
    """Tell what is wrong with a snapshot, and with which object where it is with one that it names."""
    for partition, held in snapshot.items():
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
