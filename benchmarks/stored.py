"""A store of CartPole's columns to read from: real segments and commits, the values drawn at random."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Commit, Limits, Live
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import list_column
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import Column, StreamSpec

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry

STREAM = "bench"
SPEC = StreamSpec(
    stream=STREAM,
    observation=Box((4,), np.dtype(np.float32)),
    action=Discrete(2),
    reward_dtype=np.dtype(np.float32),
    extras=(Column("log_prob", (), np.dtype(np.float32)), Column("value", (), np.dtype(np.float32))),
    env={"id": "CartPole-v1"},
)
_CHUNK_STEPS = 32
_LONGEST = 500


def cartpole_store(folder: Path, *, steps: int = 10_000_000, in_segments: int = 100, partitions: int = 4) -> Bucket:
    """Make a store of about `steps` steps: episodes of 10 to 500 steps, in chunks of up to 32, a version a segment."""
    bucket = open_bucket(folder)
    manifest.establish(bucket, manifest.Manifest(SPEC, "topic", "cluster"))
    lives = dict.fromkeys(range(partitions), Live())
    numbers = dict.fromkeys(range(partitions), 0)
    for segment in range(in_segments):
        partition = segment % partitions
        number = numbers[partition]
        batch = episodes(SPEC, steps // in_segments, segment)
        entry = segments.write_episodes(bucket, layout.segment(partition, number), batch)
        commit = _commit(partition, number, entry)
        lives[partition] = lives[partition].after(commit)
        commits.create(bucket, commit, lives[partition])
        numbers[partition] = number + 1
    return bucket


def episodes(spec: StreamSpec, steps: int, number: int) -> pa.RecordBatch:
    """Make the episodes of segment `number`: `steps` steps or a little more; any spaces of numbers."""
    rng = np.random.default_rng(number)
    length = rng.integers(10, _LONGEST + 1, size=2 + 2 * steps // (10 + _LONGEST))
    length = length[: np.searchsorted(np.cumsum(length), steps) + 1]
    rows, first = len(length), number * (2 + 2 * steps // (10 + _LONGEST))
    chunks = -(-length // _CHUNK_STEPS)
    chunk_offsets = _offsets(chunks)
    place = np.arange(chunks.sum()) - np.repeat(chunk_offsets[:-1], chunks)
    per_chunk = {
        "chunk_first_step": pa.array(place * _CHUNK_STEPS),
        "policy_version": pa.array(np.full(len(place), number + 1)),
        "policy_digest": pa.array([bytes(32)] * len(place), pa.binary(32)),
        "exploration": pa.array(np.zeros(len(place), np.uint8)),
    }
    schema = segments.episode_schema(spec)
    columns: dict[str, Any] = {
        "producer": pa.array(["producer-0"] * rows),
        "incarnation": pa.array(np.zeros(rows, np.int64)),
        "env": pa.array((np.arange(rows) % 64).astype(np.int32)),
        "episode": pa.array(first + np.arange(rows)),
        "length": pa.array(length),
        "return": pa.array(length.astype(np.float64)),
        "ends": pa.array(np.where(length == _LONGEST, Ends.TRUNCATED, Ends.TERMINATED).astype(np.uint8)),
        **{name: pa.nulls(rows, schema.field(name).type) for name in ("abort_reason", "seed", "reset_options")},
        "continues": pa.nulls(rows, pa.int64()),
        "opened_offset": pa.array(first + np.arange(rows)),
        "closed_offset": pa.array(first + np.arange(rows)),
        "closed_ms": pa.array(1_000 * number + np.arange(rows)),
        **{
            name: pa.ListArray.from_arrays(pa.array(chunk_offsets), items, type=schema.field(name).type)
            for name, items in per_chunk.items()
        },
        **{
            column.name: list_column(column, _values(column, length, rng), _offsets(length + column.overlap))
            for column in spec.columns
        },
    }
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _values(column: Column, length: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
    items = int(length.sum()) + column.overlap * len(length)
    if column.name == "reward":
        return np.ones(items, column.dtype)
    if column.dtype.kind == "f":
        return rng.standard_normal((items, *column.shape), np.float32).astype(column.dtype, copy=False)
    return rng.integers(2, size=(items, *column.shape), dtype=column.dtype)


def _commit(partition: int, number: int, entry: SegmentEntry) -> Commit:
    high_water = commits.ranges_of(entry).closed_offset[1] + 1
    return Commit(
        partition=partition,
        number=number,
        writer=uuid.uuid4().hex,
        high_water=high_water,
        topic_id="topic",
        cluster_id="cluster",
        last=None,
        log_clock_ms=0,
        limits=Limits(),
        producers={},
        counters={},
        segments_added=(entry,),
    )


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
