"""Uniform transitions: many batches are drawn as one block, read in the order in which they lie, and shuffled back.

Reading in order makes one pass over each segment's pages and few calls of numpy, however many segments there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock_consumers.replay.segment import given_dtypes, masked
from penstock_schemas.spaces import unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

    # Names to arrays; in a batch, to arrays in the structure of a space.
    Block: TypeAlias = "dict[str, NDArray[Any]]"
    Batch: TypeAlias = "dict[str, Any]"

# A block has this many batches, more where there are many segments (to spread the cost of visiting each), fewer where
# it would take more memory than this. One that is held keeps its whole block in memory.
_BLOCK_BATCHES = 64
_DRAWS_A_SEGMENT = 256
_BLOCK_BYTES = 32 << 20
# Masks, policy version and episode.
_OWN_BYTES = 18


@dataclass(frozen=True, slots=True)
class _Part:
    """The draws of a block that fall into one segment."""

    segment: Segment
    base: int
    at: slice
    step: NDArray[np.int64]
    chunk: NDArray[np.intp]
    episode: NDArray[np.int64]


def uniform(
    snapshot: Callable[[], Snapshot], spec: StreamSpec, batch_size: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """Draw steps uniformly with replacement, without end; `snapshot` is asked again before each block."""
    while True:
        now = snapshot()
        batches = _block_batches(now, spec, batch_size)
        block = _gather(now, spec, rng.integers(now.first_step[-1], size=batches * batch_size))
        for begin in range(0, batches * batch_size, batch_size):
            yield _batch(block, spec, slice(begin, begin + batch_size))


def _block_batches(snapshot: Snapshot, spec: StreamSpec, batch_size: int) -> int:
    wanted = max(_BLOCK_BATCHES, len(snapshot.segments) * _DRAWS_A_SEGMENT // batch_size)
    dtypes = given_dtypes(spec)
    step_bytes = _OWN_BYTES + sum((1 + column.overlap) * _bytes(column, dtypes[column.name]) for column in spec.columns)
    return max(1, min(wanted, _BLOCK_BYTES // (step_bytes * batch_size)))


def _bytes(column: Column, dtype: np.dtype[Any]) -> int:
    """What one item of a column takes in a block, at most, with its mask and the text that it refers to."""
    text = column.item_bytes if column.is_text else 0
    return prod(column.shape) * (dtype.itemsize + column.nullable) + text


def _gather(snapshot: Snapshot, spec: StreamSpec, draws: NDArray[np.int64]) -> Block:
    order = np.argsort(draws)
    shuffled = np.empty_like(order)
    shuffled[order] = np.arange(len(order))
    parts = _parts(snapshot, draws[order])
    dtypes = given_dtypes(spec)

    def items(column: Column, index: Callable[[_Part], NDArray[np.int64]]) -> NDArray[Any]:
        ordered = np.empty((len(draws), *column.shape), column.dtype)
        for part in parts:
            part.segment.items(column.name).take(index(part), ordered[part.at])
        return ordered.take(shuffled, axis=0).astype(dtypes[column.name], copy=False)

    def nullable(column: Column, index: Callable[[_Part], NDArray[np.int64]]) -> np.ma.MaskedArray[Any, Any]:
        valid = np.ones(len(draws), np.bool_)
        for part in parts:
            there = part.segment.items(column.name).valid
            if there is not None:
                valid[part.at] = there[index(part)]
        return masked(items(column, index), valid.take(shuffled))

    def own(values: Callable[[_Part], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([values(part) for part in parts]).take(shuffled)

    # Each episode before has one more observation than it has steps.
    before, after = (lambda part: part.step + part.episode), (lambda part: part.step + part.episode + 1)
    return {
        **{column.name: items(column, before) for column in spec.observation_columns},
        **{column.name: items(column, lambda part: part.step) for column in spec.action_columns},
        "reward": items(spec.reward_column, lambda part: part.step),
        **{f"next_{column.name}": items(column, after) for column in spec.observation_columns},
        "terminated": own(lambda part: part.segment.terminated_at[part.chunk] == part.step),
        "truncated": own(lambda part: part.segment.truncated_at[part.chunk] == part.step),
        **{extra.name: (nullable if extra.nullable else items)(extra, lambda part: part.step) for extra in spec.extras},
        **{column.name: nullable(column, before) for column in spec.infos},
        **{f"next_{column.name}": nullable(column, after) for column in spec.infos},
        "policy_version": own(lambda part: part.segment.policy_version[part.chunk]),
        "episode": own(lambda part: part.episode + part.base),
    }


def _batch(block: Block, spec: StreamSpec, at: slice) -> Batch:
    """Cut a batch out of a block, its observations and actions in the structure of their spaces."""
    flat = {name: values[at] for name, values in block.items()}
    observation, action = spec.observation_columns, spec.action_columns
    return {
        "observation": unflatten(spec.observation, [flat.pop(column.name) for column in observation]),
        "action": unflatten(spec.action, [flat.pop(column.name) for column in action]),
        "next_observation": unflatten(spec.observation, [flat.pop(f"next_{column.name}") for column in observation]),
        **flat,
    }


def _parts(snapshot: Snapshot, draws: NDArray[np.int64]) -> list[_Part]:
    """Divide ascending draws among the segments."""
    bounds = np.searchsorted(draws, snapshot.first_step).tolist()
    parts = []
    for number, segment in enumerate(snapshot.segments):
        begin, end = bounds[number], bounds[number + 1]
        if begin < end:
            step = draws[begin:end] - snapshot.first_step[number]
            chunk = np.searchsorted(segment.chunk_start, step, side="right") - 1
            base = int(snapshot.first_episode[number])
            parts.append(_Part(segment, base, slice(begin, end), step, chunk, segment.chunk_episode[chunk]))
    return parts
