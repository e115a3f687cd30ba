"""An open segment: its columns as arrays, and the tables that find a step's episode and chunk."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.store import layout, segments
from penstock_schemas import chunks
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec


class Segment:
    """A segment of E episodes, S steps and C chunks in all.

    `columns` holds the list columns by name, shape (S, ...), or (S + E, ...) for observations, in the dtypes in which
    they are stored. Arrays are read-only views of the segment's bytes, or an item an episode or a chunk.
    """

    def __init__(self, entry: SegmentEntry, batch: pa.RecordBatch, spec: StreamSpec) -> None:
        self.entry = entry
        self.batch = batch
        self.columns = {column.name: chunks.list_values(batch.column(column.name), column) for column in spec.columns}
        # Where each episode's steps and chunks begin, shape (E + 1,).
        self.step_offsets = chunks.list_offsets(batch.column("reward"))
        self.chunk_offsets = chunks.list_offsets(batch.column("chunk_first_step"))
        # One item a chunk, shape (C,).
        self.chunk_first_step = _items(batch, "chunk_first_step")
        self.policy_version = _items(batch, "policy_version")
        self.exploration = _items(batch, "exploration")

    @classmethod
    def open(cls, bucket: Bucket, entry: SegmentEntry, spec: StreamSpec) -> Segment:
        """Open a segment; raises `CorruptStoreError` where it is missing or not as its commit names it."""
        segment = cls(entry, segments.read(bucket, entry, segments.episode_schema(spec)), spec)
        steps, observations = (len(segment.columns[name]) for name in ("reward", "observation"))
        if steps != entry.steps or observations != steps + entry.rows:
            raise CorruptStoreError(
                f"segment {entry.name}: {steps} steps and {observations} observations, "
                f"its commit names {entry.steps} steps in {entry.rows} episodes: it was altered"
            )
        return segment

    @property
    def partition(self) -> int:
        """The partition that it is of."""
        return layout.partition_of(self.entry.name)

    def fixed(self, name: str) -> NDArray[Any]:
        """View a column of one primitive an episode, shape (E,)."""
        return chunks.fixed(self.batch, name)

    @cached_property
    def chunk_episode(self) -> NDArray[np.int64]:
        """The row of each chunk's episode, shape (C,)."""
        return np.repeat(np.arange(self.entry.rows), np.diff(self.chunk_offsets))

    @cached_property
    def chunk_start(self) -> NDArray[np.int64]:
        """The step of the segment at which each chunk begins, ascending, shape (C,)."""
        begins: NDArray[np.int64] = self.step_offsets[self.chunk_episode].astype(np.int64)
        begins += self.chunk_first_step
        return begins

    @cached_property
    def terminated_at(self) -> NDArray[np.int64]:
        """The step of the segment with which each chunk's episode terminated, or -1, shape (C,)."""
        return self._last_step(Ends.TERMINATED)

    @cached_property
    def truncated_at(self) -> NDArray[np.int64]:
        """The step of the segment with which each chunk's episode was truncated, or -1, shape (C,)."""
        return self._last_step(Ends.TRUNCATED)

    def _last_step(self, end: Ends) -> NDArray[np.int64]:
        ended = (self.fixed("ends") & end) != 0
        return np.where(ended, self.step_offsets[1:] - 1, -1).astype(np.int64)[self.chunk_episode]


def _items(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    values: NDArray[Any] = batch.column(name).flatten().to_numpy(zero_copy_only=True)
    return values


def given_dtypes(spec: StreamSpec) -> dict[str, np.dtype[Any]]:
    """The dtype in which each list column is given to a learner: that of the environment, not of the wire."""
    stored = {column.name: column.dtype for column in spec.columns}
    return {**stored, "observation": spec.observation.dtype, "action": spec.action.dtype}
