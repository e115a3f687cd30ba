"""One partition on its way into the store: records in, commits out, restarted from the newest commit."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from penstock_consumers.assemble import Episodes, Rows, assemble, ended_uids
from penstock_consumers.judge import Judge, Verdicts
from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.commits import Commit, LastRecord, Limits, Live, Retired, SegmentEntry
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.errors import CorruptStoreError, RejectedError
from penstock_schemas.messages import Message, decode

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_consumers.breaker import Breaker
    from penstock_consumers.store.replay_store import ReplayStore
    from penstock_schemas.log import Record


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
    """What one commit brought."""

    commit: Commit
    episodes: Episodes | None
    segment: SegmentEntry | None


class Partition:
    """The state of one partition at `high_water`, the next offset to judge.

    Crash-only: whatever `take` or `commit` raises, make a new one, which begins at the newest commit. Nothing is
    decided twice that way, since nothing below a commit's high-water mark is ever judged again.
    """

    def __init__(
        self,
        store: ReplayStore,
        partition: int,
        quarantine: Quarantine,
        limits: Limits,
        breaker: Breaker | None = None,
    ) -> None:
        self.partition = partition
        self._breaker = breaker
        self._store = store
        self._quarantine = quarantine
        self._limits = limits
        self._verdicts = Verdicts()
        self._last: Record | None = None
        self._commit = commits.newest(store.bucket, partition)
        self._live = commits.live_at(store.bucket, self._commit) if self._commit else Live()
        self._judge = _judge_at(self._commit, limits)
        self.high_water = self._commit.high_water if self._commit else 0
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
    def dirty(self) -> bool:
        """Whether anything was judged since the newest commit."""
        return self._last is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages that wait in memory for the next commit."""
        return self._verdicts.bytes

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
        episodes, still_open = self._assembled()
        entry = self._write_episodes(number, episodes)
        opened = self._write_open(number, still_open)
        dead = self._dead_open_segments()
        self._check_conservation(still_open, dead)
        commit = Commit(
            partition=self.partition,
            number=number,
            writer=uuid.uuid4().hex,
            high_water=self.high_water,
            topic_id=self._store.topic.topic_id,
            cluster_id=self._store.topic.cluster_id,
            last=LastRecord(self._last.offset, self._last.timestamp_ms, record_digest(self._last)),
            log_clock_ms=self._judge.clock_ms,
            limits=self._limits,
            producers=self._judge.entries(),
            counters=dict(self._judge.counters),
            segments_added=(entry,) if entry else (),
            open_added=(opened[0],) if opened else (),
            open_removed=tuple(dead),
            retired=self._commit.retired if self._commit else Retired(),
        )
        live = self._live.after(commit)
        self._commit = commits.create(self._store.bucket, commit, live)
        self._live = live
        for name in dead:
            del self._open[name]
        if opened:
            self._open[opened[0].name] = opened[1]
        self._verdicts = Verdicts()
        self._last = None
        return Committed(self._commit, episodes, entry)

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

    def _assembled(self) -> tuple[Episodes | None, list[Rows]]:
        """Part the rows at hand into whole episodes and rows whose episodes are open."""
        if self._store.spec is None:
            return None, []
        spec, aborted = self._store.spec, self._verdicts.aborted
        new = [Rows.of(accepted) for accepted in self._verdicts.accepted]
        ended = ended_uids(new, aborted)
        if not len(ended):
            return None, new
        stored = [rows.where(np.isin(rows.uid, ended)) for rows in self._open.values()]
        episodes = assemble(spec, [*(rows for rows in stored if len(rows.uid)), *new], ended, aborted)
        self._count(episodes)
        return episodes, _still_open(new, ended)

    def _count(self, episodes: Episodes) -> None:
        for name, mask in (("ended", ~episodes.aborted), ("aborted", episodes.aborted)):
            self._judge.counters[f"episodes_{name}"] += int(mask.sum())
            self._judge.counters[f"rows_{name}"] += int(episodes.chunks[mask].sum())
            self._judge.counters[f"steps_{name}"] += int(episodes.length[mask].sum())

    def _write_episodes(self, number: int, episodes: Episodes | None) -> SegmentEntry | None:
        if episodes is None:
            return None
        name = layout.segment(self.partition, number)
        return segments.write_episodes(self._store.bucket, name, episodes.batch)

    def _write_open(self, number: int, still_open: Sequence[Rows]) -> tuple[SegmentEntry, Rows] | None:
        pieces = [rows for rows in still_open if len(rows.uid)]
        if not pieces or self._store.spec is None:
            return None
        spec = self._store.spec
        batch = pa.Table.from_batches([rows.to_open(spec) for rows in pieces]).combine_chunks().to_batches()[0]
        name = layout.open_segment(self.partition, number)
        entry = segments.write(self._store.bucket, name, [batch], int(steps(batch).sum()))
        stored = segments.read(self._store.bucket, entry, segments.open_schema(spec))
        return entry, Rows.stored(stored, np.concatenate([rows.uid for rows in pieces]), spec)

    def _dead_open_segments(self) -> list[str]:
        still = self._judge.open_uids()
        return [name for name, rows in self._open.items() if not np.isin(rows.uid, still).any()]

    def _load_open(self, entry: SegmentEntry) -> Rows:
        """Map an open segment and find its rows' episodes by their keys; the values stay where they are."""
        if self._store.spec is None:
            raise CorruptStoreError(f"store {self._store.bucket.url}: it has segments and no {layout.MANIFEST}")
        batch = segments.read(self._store.bucket, entry, segments.open_schema(self._store.spec))
        uid = np.full(batch.num_rows, -1, np.int64)
        owners = batch.column("producer").dictionary_encode()
        incarnation, env, episode = (fixed(batch, name) for name in ("incarnation", "env", "episode"))
        for code, producer in enumerate(owners.dictionary.to_pylist()):
            for start in np.unique(incarnation[_is(owners, code)]):
                at = _is(owners, code) & (incarnation == start)
                uid[at] = self._judge.uids_of(producer, int(start), env[at], episode[at])
        return Rows.stored(batch, uid, self._store.spec)

    def _check_conservation(self, still_open: Sequence[Rows], dead: Sequence[str]) -> None:
        """Refuse to commit unless every chunk row that was read is accounted for, in disjoint classes."""
        still = self._judge.open_uids()
        stored = [rows for name, rows in self._open.items() if name not in dead]
        is_open = sum(int(np.isin(rows.uid, still).sum()) for rows in (*stored, *still_open))
        count = self._judge.counters
        classes = ("ended", "aborted", "duplicate", "orphan", "superseded")
        accounted = is_open + sum(count[f"rows_{name}"] for name in classes)
        if accounted != count["rows_read"]:
            told = ", ".join(f"{count[f'rows_{name}']} {name}" for name in classes)
            raise CorruptStoreError(
                f"partition {self.partition} at offset {self.high_water}: {count['rows_read']} chunk rows were read, "
                f"{accounted} are accounted for ({told}, {is_open} open): nothing was committed; report this"
            )


