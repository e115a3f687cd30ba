"""How fast uniform transitions are drawn from a store, on one core, beside `numpy.take` from contiguous arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figure import Figure, paired, speed
from penstock_consumers.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket

BATCH = 256
FIELDS = ("observation", "action", "reward", "discount", "next_observation")
BATCHES = 2_000
_ROUNDS = 7
_LEAST = 0.5


def uniform(bucket: Bucket) -> Iterator[Figure]:
    """Draw from a store that is warm, in turn with taking the same fields from arrays.

    The reference is bound by the memory's latency: it reads at random in arrays that no cache holds. Ours reads the
    draws of each segment in the order in which they lie, which the memory likes better, and pays for sorting them, for
    finding their episodes, and for laying the values in the order in which they were drawn.
    """
    replay = Replay.open(bucket)
    batches = replay.transitions(BATCH, columns=FIELDS)
    arrays = contiguous(replay)
    rng = np.random.default_rng(0)

    def take() -> list[NDArray[Any]]:
        drawn = rng.integers(len(arrays["reward"]), size=BATCH)
        return [arrays[name].take(drawn, axis=0) for name in FIELDS]

    ours, reference, ratio = paired(
        lambda: speed(lambda: next(batches), BATCHES, BATCH), lambda: speed(take, BATCHES, BATCH), _ROUNDS
    )
    name = f"uniform transitions, batches of {BATCH}, five fields (reference: numpy.take from contiguous arrays)"
    yield Figure(
        name, round(ours), "transitions/s", round(reference), round(ratio, 3), f">= {_LEAST} x", ratio >= _LEAST
    )


def contiguous(replay: Replay) -> dict[str, NDArray[Any]]:
    """Lay all steps of a snapshot in one array a field, as transitions have them."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in FIELDS}
    for segment in replay._snapshot.segments:  # noqa: SLF001  (what a reader without Penstock's views would make)
        steps = np.arange(segment.entry.steps)
        row = segment.row_of(steps)
        observation = segment.items("observation").view(slice(None))
        parts["observation"].append(observation[steps + row])
        parts["next_observation"].append(observation[steps + row + 1])
        parts["action"].append(segment.items("action").view(slice(None)).astype(np.int64))
        parts["reward"].append(segment.items("reward").view(slice(None)))
        parts["discount"].append(np.full(len(steps), 0.99, np.float32))
    return {name: np.concatenate(of) for name, of in parts.items()}
