"""What a commit says of a segment, held against the segment."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.store import segments
from penstock_consumers.store.commits import Ranges
from penstock_consumers.store.segments import MOST_PRODUCERS
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.stream import METRIC

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_consumers.store.commits import SegmentEntry


def fault_of_episodes(entry: SegmentEntry, batch: pa.RecordBatch) -> str | None:
    """Tell where an entry is not what a segment of whole episodes has; None where it is."""
    told, found = (entry.steps, entry.ranges, entry.keys), _described(batch)
    # By how they read, since what is not a number equals nothing, itself included.
    if repr(told) == repr(found):
        return None
    return f"segment {entry.name}: its commit names steps, ranges and keys {told}, it has {found}"


def fault_of_rows(entry: SegmentEntry, batch: pa.RecordBatch) -> str | None:
    """Tell where an entry is not what an open segment has; None where it is."""
    told, found = (entry.steps, entry.keys), (int(steps(batch).sum()), segments.row_key_sum(batch))
    if told == found:
        return None
    return f"segment {entry.name}: its commit names steps and keys {told}, it has {found}"


def _described(batch: pa.RecordBatch) -> tuple[int, Ranges, int]:
    """What an entry says of a segment, told from its episodes: steps, ranges and the sum of keys."""

    def span(values: NDArray[Any]) -> tuple[Any, Any]:
        # 0 and -0 are equal, and either is least of both.
        numbers = values[~np.isnan(values)] + values.dtype.type(0)
        return (numbers.min().item(), numbers.max().item()) if len(numbers) else (nan, nan)

    producers = set(batch.column("producer").to_pylist())
    # The last chunk of an aborted episode may have no step.
    first = batch.column("chunk_first_step")
    length = np.repeat(fixed(batch, "length"), first.value_lengths().to_numpy())
    versions = batch.column("policy_version").flatten().to_numpy()
    acted = versions[first.flatten().to_numpy() != length]
    measured = {
        name.removeprefix(METRIC): [value for value in batch.column(name).to_pylist() if value is not None]
        for name in batch.schema.names
        if name.startswith(METRIC)
    }
    ranges = Ranges(
        closed_offset=span(fixed(batch, "closed_offset")),
        closed_ms=span(fixed(batch, "closed_ms")),
        length=span(fixed(batch, "length")),
        return_=span(fixed(batch, "return")),
        policy_version=span(acted if len(acted) else versions),
        ends=tuple(sorted(set(fixed(batch, "ends").tolist()))),
        producers=None if len(producers) > MOST_PRODUCERS else tuple(sorted(producers)),
        metrics={name: span(np.array(values)) for name, values in measured.items() if not np.isnan(values).all()},
    )
    return int(fixed(batch, "length").sum()), ranges, segments.key_sum(batch)
