"""Verifying: the log is judged again, and every episode that comes of it is looked up in the store.

It begins at offset 0, or at the oldest commit that the log still reaches. What the store holds beyond that, twice, or
otherwise is counted as well; so is every chunk row and step of the log, in disjoint classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.partition import Partition
from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.chunks import fixed
from penstock_schemas.errors import CorruptStoreError, StoreError, TopicError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, SegmentEntry
    from penstock_consumers.store.manifest import Manifest
    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Log, Record, TopicInfo

_POLL_SECONDS = 1.0
_SILENT_POLLS = 30
_KEY = ("incarnation", "env", "episode")
# What must come out the same when the log is judged again; what is stored is counted by the store itself.
_NAMED = 5


@dataclass(slots=True)
class Report:
    """What verifying found; `findings` names the first few things that are wrong.

    Of the log's records, `messages` were judged again, and `messages_behind` have no commit yet.
    """

    episodes_expected: int = 0
    episodes_stored: int = 0
    episodes_missing: int = 0
    episodes_duplicated: int = 0
    episodes_unexpected: int = 0
    episodes_wrong: int = 0
    steps_expected: int = 0
    steps_stored: int = 0
    steps_missing: int = 0
    steps_duplicated: int = 0
    steps_wrong: int = 0
    segments_damaged: int = 0
    commits_wrong: int = 0
    messages: int = 0
    messages_behind: int = 0
    policy_versions: list[int] = field(default_factory=list)
    from_offsets: dict[int, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the store holds exactly what the log says."""
        wrong = (
            *(self.episodes_missing, self.episodes_duplicated, self.episodes_unexpected, self.episodes_wrong),
            *(self.segments_damaged, self.commits_wrong),
        )
        return not any(wrong)

    def found(self, what: str) -> None:
        """Name something wrong, unless enough is named."""
        if len(self.findings) < _NAMED:
            self.findings.append(what)


def verify(bucket: Bucket, log: Log, topic_name: str | None = None) -> Report:
    """Compare a store at its newest commits with the log that it was read from.

    Raises `StoreError` or `TopicError` where the two cannot be compared at all.
    """
    found = manifest.load(bucket)
    if found is None:
        raise StoreError(f"store {bucket.url}: there is no {layout.MANIFEST}, so nothing was stored yet: check the URL")
    topic = log.describe(topic_name or f"rollouts.{found.spec.stream}")
    manifest.check(bucket, found, found.spec.stream, topic.topic_id, topic.cluster_id)
    report = Report()
    for partition in range(topic.partitions):
        newest = commits.newest(bucket, partition)
        if newest is not None:
            _Verification(bucket, found, log, topic, newest, report).run()
        report.messages_behind += _behind(log, topic, partition, newest)
    return report


def _behind(log: Log, topic: TopicInfo, partition: int, newest: Commit | None) -> int:
    """Count the records that no consumer has committed yet: nothing is said of those."""
    reader = log.reader()
    try:
        start, end = reader.bounds(topic.name, partition)
    finally:
        reader.close()
    return end - max(start, newest.high_water if newest else 0)


class _Scratch:
    """A store in memory in which the log is judged again; whole episodes are compared, and not kept."""

    url = "the store that verifying makes in memory"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        return self._objects.setdefault(name, data) is data

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        if not name.startswith("segments/"):
            self._objects[name] = b"".join(memoryview(piece) for piece in pieces)

    def read(self, name: str) -> pa.Buffer:
        try:
            return pa.py_buffer(self._objects[name])
        except KeyError as error:
            raise FileNotFoundError(name) from error

    def list(self, prefix: str) -> Iterator[str]:
        return (name for name in self._objects if name.startswith(prefix))


class _NoQuarantine:
    """Quarantined records are counted by the judge, and lie in the dead-letter topic already."""

    def add(self, record: Record, rejected: RejectedError) -> None:
        pass

    def flush(self) -> None:
        pass


