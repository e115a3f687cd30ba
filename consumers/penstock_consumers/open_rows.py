"""Rows of episodes that go on: in open segments, of which only the keys are in memory.

How many open segments there are is bounded. They are of distinct levels, a level being twice as large as the one below:
what is written takes up those of its own level and below. So there are as many as the largest has doublings, and a row
is written again about once a level. A segment of `SEGMENT_BYTES` or more is left alone until less than half of it
lives; then what lives is written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock_consumers.rows import Keys, Part, holding, in_groups, lay
from penstock_consumers.store import layout, segments
from penstock_consumers.store.commits import KEYS_MODULUS
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.judge import Judge
    from penstock_consumers.rows import Source
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec

# Of which size open segments are written, roughly, and from which on they are no longer joined.
SEGMENT_BYTES = 32 << 20
# Levels below this are one.
_LEAST_LEVEL_BYTES = 16 << 10
# What is read at once: an episode that ends reads the batches in which it has rows.
_BATCH_BYTES, _MOST_BATCH_BYTES = 256 << 10, 4 << 20
_KEYS = ("producer", "incarnation", "env", "episode", "chunk", "bytes", "reward")


@dataclass(frozen=True, eq=False)
class OpenSegment:
    """The keys of an open segment's rows, an item each; batch i of its file begins with row `batches[i]`."""

    entry: SegmentEntry
    bucket: Bucket
    schema: pa.Schema
    uid: NDArray[np.int64]
    chunk: NDArray[np.int32]
    steps: NDArray[np.int32]
    bytes: NDArray[np.int64]
    batches: NDArray[np.int64]

    @classmethod
    def load(cls, bucket: Bucket, entry: SegmentEntry, spec: StreamSpec, judge: Judge) -> OpenSegment:
        """Read the keys of a segment's rows; the values stay where they are.

        Raises `CorruptStoreError` where it is missing or not as written.
        """
        schema = segments.open_schema(spec)
        uid, chunk, length, size, keys = [], [], [], [], 0
        for batch in segments.columns(bucket, entry, schema, _KEYS):
            keys += segments.row_key_sum(batch)
            uid.append(_uids(batch, judge))
            # What is viewed would keep the batch in memory.
            chunk.append(fixed(batch, "chunk").copy())
            size.append(fixed(batch, "bytes").copy())
            length.append(steps(batch))
        batches = np.cumsum([0, *map(len, uid)])
        if batches[-1] != entry.rows:
            raise CorruptStoreError(f"segment {entry.name}: {batches[-1]} rows, its commit names {entry.rows}")
        if keys % KEYS_MODULUS != entry.keys:
            raise CorruptStoreError(
                f"segment {entry.name}: its rows are not those that were written: {segments.RESTORE}"
            )
        uids, chunks, lengths, sizes = map(np.concatenate, (uid, chunk, length, size))
        return cls(entry, bucket, schema, uids, chunks, lengths, sizes, batches)

    @cached_property
    def size(self) -> int:
        """The bytes of all rows."""
        return int(self.bytes.sum())

    def of(self, uids: NDArray[np.int64]) -> _Stored:
        """As `Source.of`."""
        return _Stored(self, np.flatnonzero(np.isin(self.uid, uids)))

    def parts(self) -> Iterator[Part]:
        """As `Source.parts`."""
        return self.of(self.uid).parts()


@dataclass(frozen=True, eq=False)
class _Stored:
    """Some rows of an open segment."""

    segment: OpenSegment
    rows: NDArray[np.intp]

    @cached_property
    def uid(self) -> NDArray[np.int64]:
        return self.segment.uid[self.rows]

    @cached_property
    def chunk(self) -> NDArray[np.int32]:
        return self.segment.chunk[self.rows]

    @cached_property
    def steps(self) -> NDArray[np.int32]:
        return self.segment.steps[self.rows]

    @cached_property
    def bytes(self) -> NDArray[np.int64]:
        return self.segment.bytes[self.rows]

    def of(self, uids: NDArray[np.int64]) -> _Stored:
        return _Stored(self.segment, self.rows[np.isin(self.uid, uids)])

    def parts(self) -> Iterator[Part]:
        """Read the batches in which there are such rows, and no others."""
        segment = self.segment
        number = np.searchsorted(segment.batches, self.rows, side="right") - 1
        numbers, first = np.unique(number, return_index=True)
        rows = np.split(self.rows, first[1:])
        read = segments.rows(segment.bucket, segment.entry, segment.schema, numbers.tolist())
        for at, here, batch in zip(numbers, rows, read, strict=True):
            yield Part(batch, here - segment.batches[at])


