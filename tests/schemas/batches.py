"""Chunk batches for tests: any stream, any rows, values drawn from a generator or given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import Ends, Exploration, list_column
from penstock_schemas.spaces import Box, Discrete, Space
from penstock_schemas.stream import ROW_FIELDS, Column, StreamSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Row:
    """One chunk row, its values left out; by default the first chunk of an episode that goes on."""

    env: int = 0
    episode: int = 0
    chunk: int = 0
    first_step: int = 0
    ends: int = Ends.OPEN
    abort_reason: str | None = None
    seed: int | None = None
    reset_options: str | None = None
    policy_version: int = 1
    policy_digest: bytes = b"\x11" * 32
    exploration: int = Exploration.ON
    steps: int = 2


def stream(
    observation: Space | None = None,
    action: Space | None = None,
    *,
    name: str = "test",
    extras: Sequence[Column] = (),
) -> StreamSpec:
    """A stream of Box(4) observations and Discrete(3) actions, unless others are given."""
    return StreamSpec(
        stream=name,
        observation=observation or Box((4,), np.dtype(np.float32)),
        action=action or Discrete(3),
        reward_dtype=np.dtype(np.float32),
        extras=tuple(extras),
        env={"id": "Test-v0"},
    )


def make_batch(
    spec: StreamSpec,
    rows: Sequence[Row],
    *,
    generator: np.random.Generator | None = None,
    values: Mapping[str, NDArray[Any]] | None = None,
) -> pa.RecordBatch:
    """Make a batch in `spec.schema` of `rows`, which nothing here checks.

    `values` gives list columns by name, shape (all their items, *column.shape); the others are drawn from
    `generator`, actions inside of their space.
    """
    generator = generator or np.random.default_rng(0)
    given = values or {}
    lengths = np.array([row.steps for row in rows], np.int64)
    arrays = [pa.array([getattr(row, column.name) for row in rows], column.type) for column in ROW_FIELDS]
    for column in spec.columns:
        offsets = np.concatenate([[0], np.cumsum(lengths + column.overlap)]).astype(np.int32)
        items = given.get(column.name)
        if items is None:
            items = _draw(spec, column, int(offsets[-1]), generator)
        arrays.append(list_column(column, items, offsets))
    return pa.record_batch(arrays, schema=spec.schema)


def make_rows(generator: np.random.Generator, *, envs: int = 3, chunks: int = 3, max_steps: int = 4) -> list[Row]:
    """Draw valid rows: each of `envs` envs has `chunks` chunks, of one or several episodes, in any way to end."""
    return [row for env in range(envs) for row in _rows_of(env, generator, chunks, max_steps)]


def replaced(batch: pa.RecordBatch, name: str, values: pa.Array | Iterable[Any]) -> pa.RecordBatch:
    """The batch with another column under `name`, its field kept whatever the values say."""
    at = batch.schema.get_field_index(name)
    field = batch.schema.field(at)
    column = values if isinstance(values, pa.Array) else pa.array(list(values), field.type)
    return pa.record_batch([*batch.columns[:at], column, *batch.columns[at + 1 :]], schema=batch.schema)


def _rows_of(env: int, generator: np.random.Generator, chunks: int, max_steps: int) -> Iterable[Row]:
    episode, chunk, first_step = (int(number) for number in generator.integers(0, 5, 3))
    chunk, first_step = (chunk, first_step + 1) if chunk else (0, 0)
    for _ in range(chunks):
        first = chunk == 0
        steps = int(generator.integers(1, max_steps + 1))
        ends = Ends(int(generator.choice([0, 0, 0, 1, 2, 3, 4, 8])))
        yield Row(
            env=env,
            episode=episode,
            chunk=chunk,
            first_step=first_step,
            ends=ends,
            abort_reason="env" if ends is Ends.ABORTED else None,
            seed=int(generator.integers(1 << 31)) if first and generator.random() < 0.5 else None,
            reset_options='{"low":0}' if first and generator.random() < 0.5 else None,
            policy_version=int(generator.integers(1, 9)),
            policy_digest=generator.bytes(32),
            exploration=int(generator.integers(len(Exploration))),
            steps=steps,
        )
        if ends is Ends.OPEN:
            chunk, first_step = chunk + 1, first_step + steps
        else:
            episode, chunk, first_step = episode + int(generator.integers(1, 3)), 0, 0


def _draw(spec: StreamSpec, column: Column, items: int, generator: np.random.Generator) -> NDArray[Any]:
    space = {"observation": spec.observation, "action": spec.action}.get(column.name)
    if isinstance(space, Discrete):
        return generator.integers(space.start, space.start + space.n, items).astype(space.wire_dtype)
    shape = (items, *column.shape)
    if column.dtype.kind == "f":
        return generator.standard_normal(shape).astype(column.dtype)
    bounds = np.iinfo(column.dtype)
    return generator.integers(bounds.min, bounds.max, shape, column.dtype, endpoint=True)
