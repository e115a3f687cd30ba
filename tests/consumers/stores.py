"""Small stores for tests: batches of episodes whose values say which episode and step they are of."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.commits import Commit, LastRecord, Limits, Live
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import list_column
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import Column, StreamSpec

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from penstock_consumers.store.bucket import Bucket

CHUNK_STEPS = 4
OBSERVATION_WIDTH = 4


def stream(name: str = "test") -> StreamSpec:
    """A stream of Box observations (4,), Discrete(3) actions, and two extras, one of them with a rank."""
    return StreamSpec(
        stream=name,
        observation=Box((OBSERVATION_WIDTH,), np.dtype(np.float32)),
        action=Discrete(3),
        reward_dtype=np.dtype(np.float64),
        extras=(
            Column("log_prob", (), np.dtype(np.float32)),
            Column("logits", (3,), np.dtype(np.float32)),
        ),
        env={"id": "Test-v0"},
    )


@dataclass(frozen=True)
class Episodes:
    """Whole episodes as they are to be stored; `batch` is in `episode_schema(spec)`."""

    spec: StreamSpec
    batch: pa.RecordBatch
    lengths: NDArray[np.int64]
    ends: NDArray[np.uint8]
    first: int

    @property
    def steps(self) -> int:
        return int(self.lengths.sum())


def episodes(
    spec: StreamSpec,
    lengths: ArrayLike,
    *,
    first: int = 0,
    ends: ArrayLike = Ends.TERMINATED,
    closed_offset: int = 0,
    version: int = 1,
) -> Episodes:
    """Make episodes number `first`, `first` + 1, … of a stream of `stream()`.

    An observation is (episode, step, 0, 0), a reward is 1000 · episode + step, an action is its step modulo 3.
    Chunks have `CHUNK_STEPS` steps; the versions of an episode's chunks are `version`, `version` + 1, …
    """
    length = np.atleast_1d(np.asarray(lengths, np.int64))
    rows = len(length)
    number = first + np.arange(rows)
    end = np.broadcast_to(np.asarray(ends, np.uint8), rows)
    episode, step = _numbered(number, length)
    of_observation, at_observation = _numbered(number, length + 1)
    observation = np.zeros((len(of_observation), OBSERVATION_WIDTH), np.float32)
    observation[:, 0], observation[:, 1] = of_observation, at_observation
    values: dict[str, NDArray[Any]] = {
        "observation": observation,
        "action": step % 3,
        "reward": 1000.0 * episode + step,
        "log_prob": -step,
        "logits": np.stack([episode, step, -step], axis=1),
    }
    chunk_counts = -(-length // CHUNK_STEPS)
    _, chunk = _numbered(number, chunk_counts)
    offsets = pa.array(_offsets(chunk_counts))
    per_chunk = {
        "chunk_first_step": pa.array(chunk * CHUNK_STEPS),
        "policy_version": pa.array(version + chunk),
        "policy_digest": pa.array([bytes([int(v) % 256]) * 32 for v in version + chunk], pa.binary(32)),
        "exploration": pa.array((chunk % 2).astype(np.uint8)),
    }
    aborted = end == Ends.ABORTED
    schema = segments.episode_schema(spec)
    columns: dict[str, Any] = {
        "producer": pa.array([f"producer-{n % 2}" for n in number]),
        "incarnation": pa.array(np.full(rows, 7)),
        "env": pa.array((number % 5).astype(np.int32)),
        "episode": pa.array(number),
        "length": pa.array(length),
        "return": pa.array([1000.0 * n * t + t * (t - 1) / 2 for n, t in zip(number, length, strict=True)]),
        "ends": pa.array(end),
        "abort_reason": pa.array(np.where(aborted, "gap", ""), mask=~aborted),
        "seed": pa.array(number, mask=number % 2 == 1),
        "reset_options": pa.nulls(rows, pa.string()),
        "continues": pa.nulls(rows, pa.int64()),
        "opened_offset": pa.array(np.zeros(rows, np.int64)),
        "closed_offset": pa.array(np.full(rows, closed_offset)),
        "closed_ms": pa.array(1_000 + number),
        **{
            name: pa.ListArray.from_arrays(offsets, items, type=schema.field(name).type)
            for name, items in per_chunk.items()
        },
        **{
            column.name: list_column(column, values[column.name], _offsets(length + column.overlap))
            for column in spec.columns
        },
    }
    batch = pa.record_batch([columns[name] for name in schema.names], schema=schema)
    batch.validate(full=True)
    return Episodes(spec, batch, length, end, first)


class Writer:
    """Commits to a store as the owner of its partitions does."""

    def __init__(self, bucket: Bucket, spec: StreamSpec) -> None:
        self.bucket = bucket
        self.spec = spec
        self._at: dict[int, tuple[Commit, Live]] = {}
        manifest.establish(bucket, manifest.Manifest(spec, "topic-id", "cluster-id"))

    def segment(self, partition: int, stored: Episodes) -> commits.SegmentEntry:
        """Write a segment for the partition's next commit, without committing it."""
        name = layout.segment(partition, self._next(partition))
        return segments.write_episodes(self.bucket, name, stored.batch)

    def commit(
        self,
        partition: int,
        *added: Episodes | commits.SegmentEntry,
        removed: tuple[str, ...] = (),
        high_water: int = 0,
        counters: dict[str, int] | None = None,
    ) -> Commit:
        """Make the partition's next commit."""
        entries = tuple(self.segment(partition, item) if isinstance(item, Episodes) else item for item in added)
        number = self._next(partition)
        commit = Commit(
            partition=partition,
            number=number,
            writer=uuid.uuid4().hex,
            high_water=high_water,
            topic_id="topic-id",
            cluster_id="cluster-id",
            last=LastRecord(high_water - 1, 0, "") if high_water else None,
            log_clock_ms=0,
            producers={},
            counters=counters or {},
            limits=Limits(),
            segments_added=entries,
            segments_removed=removed,
        )
        live = (self._at[partition][1] if number else Live()).after(commit)
        self._at[partition] = (commits.create(self.bucket, commit, live), live)
        return self._at[partition][0]

    def _next(self, partition: int) -> int:
        return self._at[partition][0].number + 1 if partition in self._at else 0


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _numbered(number: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each item's episode, and the item's place within it."""
    place = np.arange(lengths.sum()) - np.repeat(_offsets(lengths)[:-1], lengths)
    return np.repeat(number, lengths), place