def _still_open(pieces: Sequence[Rows], ended: NDArray[np.int64]) -> list[Rows]:
    """Keep the rows whose episodes have not ended; most messages have none."""
    if not pieces:
        return []
    mask = np.isin(np.concatenate([piece.uid for piece in pieces]), ended, invert=True)
    parts = np.split(mask, np.cumsum([len(piece.uid) for piece in pieces])[:-1])
    return [piece.where(part) for piece, part in zip(pieces, parts, strict=True) if part.any()]


def record_digest(record: Record) -> str:
    """The digest by which a commit knows its last record again."""
    sha = hashlib.sha256(record.key or b"")
    sha.update(record.value or b"")
    for name, value in record.headers:
        sha.update(name.encode() + (b"\1" if value is None else b"\0" + value))
    return sha.hexdigest()


def _judge_at(commit: Commit | None, limits: Limits) -> Judge:
    if commit is None:
        return Judge(idle_limit_ms=limits.idle_limit_ms)
    return Judge(
        idle_limit_ms=limits.idle_limit_ms,
        producers=commit.producers,
        counters=commit.counters,
        clock_ms=commit.log_clock_ms,
        timestamp_ms=commit.last.timestamp_ms if commit.last else None,
    )


def _is(owners: pa.DictionaryArray, code: int) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = owners.indices.to_numpy() == code
    return same