class _Stored:
    """The episodes that live in one partition of the store, to be looked up by key."""

    def __init__(self, bucket: Bucket, found: Manifest, entries: Iterable[SegmentEntry], report: Report) -> None:
        schema = segments.episode_schema(found.spec)
        self.batches: list[pa.RecordBatch] = []
        for entry in entries:
            try:
                batch = segments.read(bucket, entry, schema)
            except CorruptStoreError as error:
                report.segments_damaged += 1
                report.found(str(error))
                continue
            if not segments.intact(bucket, entry):
                report.segments_damaged += 1
                report.found(f"segment {entry.name}: its bytes are not those that were written")
            self.batches.append(batch)
        self._producers: dict[str, int] = {}
        keys = [self.keys(batch) for batch in self.batches]
        self.all_keys = np.concatenate(keys) if keys else np.empty(0, "V32")
        self._starts = np.cumsum([0, *(len(key) for key in keys)])
        self._order = np.argsort(self.all_keys, kind="stable")
        self.lengths = np.concatenate([np.empty(0, np.int64), *(fixed(batch, "length") for batch in self.batches)])
        self.seen = np.zeros(len(self.all_keys), np.bool_)

    def keys(self, batch: pa.RecordBatch) -> NDArray[np.void]:
        """The episodes' identities, as bytes that sort."""
        owners = batch.column("producer").dictionary_encode()
        codes = [self._producers.setdefault(name, len(self._producers)) for name in owners.dictionary.to_pylist()]
        columns = [np.array(codes, np.int64)[owners.indices.to_numpy()], *(fixed(batch, name) for name in _KEY)]
        packed = np.ascontiguousarray(np.stack(columns, axis=1).astype(np.int64))
        keys: NDArray[np.void] = packed.view("V32").reshape(-1)
        return keys

    def find(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Number the stored episodes that have the keys of `batch`; -1 where there is none."""
        wanted = self.keys(batch)
        if not len(self.all_keys):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self.all_keys[self._order], wanted)
        found = self._order[np.minimum(at, len(self.all_keys) - 1)]
        return np.where(self.all_keys[found] == wanted, found, -1)

    def take(self, numbers: NDArray[np.int64]) -> pa.Table:
        """Read episodes by number, in that order."""
        segment = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(segment, kind="stable")
        parts = [
            self.batches[at].take(pa.array(numbers[order][segment[order] == at] - self._starts[at]))
            for at in np.unique(segment)
        ]
        return pa.Table.from_batches(parts).take(pa.array(np.argsort(order)))


class _Verification:
    """Verifies one partition."""

    def __init__(
        self, bucket: Bucket, found: Manifest, log: Log, topic: TopicInfo, newest: Commit, report: Report
    ) -> None:
        self._bucket = bucket
        self._found = found
        self._log = log
        self._topic = topic
        self._newest = newest
        self._report = report
        self._scratch = _Scratch()
        self._scratch.create(layout.MANIFEST, found.to_json())
        self._stored = _Stored(bucket, found, commits.live_at(bucket, newest).segments, report)

    def run(self) -> None:
        report, number = self._report, self._newest.partition
        reader = self._log.reader()
        try:
            start, end = reader.bounds(self._topic.name, number)
            if end < self._newest.high_water:
                raise TopicError(f"partition {number}: the log ends at {end}, the store at {self._newest.high_water}")
            base = self._base(start)
            offset = base.high_water if base else 0
            report.from_offsets[number] = offset
            reader.seek(self._topic.name, number, offset)
            records = self._records(reader)
            known = self._known_before(base)
            last: Commit | None = base
            for at in range(base.number + 1 if base else 0, self._newest.number + 1):
                last = self._replay(commits.read(self._bucket, number, at), records)
            self._compare_counters(last)
        finally:
            reader.close()
        self._count_rest(known)

    def _base(self, start: int) -> Commit | None:
        """Choose where to begin: nowhere, or the oldest commit from which the log is still whole."""
        if start == 0:
            return None
        low, high = 0, self._newest.number
        while low < high:
            middle = (low + high) // 2
            if commits.read(self._bucket, self._newest.partition, middle).high_water >= start:
                high = middle
            else:
                low = middle + 1
        base = commits.read(self._bucket, self._newest.partition, low)
        live = commits.live_at(self._bucket, base)
        self._scratch.put(base.name, replace(base, live=live).to_json())
        for entry in live.open:
            self._scratch.put(entry.name, self._bucket.read(entry.name))
        return base

    def _known_before(self, base: Commit | None) -> NDArray[np.bool_]:
        """Which stored episodes ended below the offset from which is verified: taken as they are."""
        stored = self._stored
        closed = [fixed(batch, "closed_offset") for batch in stored.batches]
        offsets = np.concatenate([np.empty(0, np.int64), *closed])
        return offsets < (base.high_water if base else 0)

    def _records(self, reader: Any) -> Iterator[Record]:
        silent = 0
        while silent < _SILENT_POLLS:
            records = reader.poll(_POLL_SECONDS)
            silent = 0 if records else silent + 1
            yield from records
        raise TopicError(f"partition {self._newest.partition}: the log gives no more records; is Kafka up?")

    def _replay(self, commit: Commit, records: Iterator[Record]) -> Commit:
        """Judge what one commit judged, by its limits, and look up the episodes that come of it."""
        store = ReplayStore(self._scratch, self._found.spec.stream, self._topic)
        partition = Partition(store, commit.partition, _NoQuarantine(), commit.limits)
        if partition.high_water < commit.high_water:
            for record in records:
                if record.offset > partition.high_water:
                    partition.skip_to(record.offset)
                partition.take(record)
                self._report.messages += 1
                if partition.high_water >= commit.high_water:
                    break
        committed = partition.commit()
        if committed is None or committed.commit.number != commit.number:
            raise CorruptStoreError(f"commit {commit.name}: it judged no record: it cannot be replayed")
        if committed.episodes is not None:
            self._compare(committed.episodes.batch)
        # The next one is found by its own listing: the scratch store may have no commit before the base.
        self._scratch.put(committed.commit.name, replace(committed.commit, live=partition.live).to_json())
        return committed.commit

    def _compare(self, expected: pa.RecordBatch) -> None:
        report, stored = self._report, self._stored
        lengths = fixed(expected, "length")
        report.episodes_expected += len(lengths)
        report.steps_expected += int(lengths.sum())
        numbers = stored.find(expected)
        missing = numbers < 0
        if missing.any():
            report.episodes_missing += int(missing.sum())
            report.steps_missing += int(lengths[missing].sum())
            report.found(f"missing: {_name(expected, int(missing.argmax()))}")
        there = numbers[~missing]
        stored.seen[there] = True
        expected = expected.filter(pa.array(~missing))
        if not expected.num_rows:
            return
        actual, wanted = stored.take(there), pa.Table.from_batches([expected])
        pairs = [(actual.column(name), wanted.column(name)) for name in wanted.schema.names]
        unequal = [(one, other) for one, other in pairs if not one.equals(other)]
        for row in range(expected.num_rows if unequal else 0):
            # By how they read, since what is not a number equals nothing, itself included.
            if any(repr(one[row].as_py()) != repr(other[row].as_py()) for one, other in unequal):
                report.episodes_wrong += 1
                report.steps_wrong += int(fixed(expected, "length")[row])
                report.found(f"wrong: {_name(expected, row)}")

    def _compare_counters(self, last: Commit | None) -> None:
        if last is None:
            return
        report = self._report
        for name, count in self._newest.counters.items():
            report.counters[name] = report.counters.get(name, 0) + count
        for name in last.counters.keys() | self._newest.counters.keys():
            recounted, kept = last.counters.get(name, 0), self._newest.counters.get(name, 0)
            if recounted != kept:
                report.commits_wrong += 1
                report.found(f"commit {self._newest.name}: {name} is {kept}, recounted {recounted}")
        if last.producers != self._newest.producers:
            report.commits_wrong += 1
            report.found(f"commit {self._newest.name}: its producers are not those of the log")

    def _count_rest(self, known: NDArray[np.bool_]) -> None:
        """Count what is stored twice, and what is stored though no record says so."""
        report, stored = self._report, self._stored
        keys, lengths = stored.all_keys, stored.lengths
        report.episodes_stored += len(keys)
        report.steps_stored += int(lengths.sum())
        for batch in stored.batches:
            acted = np.unique(batch.column("policy_version").values.to_numpy()).tolist()
            report.policy_versions = sorted({*report.policy_versions, *acted})
        _, first = np.unique(keys, return_index=True)
        again = np.ones(len(keys), np.bool_)
        again[first] = False
        report.episodes_duplicated += int(again.sum())
        report.steps_duplicated += int(lengths[again].sum())
        unexpected = ~stored.seen & ~again & ~known
        report.episodes_unexpected += int(unexpected.sum())
        if again.any():
            report.found(f"partition {self._newest.partition}: {int(again.sum())} episodes are stored more than once")
        if unexpected.any():
            told = f"{int(unexpected.sum())} episodes are stored that are not in the log"
            report.found(f"partition {self._newest.partition}: {told}")


def _name(batch: pa.RecordBatch, row: int) -> str:
    producer, *key = (batch.column(name)[row].as_py() for name in ("producer", *_KEY))
    return f"producer {producer}, incarnation {key[0]}, env {key[1]}, episode {key[2]}"