def write(
    bucket: Bucket, partition: int, number: int, spec: StreamSpec, sources: Sequence[Source], uids: NDArray[np.int64]
) -> Iterator[OpenSegment]:
    """Write the rows of the episodes `uids`, ascending, into open segments for commit `number`.

    They are sorted by episode, so that one that ends lies in few batches.
    """
    if not sources:
        return
    uids = uids[np.isin(uids, np.concatenate([source.uid for source in sources]))]
    for group in in_groups(sources, uids, SEGMENT_BYTES):
        keys = Keys(holding(sources, group))
        yield _written(bucket, layout.open_segment(partition, number), spec, keys, keys.order(group))


def _written(bucket: Bucket, name: str, spec: StreamSpec, keys: Keys, order: NDArray[np.intp]) -> OpenSegment:
    schema = segments.open_schema(spec)
    laid = lay(spec, keys, order, np.ones(len(order), np.bool_), np.arange(len(order)))
    rows = laid.rows.take(pa.array(order)).combine_chunks()
    came = {field.name: pa.array(laid.came[field.name][order], field.type) for field in segments.PROVENANCE_FIELDS}
    columns = [
        came[of] if of in came else laid.lists[of] if of in laid.lists else rows.column(of).combine_chunks()
        for of in schema.names
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    uid, size = keys.uid[order], laid.came["bytes"][order]
    batches = _cut(uid, size)
    pieces = [batch.slice(start, end - start) for start, end in pairwise(batches)]
    entry = segments.write_rows(bucket, name, pieces)
    return OpenSegment(entry, bucket, schema, uid, keys.chunk[order], keys.steps[order], size, batches)


def _cut(uid: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cut rows that are sorted by episode into batches: between episodes, and within those that are large."""
    begin = np.cumsum(size) - size
    first = np.flatnonzero(np.append(True, uid[1:] != uid[:-1]))
    episode = np.repeat(begin[first], np.diff(np.append(first, len(uid))))
    number, within = episode // _BATCH_BYTES, (begin - episode) // _MOST_BATCH_BYTES
    cuts = np.flatnonzero((np.diff(number) != 0) | (np.diff(within) != 0)) + 1
    return np.concatenate([[0], cuts, [len(uid)]])


def to_rewrite(stored: Sequence[OpenSegment], still_open: NDArray[np.int64], new_bytes: int) -> list[OpenSegment]:
    """Choose the segments whose living rows are written again along with `new_bytes` of new ones.

    Those of which less than half lives; then, from the smallest on, those of no higher level than all that is written.
    """
    living = [(segment, int(segment.of(still_open).bytes.sum())) for segment in stored]
    chosen = [(segment, live) for segment, live in living if live * 2 < segment.size]
    written = new_bytes + sum(live for _, live in chosen)
    others = (each for each in living if each[1] * 2 >= each[0].size)
    for segment, live in sorted(others, key=lambda each: each[0].size):
        if segment.size >= SEGMENT_BYTES or not written or _level(segment.size) > _level(written):
            break
        chosen.append((segment, live))
        written += live
    return [segment for segment, _ in chosen]


def _level(size: int) -> int:
    return int(max(size / _LEAST_LEVEL_BYTES, 1)).bit_length()


def _uids(batch: pa.RecordBatch, judge: Judge) -> NDArray[np.int64]:
    """Find the episodes of rows by their keys; -1 where one is not open."""
    uid = np.full(batch.num_rows, -1, np.int64)
    owners = batch.column("producer").dictionary_encode()
    codes = owners.indices.to_numpy()
    incarnation, env, episode = (fixed(batch, name) for name in ("incarnation", "env", "episode"))
    for code, producer in enumerate(owners.dictionary.to_pylist()):
        for start in np.unique(incarnation[codes == code]):
            at = (codes == code) & (incarnation == start)
            uid[at] = judge.uids_of(producer, int(start), env[at], episode[at])
    return uid
