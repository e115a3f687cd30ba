"""Verifying one partition."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock_consumers.partition import Partition
from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.commits import Live
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.verify.blank import BLANK, filled_up
from penstock_consumers.verify.keyed import Keyed
from penstock_consumers.verify.opened import EPISODE, open_episodes
from penstock_consumers.verify.retirement import Retirement
from penstock_consumers.verify.scratch import NoQuarantine, Scratch
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.errors import CorruptStoreError, TopicError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from penstock_consumers.progress import Progress
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Limits, SegmentEntry
    from penstock_consumers.store.manifest import Manifest
    from penstock_consumers.verify.reading import Read
    from penstock_consumers.verify.report import Report
    from penstock_consumers.verify.stored import Stored
    from penstock_schemas.log import Reader, Record, TopicInfo

_POLL_SECONDS = 1.0
_SILENT_POLLS = 30
_ROW = (*EPISODE, "chunk")
# What the log tells of an episode whose first records it no longer has.
_NUMBERS = ["producer", *EPISODE, "length", "ends", "abort_reason", "closed_offset", "closed_ms"]


class MovedOnError(Exception):
    """The log or the store has moved on past what was to be compared."""


class Verification:
    """Verifies one partition, up to its newest commit."""

    def __init__(
        self,
        bucket: Bucket,
        found: Manifest,
        topic: TopicInfo,
        stored: Stored,
        report: Report,
        progress: Progress,
    ) -> None:
        self._bucket = bucket
        self._spec = found.spec
        self._topic = topic
        self._newest = stored.commit
        self._report = report
        self._progress = progress
        self._stored = Keyed(self._intact(stored.episodes), EPISODE)
        self._stored_rows = self._intact(stored.rows)
        # What judging the log again has come to: its newest commit, and the segments that are open there.
        self._scratch = Scratch(found)
        self._store = ReplayStore(self._scratch, found.spec.stream, topic)
        self._partition: Partition | None = None
        self._limits: Limits | None = None
        self._judged: Commit | None = None
        self._open: tuple[SegmentEntry, ...] = ()
        self._retirement = Retirement(None, Live())

    def run(self, reader: Reader, start: int) -> None:
        """Verify, where the log begins at `start`; raises `MovedOnError` where it soon begins beyond what is read."""
        number = self._newest.partition
        base = self._begin(start)
        offset = base.high_water if base else 0
        self._report.from_offsets[number] = offset
        self._progress.expect(self._newest.high_water - offset)
        records = self._records(reader, offset)
        before = offset
        self._retirement = Retirement(base, commits.live_at(self._bucket, base) if base else Live())
        for at in range(base.number + 1 if base else 0, self._newest.number + 1):
            commit = commits.read(self._bucket, number, at)
            self._retirement.apply(commit)
            if commit.high_water < before:
                raise CorruptStoreError(f"commit {commit.name}: it ends at {commit.high_water}, the last at {before}")
            # One that judged no record only has other segments for the same rows.
            if commit.high_water > before:
                self._replay(commit, records)
                self._progress.advance(commit.high_water - before)
            before = commit.high_water
        self._settle_absent(offset)
        self._compare_state()
        self._compare_open()
        self._count_stored()
        self._count_beyond(offset)

    def _intact(self, found: Iterable[Read[pa.RecordBatch]]) -> list[pa.RecordBatch]:
        """Leave out segments that are missing or damaged, which are counted, as are entries that are wrong."""
        report = self._report
        batches = []
        for read in found:
            if read.fault:
                report.found(read.fault)
            if read.kept is None:
                report.segments_damaged += 1
                continue
            report.commits_wrong += bool(read.fault)
            batches.append(read.kept)
        return batches

    def _begin(self, start: int) -> Commit | None:
        """Choose where to begin: nowhere, or the oldest commit that the log reaches."""
        if start == 0:
            return None
        number = self._newest.partition
        low, high = 0, self._newest.number
        while low < high:
            middle = (low + high) // 2
            if commits.read(self._bucket, number, middle).high_water >= start:
                high = middle
            else:
                low = middle + 1
        base = commits.read(self._bucket, number, low)
        self._judged, self._open = base, self._reopened(base)
        return base

    def _reopened(self, base: Commit) -> tuple[SegmentEntry, ...]:
        """Write what is open at a commit to where the log is judged again, as far as it was not collected since."""
        schema, entries = segments.open_schema(self._spec), commits.live_at(self._bucket, base).open
        read = (segments.read_intact(self._bucket, entry, schema) for entry in entries)
        stored = [batch for batch in read if batch is not None]
        return tuple(
            segments.write_rows(self._scratch, layout.open_segment(base.partition, base.number), [batch])
            for batch in filled_up(self._spec, open_episodes(base.producers), stored)
        )

    def _records(self, reader: Reader, offset: int) -> Iterator[Record]:
        number = self._newest.partition
        reader.seek(self._topic.name, number, offset)
        silent = 0
        while silent < _SILENT_POLLS:
            try:
                records = reader.poll(_POLL_SECONDS)
            except TopicError as error:
                if reader.bounds(self._topic.name, number)[0] > offset:
                    raise MovedOnError from error
                raise
            silent = 0 if records else silent + 1
            for record in records:
                offset = record.offset + 1
                yield record
        raise TopicError(f"partition {number}: the log gives no more records; is Kafka up?")

    def _replay(self, commit: Commit, records: Iterator[Record]) -> None:
        """Judge what one commit judged, by its limits, and look up the episodes that come of it."""
        partition = self._judging_by(commit.limits)
        while partition.high_water < commit.high_water:
            partition.take(next(records))
            self._report.messages += 1
        committed = partition.commit()
        if committed is None or partition.high_water != commit.high_water:
            raise CorruptStoreError(
                f"commit {commit.name}: it ends at {commit.high_water}, a record of the log at {partition.high_water}"
            )
        self._judged, self._open = committed.commit, partition.live.open
        self._scratch.keep(self._open)

    def _judging_by(self, limits: Limits) -> Partition:
        """The partition that judges the next commit."""
        judged = self._judged
        # A new one forgets the segments of episodes, which would be listed again and again the more there are.
        if self._partition is None or limits != self._limits or (judged and judged.live):
            if judged is not None:
                self._scratch.keep(self._open, replace(judged, live=Live(open=self._open)))
            self._limits = limits
            self._partition = Partition(
                self._store,
                self._newest.partition,
                NoQuarantine(),
                limits,
                assembled=lambda episodes: self._compare(episodes.batch),
            )
        return self._partition

    def _compare(self, expected: pa.RecordBatch) -> None:
        blank = fixed(expected, "opened_offset") == BLANK
        self._report.episodes_opened_before += int(blank.sum())
        self._look_up(expected.filter(pa.array(~blank)))
        self._look_up(expected.filter(pa.array(blank)).select(_NUMBERS))

    def _look_up(self, expected: pa.RecordBatch) -> None:
        """Compare episodes with those that are stored, by the columns that they have."""
        report, lengths = self._report, fixed(expected, "length")
        missing, wrong = self._stored.compare(expected)
        report.episodes_expected += len(lengths)
        report.steps_expected += int(lengths.sum())
        report.episodes_wrong += int(wrong.sum())
        report.steps_wrong += int(lengths[wrong].sum())
        if wrong.any():
            report.found(f"wrong: {_name(expected, int(wrong.argmax()))}")
        self._retirement.absent(expected.filter(pa.array(missing)))

    def _settle_absent(self, offset: int) -> None:
        """Tell what was retired from what is missing."""
        report = self._report
        absent, retired = self._retirement.settle(offset)
        lengths = fixed(absent, "length")
        report.episodes_retired += int(retired.sum())
        report.steps_retired += int(lengths[retired].sum())
        report.episodes_missing += int((~retired).sum())
        report.steps_missing += int(lengths[~retired].sum())
        if not retired.all():
            report.found(f"missing: {_name(absent, int(retired.argmin()))}")
        report.commits_wrong += len(self._retirement.wrong)
        for what in self._retirement.wrong:
            report.found(f"partition {self._newest.partition}: {what}")

    def _compare_state(self) -> None:
        """Compare what was counted, and what is known of the producers."""
        report, newest, judged = self._report, self._newest, self._judged
        counters = judged.counters if judged else {}
        for name, count in newest.counters.items():
            report.counters[name] = report.counters.get(name, 0) + count
        for name in counters.keys() | newest.counters.keys():
            recounted, kept = counters.get(name, 0), newest.counters.get(name, 0)
            if recounted != kept:
                report.commits_wrong += 1
                report.found(f"commit {newest.name}: {name} is {kept}, recounted {recounted}")
        if newest.producers != (judged.producers if judged else {}):
            report.commits_wrong += 1
            report.found(f"commit {newest.name}: its producers are not those of the log")
        # By these the next owner of the partition knows the log again, and tells its time.
        for name in ("topic_id", "cluster_id", "last", "log_clock_ms") if judged else ():
            if getattr(newest, name) != getattr(judged, name):
                report.commits_wrong += 1
                report.found(
                    f"commit {newest.name}: its {name} is {getattr(newest, name)}, the log says {getattr(judged, name)}"
                )

    def _compare_open(self) -> None:
        """Compare the rows of open episodes: of them the next commits are made."""
        report, schema = self._report, segments.open_schema(self._spec)
        producers = self._judged.producers if self._judged else {}
        still_open = Keyed([open_episodes(producers)], EPISODE)
        expected, stored = (
            [batch.filter(pa.array(still_open.find(batch) >= 0)) for batch in batches]
            for batches in (
                [segments.read(self._scratch, entry, schema) for entry in self._open],
                self._stored_rows,
            )
        )
        rows = Keyed(stored, _ROW)
        for batch in expected:
            blank = fixed(batch, "offset") == BLANK
            names = batch.filter(pa.array(blank)).select(["producer", *_ROW])
            for part in (batch.filter(pa.array(~blank)), names):
                missing, wrong = rows.compare(part)
                self._count_open(part, missing, "missing")
                self._count_open(part, wrong, "wrong")
        for batch, seen in rows.seen_by_batch():
            report.rows_open += batch.num_rows
            report.steps_open += int(steps(batch).sum())
            self._count_open(batch, ~seen, "not in the log, or twice in the store")

    def _count_open(self, batch: pa.RecordBatch, wrong: NDArray[np.bool_], how: str) -> None:
        if wrong.any():
            self._report.open_rows_wrong += int(wrong.sum())
            row = int(wrong.argmax())
            self._report.found(f"open row {how}: {_name(batch, row)}, chunk {batch.column('chunk')[row]}")

    def _count_stored(self) -> None:
        report, batches = self._report, self._stored.batches
        report.episodes_stored += sum(batch.num_rows for batch in batches)
        report.steps_stored += sum(int(fixed(batch, "length").sum()) for batch in batches)
        acted = [np.unique(batch.column("policy_version").values.to_numpy()) for batch in batches]
        known = np.array(report.policy_versions, np.int64)
        report.policy_versions = np.unique(np.concatenate([known, *acted])).tolist()

    def _count_beyond(self, offset: int) -> None:
        """Count what is stored twice, and what is stored though no record from `offset` on says so."""
        report, stored = self._report, self._stored
        lengths, closed = (
            np.concatenate([np.empty(0, np.int64), *(fixed(batch, name) for batch in stored.batches)])
            for name in ("length", "closed_offset")
        )
        again = stored.repeated()
        report.episodes_duplicated += int(again.sum())
        report.steps_duplicated += int(lengths[again].sum())
        # What ended below that offset is taken as it is.
        unexpected = ~stored.seen & ~again & (closed >= offset)
        report.episodes_unexpected += int(unexpected.sum())
        for mask, what in ((again, "are stored more than once"), (unexpected, "are stored that are not in the log")):
            if mask.any():
                report.found(f"partition {self._newest.partition}: {int(mask.sum())} episodes {what}")


def _name(batch: pa.RecordBatch, row: int) -> str:
    producer, *key = (batch.column(name)[row].as_py() for name in ("producer", *EPISODE))
    return f"producer {producer}, incarnation {key[0]}, env {key[1]}, episode {key[2]}"
