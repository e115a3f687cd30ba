"""Uniform transitions: many batches are drawn as one block, read in the order in which they lie, and shuffled back.

Reading in order makes one pass over each segment's pages and few calls of numpy, however many segments there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock_consumers.replay.segment import given_dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_schemas.stream import StreamSpec

    Batch: TypeAlias = "dict[str, NDArray[Any]]"

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
            yield {name: values[begin : begin + batch_size] for name, values in block.items()}


def _block_batches(snapshot: Snapshot, spec: StreamSpec, batch_size: int) -> int:
    wanted = max(_BLOCK_BATCHES, len(snapshot.segments) * _DRAWS_A_SEGMENT // batch_size)
    dtypes = given_dtypes(spec)
    step_bytes = _OWN_BYTES + sum(
        (1 + column.overlap) * column.item_bytes // column.dtype.itemsize * dtypes[column.name].itemsize
        for column in spec.columns
    )
    return max(1, min(wanted, _BLOCK_BYTES // (step_bytes * batch_size)))


def _gather(snapshot: Snapshot, spec: StreamSpec, draws: NDArray[np.int64]) -> Batch:
    order = np.argsort(draws)
    shuffled = np.empty_like(order)
    shuffled[order] = np.arange(len(order))
    parts = _parts(snapshot, draws[order])
    dtypes = given_dtypes(spec)

    def column(name: str, index: Callable[[_Part], NDArray[np.int64]]) -> NDArray[Any]:
        of = parts[0].segment.columns[name]
        ordered = np.empty((len(draws), *of.shape[1:]), of.dtype)
        for part in parts:
            # Every index is valid; in mode "raise" numpy would go through a buffer.
            np.take(part.segment.columns[name], index(part), axis=0, out=ordered[part.at], mode="clip")
        return ordered.take(shuffled, axis=0).astype(dtypes[name], copy=False)

    def own(values: Callable[[_Part], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([values(part) for part in parts]).take(shuffled)

    return {
        # Each episode before has one more observation than it has steps.
        "observation": column("observation", lambda part: part.step + part.episode),
        "action": column("action", lambda part: part.step),
        "reward": column("reward", lambda part: part.step),
        "next_observation": column("observation", lambda part: part.step + part.episode + 1),
        "terminated": own(lambda part: part.segment.terminated_at[part.chunk] == part.step),
        "truncated": own(lambda part: part.segment.truncated_at[part.chunk] == part.step),
        **{extra.name: column(extra.name, lambda part: part.step) for extra in spec.extras},
        "policy_version": own(lambda part: part.segment.policy_version[part.chunk]),
        "episode": own(lambda part: part.episode + part.base),
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
