"""Chunk rows on their way to episodes: their keys at hand, their values where they are until they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock_consumers.gather import Gather
from penstock_consumers.store import segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.judge import Accepted
    from penstock_schemas.chunks import ChunkRows
    from penstock_schemas.stream import StreamSpec

_PROVENANCE = [field.name for field in segments.PROVENANCE_FIELDS]


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows with their values: the `rows` of `batch`, or all of it where it stays in memory anyway.

    `provenance` holds, by the name of the open segment's column, where each row came from; where it is None, `batch`
    has it.
    """

    batch: pa.RecordBatch
    rows: NDArray[np.intp] | None = None
    provenance: Mapping[str, NDArray[Any]] | None = None

    def kept(self, names: Sequence[str]) -> pa.RecordBatch:
        """Columns of the rows, apart from what else the batch holds."""
        batch = self.batch.select(names)
        return batch if self.rows is None else batch.take(pa.array(self.rows))

    def came(self) -> Mapping[str, NDArray[Any]]:
        """Where the rows came from."""
        if self.provenance is not None:
            return self.provenance
        kept = self.kept(_PROVENANCE)
        return {name: kept.column(name).to_numpy(zero_copy_only=False) for name in _PROVENANCE}


class Source(Protocol):
    """Rows in one place. An item a row: the uid of its episode, its chunk's number, its steps, its bytes.

    Those are what its values are, and its producer's name.
    """

    @property
    def uid(self) -> NDArray[np.int64]: ...  # noqa: D102  (told above)
    @property
    def chunk(self) -> NDArray[np.int32]: ...  # noqa: D102  (the same)
    @property
    def steps(self) -> NDArray[np.int32]: ...  # noqa: D102  (the same)
    @property
    def bytes(self) -> NDArray[np.int64]: ...  # noqa: D102  (the same)

    def of(self, uids: NDArray[np.int64]) -> Source:
        """Leave rows of other episodes than `uids`, ascending, where they are; some may come along."""
        ...

    def parts(self) -> Iterator[Part]:
        """The rows with their values, part by part, in the order of the keys."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one message, in memory."""

    rows: ChunkRows
    uid: NDArray[np.int64]
    provenance: Mapping[str, NDArray[Any]]

    @classmethod
    def accepted(cls, accepted: Accepted) -> Rows:
        """Rows that the judge accepted; what is the same for all of a message takes no memory."""
        shape = len(accepted.uid)
        values = {
            "producer": np.array(accepted.producer, object),
            "incarnation": np.array(accepted.incarnation),
            "offset": np.array(accepted.offset),
            "timestamp_ms": np.array(accepted.timestamp_ms),
        }
        provenance = {name: np.broadcast_to(value, shape) for name, value in values.items()}
        size = accepted.rows.bytes + len(accepted.producer.encode())
        return cls(accepted.rows, accepted.uid, provenance | {"bytes": size})

    @property
    def chunk(self) -> NDArray[np.int32]:
        """As `Source.chunk`."""
        return self.rows.chunk

    @property
    def steps(self) -> NDArray[np.int32]:
        """As `Source.steps`."""
        return self.rows.steps

    @property
    def bytes(self) -> NDArray[np.int64]:
        """As `Source.bytes`."""
        return self.provenance["bytes"]

    def of(self, uids: NDArray[np.int64]) -> Rows:  # noqa: ARG002  (all are in memory as it is)
        """As `Source.of`."""
        return self

    def parts(self) -> Iterator[Part]:
        """As `Source.parts`."""
        yield Part(self.rows.batch, None, self.provenance)


class Keys:
    """The keys of all rows of some sources, end to end."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.uid = np.concatenate([source.uid for source in sources])
        self.chunk = np.concatenate([source.chunk for source in sources])
        self.steps = np.concatenate([source.steps for source in sources])

    def order(self, uids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Sort the rows of the episodes `uids` by episode, each in the order in which it happened."""
        wanted = np.flatnonzero(np.isin(self.uid, uids))
        return wanted[np.lexsort((self.chunk[wanted], self.uid[wanted]))]


@dataclass(frozen=True, slots=True)
class Laid:
    """Rows in a new order.

    `rows` are their columns of one item a row, `came` where they came from, in the order of the keys; `lists` are the
    list columns in the new order.
    """

    rows: pa.Table
    came: Mapping[str, NDArray[Any]]
    lists: Mapping[str, pa.ListArray]


def lay(
    spec: StreamSpec, keys: Keys, order: NDArray[np.intp], keeps: NDArray[np.bool_], first: NDArray[np.intp]
) -> Laid:
    """Read the sources of `keys` once, and lay their rows as `Gather` tells."""
    gather = Gather(spec.columns, keys.steps, order, keeps, first)
    names = [field.name for field in spec.row_fields]
    kept, came, start = [], [], 0
    for source in keys.sources:
        for part in source.parts():
            small = part.kept([*names, *gather.small])
            gather.add(start, small, part.batch, part.rows)
            kept.append(small.select(names))
            came.append(part.came())
            start += small.num_rows
    rows = pa.Table.from_batches(kept).combine_chunks()
    provenance = {name: np.concatenate([each[name] for each in came]) for name in _PROVENANCE}
    return Laid(rows, provenance, gather.columns())


def holding(sources: Sequence[Source], uids: NDArray[np.int64]) -> list[Source]:
    """The sources that hold rows of the episodes `uids`, ascending, and of those as few others as they can."""
    if not sources:
        return []
    held = np.isin(np.concatenate([source.uid for source in sources]), uids)
    ends = np.cumsum([len(source.uid) for source in sources])
    count = np.diff(np.append(0, np.cumsum(held))[np.append(0, ends)])
    return [source.of(uids) for source, has in zip(sources, count, strict=True) if has]


def in_groups(sources: Sequence[Source], uids: NDArray[np.int64], most_bytes: int) -> list[NDArray[np.int64]]:
    """Part the episodes `uids`, ascending, into groups of about `most_bytes`, at least one in each."""
    if not len(uids):
        return []
    uid, size_of_row = _sizes(sources)
    if size_of_row.sum() <= most_bytes:
        return [uids]
    at = np.minimum(np.searchsorted(uids, uid), len(uids) - 1)
    size = np.bincount(at, np.where(uids[at] == uid, size_of_row, 0), len(uids))
    group = (np.cumsum(size) - size) // most_bytes
    return np.split(uids, np.flatnonzero(np.diff(group)) + 1)


def live_bytes(sources: Sequence[Source], uids: NDArray[np.int64]) -> int:
    """How many bytes the rows of the episodes `uids` are."""
    uid, size = _sizes(sources)
    return int(size[np.isin(uid, uids)].sum())


def _sizes(sources: Sequence[Source]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The episodes and the bytes of all rows."""
    none = np.empty(0, np.int64)
    uid = np.concatenate([none, *(source.uid for source in sources)])
    return uid, np.concatenate([none, *(source.bytes for source in sources)])
