"""One partition on its way into the store: records in, commits out, restarted from the newest commit."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock_consumers import open_rows
from penstock_consumers.assemble import Episodes, assemble, ended_uids
from penstock_consumers.judge import Judge, Verdicts
from penstock_consumers.open_rows import OpenSegment
from penstock_consumers.rows import Rows, holding, in_groups, live_bytes
from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.commits import Commit, LastRecord, Limits, Live, Retired, SegmentEntry
from penstock_schemas.errors import CorruptStoreError, RejectedError
from penstock_schemas.messages import Message, decode

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.breaker import Breaker
    from penstock_consumers.rows import Source
    from penstock_consumers.store.replay_store import ReplayStore
    from penstock_schemas.log import Record
    from penstock_schemas.stream import StreamSpec


# How many bytes of episodes are assembled at once, roughly; each such group is a segment of its own.
_GROUP_BYTES = 64 << 20


class Quarantine(Protocol):
    """Where records go that are not wholly valid."""

    def add(self, record: Record, rejected: RejectedError) -> None:
        """Set a record aside with its reason."""
        ...

    def flush(self) -> None:
        """Wait until all that was added is safe."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """What one commit brought: the heads of the episodes that it stored, in the segments that `commit` adds."""

    commit: Commit
    episodes: Episodes | None


class Partition:
    """The state of one partition at `high_water`, the next offset to judge.

    Crash-only: whatever `take` or `commit` raises, make a new one, which begins at the newest commit. Nothing is
    decided twice that way, since nothing below a commit's high-water mark is ever judged again.

    What it holds in memory is bounded by what it takes between two commits, whatever is open: of open episodes it knows
    the keys of their rows, and it assembles a few at a time. `assembled` is called with each few, before their commit.

    Raises `FencedError` where another consumer's commit let go what was to be loaded: load it again.
    """

    def __init__(
        self,
        store: ReplayStore,
        partition: int,
        quarantine: Quarantine,
        limits: Limits,
        breaker: Breaker | None = None,
        *,
        assembled: Callable[[Episodes], None] | None = None,
    ) -> None:
        self.partition = partition
        self._breaker = breaker
        self._store = store
        self._quarantine = quarantine
        self._limits = limits
        self._assembled = assembled
        self._verdicts = Verdicts()
        self._quarantined_bytes = 0
        self._last: Record | None = None
        self._commit = commits.newest(store.bucket, partition)
        self._live = commits.live_at(store.bucket, self._commit) if self._commit else Live()
        self._judge = _judge_at(self._commit, limits)
        self.high_water = self._commit.high_water if self._commit else 0
        with self._unless_overtaken():
            self._open = {entry.name: self._load_open(entry) for entry in self._live.open}

    @property
    def commit_found(self) -> Commit | None:
        """The newest commit that this partition knows."""
        return self._commit

    @property
    def live(self) -> Live:
        """The segments that live at that commit."""
        return self._live

    @property
    def counters(self) -> Counter[str]:
        """Everything counted since offset 0, the records after the last commit included."""
        return self._judge.counters

    @property
    def open_episodes(self) -> int:
        """The number of open episodes."""
        return self._judge.open_episodes

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages that wait in memory for the next commit, those in quarantine included."""
        return self._verdicts.bytes + self._quarantined_bytes

    def skip_to(self, offset: int) -> None:
        """Go on from `offset`, because the log no longer has what lies before it; the loss is counted."""
        self._judge.counters["offsets_lost"] += offset - self.high_water
        self.high_water = offset

    def take(self, record: Record) -> None:
        """Judge the record at the high-water mark, or a later one where the log has none between."""
        if record.offset < self.high_water:
            raise ValueError(f"offset {record.offset} was judged already: the next is {self.high_water}")
        try:
            self._judge.judge(record, self._decode(record), self._verdicts)
        except RejectedError as rejected:
            if self._breaker:
                self._breaker.bad(f"partition {self.partition}, offset {record.offset}", str(rejected))
            self._judge.reject(record, self._verdicts)
            self._quarantine.add(record, rejected)
            self._quarantined_bytes += record.size
        else:
            if self._breaker:
                self._breaker.good()
        self.high_water = record.offset + 1
        self._last = record

    def commit(self) -> Committed | None:
        """Store what was judged since the last commit, atomically; None where that is nothing.

        Raises `FencedError` where another consumer has made this commit.
        """
        if self._last is None:
            return None
        self._quarantine.flush()
        number = self._commit.number + 1 if self._commit else 0
        with self._unless_overtaken():
            return self._store_judged(number, self._last)

    def _store_judged(self, number: int, judged: Record) -> Committed:
        """Write what was judged up to the record `judged`, and make commit `number` of it."""
        new = [Rows.accepted(accepted) for accepted in self._verdicts.accepted]
        ended = ended_uids(new, self._verdicts.aborted)
        heads, added = self._write_episodes(number, new, ended)
        still_open = np.sort(self._judge.open_uids())
        open_added, open_removed = self._write_open(number, new, still_open)
        kept = [segment for name, segment in self._open.items() if name not in open_removed]
        self._check_conservation((*kept, *open_added), still_open)
        commit = Commit(
            partition=self.partition,
            number=number,
            writer=uuid.uuid4().hex,
            high_water=self.high_water,
            topic_id=self._store.topic.topic_id,
            cluster_id=self._store.topic.cluster_id,
            last=LastRecord(judged.offset, judged.timestamp_ms, record_digest(judged)),
            log_clock_ms=self._judge.clock_ms,
            limits=self._limits,
            producers=self._judge.entries(),
            counters=dict(self._judge.counters),
            segments_added=added,
            open_added=tuple(segment.entry for segment in open_added),
            open_removed=open_removed,
            retired=self._commit.retired if self._commit else Retired(),
        )
        live = self._live.after(commit)
        self._commit = commits.create(self._store.bucket, commit, live)
        self._live = live
        self._open = {segment.entry.name: segment for segment in (*kept, *open_added)}
        self._verdicts = Verdicts()
        self._quarantined_bytes = 0
        self._last = None
        return Committed(self._commit, heads)

    def rewrite(
        self,
        *,
        added: Sequence[SegmentEntry] = (),
        removed: Sequence[str] = (),
        retired: Sequence[SegmentEntry] = (),
    ) -> Commit:
        """Replace segments of whole episodes by others, as `commits.rewrite`; what was judged since waits on.

        Raises `FencedError` where another consumer or a tool has made the commit.
        """
        if self._commit is None:
            raise ValueError(f"partition {self.partition} has no commit yet, so no segments to replace")
        self._commit, self._live = commits.rewrite(
            self._store.bucket, self._commit, self._live, added=added, removed=removed, retired=retired
        )
        return self._commit

    @contextmanager
    def _unless_overtaken(self) -> Iterator[None]:
        """Take nothing for damaged that a newer commit let go, and that was collected since: who finds it is fenced."""
        try:
            yield
        except CorruptStoreError:
            commits.check_newest(self._store.bucket, self.partition, self._commit.number if self._commit else -1)
            raise

    def _decode(self, record: Record) -> Message:
        message = decode(
            record,
            self._store.spec,
            max_bytes=self._limits.max_message_bytes,
            max_raw_bytes=self._limits.max_raw_bytes,
        )
        if message.spec is not None:
            self._store.adopt(message.spec)
        return message

    def _write_episodes(
        self, number: int, new: Sequence[Source], ended: NDArray[np.int64]
    ) -> tuple[Episodes | None, tuple[SegmentEntry, ...]]:
        """Assemble and write the episodes that ended, group by group; no more than one group is in memory."""
        spec = self._store.spec
        if spec is None:
            return None, ()
        sources = holding((*self._open.values(), *new), ended)
        groups = in_groups(sources, ended, _GROUP_BYTES)
        written = [self._write_group(number, spec, holding(sources, group), group) for group in groups]
        return Episodes.joined([heads for heads, _ in written]), tuple(entry for _, entry in written)

    def _write_group(
        self, number: int, spec: StreamSpec, sources: Sequence[Source], group: NDArray[np.int64]
    ) -> tuple[Episodes, SegmentEntry]:
        episodes = assemble(spec, sources, group, self._verdicts.aborted)
        if self._assembled:
            self._assembled(episodes)
        self._count(episodes)
        name = layout.segment(self.partition, number)
        return episodes.heads, segments.write_episodes(self._store.bucket, name, episodes.batch)

    def _count(self, episodes: Episodes) -> None:
        for name, mask in (("ended", ~episodes.aborted), ("aborted", episodes.aborted)):
            self._judge.counters[f"episodes_{name}"] += int(mask.sum())
            self._judge.counters[f"rows_{name}"] += int(episodes.chunks[mask].sum())
            self._judge.counters[f"steps_{name}"] += int(episodes.length[mask].sum())

    def _write_open(
        self, number: int, new: Sequence[Source], still_open: NDArray[np.int64]
    ) -> tuple[tuple[OpenSegment, ...], tuple[str, ...]]:
        """Write what is new of open episodes, and segments anew that are small or mostly dead; name those."""
        fresh = holding(new, still_open)
        rewritten = open_rows.to_rewrite(tuple(self._open.values()), still_open, live_bytes(fresh, still_open))
        removed = tuple(segment.entry.name for segment in rewritten)
        if self._store.spec is None:
            return (), removed
        sources = [*holding(rewritten, still_open), *fresh]
        written = open_rows.write(self._store.bucket, self.partition, number, self._store.spec, sources, still_open)
        return tuple(written), removed

    def _load_open(self, entry: SegmentEntry) -> OpenSegment:
        spec = self._store.known()
        if spec is None:
            raise CorruptStoreError(f"store {self._store.bucket.url}: it has segments and no {layout.MANIFEST}")
        return OpenSegment.load(self._store.bucket, entry, spec, self._judge)

    def _check_conservation(self, stored: Sequence[OpenSegment], still_open: NDArray[np.int64]) -> None:
        """Refuse to commit unless every chunk row that was read is accounted for, in disjoint classes."""
        is_open = sum(int(np.isin(segment.uid, still_open).sum()) for segment in stored)
        count = self._judge.counters
        classes = ("ended", "aborted", "duplicate", "orphan", "superseded")
        accounted = is_open + sum(count[f"rows_{name}"] for name in classes)
        if accounted != count["rows_read"]:
            told = ", ".join(f"{count[f'rows_{name}']} {name}" for name in classes)
            raise CorruptStoreError(
                f"partition {self.partition} at offset {self.high_water}: {count['rows_read']} chunk rows were read, "
                f"{accounted} are accounted for ({told}, {is_open} open): nothing was committed; report this"
            )


def record_digest(record: Record) -> str:
    """The digest by which a commit knows its last record again."""
    sha = hashlib.sha256(record.key or b"")
    sha.update(record.value or b"")
    for name, value in record.headers:
        sha.update(name.encode() + (b"\1" if value is None else b"\0" + value))
    return sha.hexdigest()


def _judge_at(commit: Commit | None, limits: Limits) -> Judge:
    if commit is None:
        return Judge(limits)
    return Judge(
        limits,
        producers=commit.producers,
        counters=commit.counters,
        clock_ms=commit.log_clock_ms,
        timestamp_ms=commit.last.timestamp_ms if commit.last else None,
    )
