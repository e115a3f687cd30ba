"""Episodes as a listing names them: without their steps, the newest first."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock_consumers.info import ENDS
from penstock_consumers.replay.segment import episode_id
from penstock_consumers.store import commits, segments
from penstock_schemas.chunks import fixed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec

_COLUMNS = (
    *("producer", "incarnation", "env", "episode", "length", "return", "ends", "abort_reason"),
    *("closed_offset", "closed_ms", "policy_version", "chunk_first_step"),
)
_END_NAMES = {int(value): name for name, value in ENDS.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which episodes to list; None, and no ends, let all pass."""

    producer: str | None = None
    ends: tuple[str, ...] = ()
    least_return: float | None = None
    most_return: float | None = None

    def may_be_in(self, entry: SegmentEntry) -> bool:
        """Whether a segment may have some, as its commit tells."""
        least, most = commits.ranges_of(entry).return_
        below = self.least_return is not None and most < self.least_return
        above = self.most_return is not None and least > self.most_return
        return not (below or above)

    def among(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Tell which episodes of a batch they are, shape (E,)."""
        returns, passed = fixed(batch, "return"), np.ones(batch.num_rows, np.bool_)
        if self.producer is not None:
            passed &= pc.equal(batch.column("producer"), self.producer).to_numpy(zero_copy_only=False)
        if self.ends:
            passed &= np.isin(fixed(batch, "ends"), [int(ENDS[name]) for name in self.ends])
        if self.least_return is not None:
            passed &= returns >= self.least_return
        if self.most_return is not None:
            passed &= returns <= self.most_return
        return passed


def newest(bucket: Bucket, spec: StreamSpec, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
    """List the `limit` episodes that ended last, of those that are wanted, in values that JSON has."""
    return list(islice(_newest(bucket, spec, wanted, limit), limit))


def _newest(bucket: Bucket, spec: StreamSpec, wanted: Wanted, limit: int) -> Iterator[dict[str, Any]]:
    entries = [
        entry
        for commit in commits.newest_of_each(bucket)
        for entry in commits.live_at(bucket, commit).segments
        if wanted.may_be_in(entry)
    ]
    entries.sort(key=lambda entry: commits.ranges_of(entry).closed_ms[1], reverse=True)
    # Each under the negative time of its end, and something that no two share.
    found: list[tuple[int, str, dict[str, Any]]] = []
    for entry in entries:
        latest = commits.ranges_of(entry).closed_ms[1]
        while found and -found[0][0] >= latest:
            yield heapq.heappop(found)[2]
        for row in _rows(bucket, entry, spec, wanted, limit):
            heapq.heappush(found, (-row["closed_ms"], row["id"], row))
    while found:
        yield heapq.heappop(found)[2]


def _rows(
    bucket: Bucket, entry: SegmentEntry, spec: StreamSpec, wanted: Wanted, limit: int
) -> Iterator[dict[str, Any]]:
    for batch in segments.columns(bucket, entry, segments.episode_schema(spec), _COLUMNS):
        rows = np.flatnonzero(wanted.among(batch))
        if len(rows) > limit:
            # No more of one batch can be among the newest of all.
            rows = rows[np.argsort(fixed(batch, "closed_ms")[rows], kind="stable")[-limit:]]
        for row in batch.select(_COLUMNS).take(pa.array(rows)).to_pylist():
            chunks = zip(row["policy_version"], row["chunk_first_step"], strict=True)
            # Of a chunk without a step nothing tells who acted.
            acted = [version for version, first_step in chunks if first_step < row["length"]] or [None]
            yield {
                "id": episode_id(*(row[name] for name in ("producer", "incarnation", "env", "episode"))),
                "length": row["length"],
                "return": row["return"],
                "end": _END_NAMES[row["ends"]],
                "abort_reason": row["abort_reason"],
                "first_version": acted[0],
                "last_version": acted[-1],
                "closed_offset": row["closed_offset"],
                "closed_ms": row["closed_ms"],
            }
