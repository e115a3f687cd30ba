"""Compaction: small segments of whole episodes are joined into larger ones.

The way of Lucene's LogByteSizeMergePolicy: each size class is `FAN_IN` times as large as the one below, and only
neighbours in log order are joined, so that a partition's segments stay in log order, mostly larger the older they are.
A byte moves up a class whenever it is written again, so it is written about as often as there are classes.
"""

from __future__ import annotations

import logging
from functools import reduce
from itertools import groupby, islice
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.commits import Retired, in_log_order
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_consumers.upkeep.head import Rewritable

_LOG = logging.getLogger(__name__)
# So many segments of one size class are joined; a power of two.
FAN_IN = 8
CLASSES = 5
# At most so many at once, so that one call is soon over on a store that was never compacted.
MOST_JOINED = 128
_CLASS_BITS = FAN_IN.bit_length() - 1


def compact(bucket: Bucket, partition: Rewritable, compact_bytes: int, apart: set[str]) -> bool:
    """Join some of a partition's segments if there is anything to join; tell whether a commit was made.

    A segment that is not as it was written stays as it is, for joined with others it would pass for whole: it is added
    to `apart`, and told. Raises `FencedError` where another writer made the commit.
    """
    newest = partition.commit_found
    while newest and (joined := plan(partition.live.segments, compact_bytes, apart=apart)):
        schema = segments.episode_schema(existing(bucket).spec)
        read = {entry.name: segments.read_intact(bucket, entry, schema) for entry in joined}
        damaged = [name for name, batch in read.items() if batch is None]
        if not damaged:
            entry = join(bucket, layout.segment(partition.partition, newest.number + 1), joined, list(read.values()))
            partition.rewrite(added=[entry], removed=[entry.name for entry in joined])
            return True
        commits.check_newest(bucket, partition.partition, newest.number)
        apart.update(damaged)
        _LOG.error("store %s: not as they were written, so not compacted: %s; restore them", bucket.url, damaged)
    return False


def plan(entries: Sequence[SegmentEntry], compact_bytes: int, *, apart: Collection[str] = ()) -> Sequence[SegmentEntry]:
    """Choose neighbours in log order to join, two at least, of up to `compact_bytes` together; none where all is well.

    Those of more than half of `compact_bytes` are large enough, and stay as they are; so do those named in `apart`.
    Between two such, what is left has at most `FAN_IN` - 1 segments of each class.
    """
    for run in _runs(entries, compact_bytes, apart):
        classes = [size_class(entry, compact_bytes) for entry in run]
        start = 0
        while start < len(run):
            largest = max(classes[start:])
            stop = len(run) - classes[::-1].index(largest)
            if stop - start >= FAN_IN:
                return _fitting(run[start:stop], compact_bytes)
            start = stop
    return ()


def size_class(entry: SegmentEntry, compact_bytes: int) -> int:
    """Tell how large a segment is: 0 for the smallest, `CLASSES` - 1 above a `FAN_IN`th of `compact_bytes`."""
    times = max(compact_bytes // max(entry.bytes, 1), 1)
    return max(CLASSES - 1 - (times.bit_length() - 1) // _CLASS_BITS, 0)


def join(bucket: Bucket, name: str, joined: Sequence[SegmentEntry], batches: Sequence[pa.RecordBatch]) -> SegmentEntry:
    """Write the episodes of segments, as they were read, into one, durable when this returns."""
    entry = segments.write_episodes(bucket, name, pa.concat_batches(batches))
    held, wanted = Retired().plus(entry), reduce(Retired.plus, joined, Retired())
    if held != wanted:
        raise CorruptStoreError(
            f"segment {name}: it has {held}, what it was joined of {wanted}: nothing was committed; report this"
        )
    return entry


def _runs(entries: Sequence[SegmentEntry], compact_bytes: int, apart: Collection[str]) -> Iterator[list[SegmentEntry]]:
    """Part what is in log order where a segment stays as it is."""
    for stays, run in groupby(
        in_log_order(entries), key=lambda entry: entry.bytes * 2 > compact_bytes or entry.name in apart
    ):
        if not stays:
            yield list(run)


def _fitting(run: Sequence[SegmentEntry], compact_bytes: int) -> Sequence[SegmentEntry]:
    """As many from the oldest on as may be joined: two always, since each has at most half of `compact_bytes`."""
    size = 0
    for count, entry in enumerate(islice(run, MOST_JOINED)):
        size += entry.bytes
        if size > compact_bytes:
            return run[:count]
    return run[:MOST_JOINED]
