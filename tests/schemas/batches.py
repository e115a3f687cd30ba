"""Chunk batches for tests: any stream, any rows, values drawn from a generator or given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.columns import item_column, list_column
from penstock_schemas.spaces import Box, Discrete, LeafSpace, MultiBinary, MultiDiscrete, Space, Text, leaves
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
    continues: int | None = None
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
    infos: Sequence[Column] = (),
    states: Sequence[Column] = (),
    metrics: Sequence[str] = (),
) -> StreamSpec:
    """A stream of Box(4) observations and Discrete(3) actions, unless others are given."""
    return StreamSpec(
        stream=name,
        observation=observation or Box((4,), np.dtype(np.float32)),
        action=action or Discrete(3),
        reward_dtype=np.dtype(np.float32),
        extras=tuple(extras),
        infos=tuple(infos),
        states=tuple(states),
        metrics=tuple(metrics),
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

    `values` gives list columns by name, shape (all their items, *column.shape), and states and metrics, shape (rows,
    *column.shape), masked where items are null; the others are drawn from `generator`, observations and actions inside
    of their spaces, metrics where a row ends an episode.
    """
    generator = generator or np.random.default_rng(0)
    given = values or {}
    lengths = np.array([row.steps for row in rows], np.int64)
    arrays = [pa.array([getattr(row, column.name) for row in rows], column.type) for column in ROW_FIELDS]
    for column in (*spec.states, *spec.metric_columns):
        items = given.get(column.name)
        if items is None:
            items = _array((len(rows), *column.shape), column.dtype, generator)
            if column.nullable:
                ended = np.array([row.ends in {1, 2, 3} for row in rows], np.bool_)
                items = masked(items, ended & (generator.random(len(rows)) < 0.7))
        arrays.append(item_column(column, np.ma.getdata(items), present(items) if column.nullable else None))
    for column in spec.columns:
        offsets = np.concatenate([[0], np.cumsum(lengths + column.overlap)]).astype(np.int32)
        items = given.get(column.name)
        if items is None:
            items = _draw(spec, column, int(offsets[-1]), generator)
            if column.nullable:
                items = masked(items, generator.random(len(items)) < 0.5)
        arrays.append(list_column(column, np.ma.getdata(items), offsets, present(items) if column.nullable else None))
    return pa.record_batch(arrays, schema=spec.schema)


def masked(values: NDArray[Any], valid: NDArray[np.bool_]) -> np.ma.MaskedArray[Any, Any]:
    """Items of which only the `valid` ones, shape (n,), are there."""
    mask = np.zeros(values.shape, np.bool_)
    mask[~valid] = True
    return np.ma.MaskedArray(values, mask)


def present(items: NDArray[Any]) -> NDArray[np.bool_]:
    """Which items are there, shape (n,)."""
    there: NDArray[np.bool_] = ~np.ma.getmaskarray(items).any(axis=tuple(range(1, items.ndim)))
    return there


def make_rows(
    generator: np.random.Generator, *, envs: int = 3, chunks: int = 3, max_steps: int = 4, from_start: bool = False
) -> list[Row]:
    """Draw valid rows: each of `envs` envs has `chunks` chunks, of one or several episodes, in any way to end.

    What was cut is continued, and an abort may have no step of its own. The first chunk of an env may be any of its
    episode's, unless they are `from_start`.
    """
    return [row for env in range(envs) for row in _rows_of(env, generator, chunks, max_steps, from_start=from_start)]


def replaced(batch: pa.RecordBatch, name: str, values: pa.Array | Iterable[Any]) -> pa.RecordBatch:
    """The batch with another column under `name`, its field kept whatever the values say."""
    at = batch.schema.get_field_index(name)
    field = batch.schema.field(at)
    column = values if isinstance(values, pa.Array) else pa.array(list(values), field.type)
    return pa.record_batch([*batch.columns[:at], column, *batch.columns[at + 1 :]], schema=batch.schema)


def _rows_of(
    env: int, generator: np.random.Generator, chunks: int, max_steps: int, *, from_start: bool
) -> Iterable[Row]:
    episode, chunk, first_step = (int(number) for number in generator.integers(0, 5, 3))
    chunk, first_step = (chunk, first_step + 1) if chunk and not from_start else (0, 0)
    continues = None
    for _ in range(chunks):
        first = chunk == 0
        begun = first and continues is None
        ends = Ends(int(generator.choice([0, 0, 0, 1, 2, 3, 4, 8])))
        steps = int(generator.integers(not (ends is Ends.ABORTED and not first), max_steps + 1))
        yield Row(
            env=env,
            episode=episode,
            chunk=chunk,
            first_step=first_step,
            ends=ends,
            abort_reason="env" if ends is Ends.ABORTED else None,
            seed=int(generator.integers(1 << 31)) if begun and generator.random() < 0.5 else None,
            reset_options='{"low":0}' if begun and generator.random() < 0.5 else None,
            continues=continues if first else None,
            policy_version=int(generator.integers(1, 9)),
            policy_digest=generator.bytes(32),
            exploration=int(generator.integers(len(Exploration))),
            steps=steps,
        )
        if ends is Ends.OPEN:
            chunk, first_step = chunk + 1, first_step + steps
        else:
            continues = episode if ends is Ends.CUT else None
            episode, chunk, first_step = episode + int(generator.integers(1, 3)), 0, 0


def draw_values(space: LeafSpace, items: int, generator: np.random.Generator) -> NDArray[Any]:
    """Draw values of a leaf, in its wire dtype; of a box, any that the dtype has."""
    if isinstance(space, Text):
        return _texts(items, generator, space.max_length)
    if isinstance(space, Discrete):
        return generator.integers(space.start, space.start + space.n - 1, items, endpoint=True).astype(space.wire_dtype)
    if isinstance(space, MultiDiscrete):
        last = [start + n - 1 for start, n in zip(space.start, space.nvec, strict=True)]
        low, high = (np.reshape(np.array(bound, np.int64), space.shape) for bound in (space.start, last))
        drawn = generator.integers(low, high, (items, *space.shape), endpoint=True)
        return drawn.astype(space.wire_dtype)
    if isinstance(space, MultiBinary) or space.dtype == np.bool_:
        return generator.integers(0, 2, (items, *space.shape)).astype(space.wire_dtype)
    return _array((items, *space.shape), space.wire_dtype, generator)


def _texts(items: int, generator: np.random.Generator, most: int = 8) -> NDArray[Any]:
    characters = np.array(list("aé漢🙂 .~\0"))
    texts = np.empty(items, object)
    texts[:] = ["".join(generator.choice(characters, generator.integers(most + 1))) for _ in range(items)]
    return texts


def _draw(spec: StreamSpec, column: Column, items: int, generator: np.random.Generator) -> NDArray[Any]:
    spaces = (*leaves(spec.observation), *leaves(spec.action))
    columns = (*spec.observation_columns, *spec.action_columns)
    for leaf, drawn in zip(spaces, columns, strict=True):
        if drawn == column:
            return draw_values(leaf.space, items, generator)
    return _texts(items, generator) if column.is_text else _array((items, *column.shape), column.dtype, generator)


def _array(shape: tuple[int, ...], dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    bounds = np.iinfo(dtype)
    return generator.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
