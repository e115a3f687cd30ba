"""How episodes came out: returns, lengths and versions of whole ones, read without their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_consumers.store import segments
from penstock_schemas.chunks import Ends, fixed
from penstock_schemas.columns import list_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_consumers.progress import Progress
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec

_ENV = ("producer", "incarnation", "env")
_COLUMNS = (*_ENV, "episode", "continues", "ends", "return", "length", "closed_ms", "policy_version")
_ENDED = (Ends.TERMINATED | Ends.TRUNCATED).value
_NONE = -1


class Outcomes(NamedTuple):
    """E whole episodes: from a reset to an end of the env's own, the parts of a cut one taken together."""

    policy_version: NDArray[np.int64]
    """(E,) the version that chose the last action."""
    return_: NDArray[np.float64]
    """(E,)"""
    length: NDArray[np.int64]
    """(E,) steps."""
    closed_ms: NDArray[np.int64]
    """(E,) the log's time of the end, in milliseconds since 1970."""


class Outcome:
    """Tells the whole episodes of batches, and at last those whose parts lie in several.

    What is remembered are the parts of episodes that were cut, some 80 bytes each.
    """

    def __init__(self) -> None:
        self._producers: dict[str, int] = {}
        self._parts: list[NDArray[np.void]] = []

    def of(self, batch: pa.RecordBatch) -> Outcomes:
        """Tell the episodes of a batch of which each is one part; remember the parts of others."""
        ends = fixed(batch, "ends")
        begins = batch.column("continues").is_null().to_numpy(zero_copy_only=False)
        part = ~begins | (ends == Ends.CUT.value)
        if part.any():
            self._parts.append(self._described(batch, np.flatnonzero(part)))
        whole = begins & ((ends & _ENDED) != 0)
        return Outcomes(*(values[whole] for values in _told(batch)))

    def joined(self) -> Outcomes:
        """Tell the episodes of which there are several parts, all of them remembered; the others are left out."""
        parts = np.concatenate([np.empty(0, _PART), *self._parts])
        parts = parts[np.lexsort([parts[name] for name in ("episode", *reversed(_ENV))])]
        # A part that was not cut lost its end, and its episode with it.
        follows = np.zeros(len(parts), np.bool_)
        follows[1:] = (parts["continues"][1:] == parts["episode"][:-1]) & (parts["ends"][:-1] == Ends.CUT.value)
        for name in _ENV:
            follows[1:] &= parts[name][1:] == parts[name][:-1]
        first = np.flatnonzero(~follows)
        last = np.append(first[1:], len(parts))[: len(first)] - 1
        whole = (parts["continues"][first] == _NONE) & ((parts["ends"][last] & _ENDED) != 0)
        sums = (np.add.reduceat(parts[name], first) if len(first) else parts[name] for name in ("return_", "length"))
        return_, length = (values[whole] for values in sums)
        at = parts[last[whole]]
        return Outcomes(at["policy_version"], return_, length, at["closed_ms"])

    def _described(self, batch: pa.RecordBatch, rows: NDArray[np.intp]) -> NDArray[np.void]:
        parts = np.empty(len(rows), _PART)
        owners = batch.column("producer").dictionary_encode()
        codes = [self._producers.setdefault(name, len(self._producers)) for name in owners.dictionary.to_pylist()]
        parts["producer"] = np.array(codes)[owners.indices.to_numpy()][rows]
        parts["continues"] = batch.column("continues").fill_null(_NONE).to_numpy()[rows]
        for name in ("incarnation", "env", "episode", "ends"):
            parts[name] = fixed(batch, name)[rows]
        for name, values in zip(Outcomes._fields, _told(batch), strict=True):
            parts[name] = values[rows]
        return parts


_PART = np.dtype(
    [
        *((name, np.int64) for name in (*_ENV, "episode", "continues")),
        ("ends", np.uint8),
        *((name, np.float64 if name == "return_" else np.int64) for name in Outcomes._fields),
    ]
)


def batches(
    bucket: Bucket, spec: StreamSpec, entries: Iterable[SegmentEntry], progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Read what `Outcome` is told, of segments of whole episodes; their steps count as done, and are not read."""
    schema = segments.episode_schema(spec)
    for entry in entries:
        yield from segments.columns(bucket, entry, schema, _COLUMNS)
        progress.advance(entry.steps)


def _told(batch: pa.RecordBatch) -> tuple[NDArray[Any], ...]:
    """What `Outcomes` holds, of every row."""
    chunks = batch.column("policy_version")
    version = chunks.values.to_numpy()[list_offsets(chunks)[1:] - 1]
    return version, *(fixed(batch, name) for name in ("return", "length", "closed_ms"))
