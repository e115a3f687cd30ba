"""How fast sequences are drawn from a store, on one core, beside numpy's fancy indexing of contiguous arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figure import Figure, paired, speed
from penstock_consumers.replay import Replay
from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket

BATCH, LENGTH = 64, 32
FIELDS = ("observation", "action", "reward", "terminated", "truncated")
_BATCHES = 1_000
_ROUNDS = 7
_LEAST = 0.5


def padded(bucket: Bucket) -> Iterator[Figure]:
    """Draw from a store that is warm, in turn with indexing the same fields of arrays.

    The reference gives whatever steps follow each other, over the ends of episodes too. Ours finds each window's
    episode, pads what is shorter, and tells which steps are to learn from.
    """
    replay = Replay.open(bucket)
    batches = replay.sequences(BATCH, LENGTH, columns=(*FIELDS, "mask"))
    arrays = contiguous(replay)
    rng = np.random.default_rng(0)
    ours, reference, ratio = paired(
        lambda: speed(lambda: next(batches), _BATCHES, BATCH),
        lambda: speed(lambda: _at(arrays, rng), _BATCHES, BATCH),
        _ROUNDS,
    )
    name = (
        f"sequences, batches of {BATCH} of {LENGTH} steps, five fields and the mask "
        "(reference: numpy fancy indexing of contiguous arrays, five fields)"
    )
    yield Figure(name, round(ours), "sequences/s", round(reference), round(ratio, 3), f">= {_LEAST} x", ratio >= _LEAST)


def contiguous(replay: Replay) -> dict[str, NDArray[Any]]:
    """Lay all steps of a snapshot in one array a field; of observations, those before each step."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in FIELDS}
    for segment in replay._snapshot.segments:  # noqa: SLF001  (what a reader without Penstock's views would make)
        steps = np.arange(segment.entry.steps)
        row = segment.row_of(steps)
        parts["observation"].append(segment.items("observation").view(slice(None))[steps + row])
        parts["action"].append(segment.items("action").view(slice(None)).astype(np.int64))
        parts["reward"].append(segment.items("reward").view(slice(None)))
        last = steps + 1 == segment.step_offsets[row + 1]
        for name, end in (("terminated", Ends.TERMINATED), ("truncated", Ends.TRUNCATED)):
            parts[name].append(last & ((segment.ends[row] & end) != 0))
    return {name: np.concatenate(of) for name, of in parts.items()}


def _at(arrays: dict[str, NDArray[Any]], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Draw windows, an observation more than steps in each."""
    start = rng.integers(len(arrays["reward"]) - LENGTH, size=BATCH)[:, np.newaxis]
    return {name: array[start + np.arange(LENGTH + (name == "observation"))] for name, array in arrays.items()}
