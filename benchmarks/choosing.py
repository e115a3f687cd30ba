"""How fast prioritized transitions are drawn from a store and updated, on one core, beside our uniform ones."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figure import Figure, paired, speed
from benchmarks.transitions import BATCH, BATCHES, FIELDS
from penstock_consumers.replay import Prioritized, Replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket

_ROUNDS = 7
_LEAST = 0.4


def prioritized(bucket: Bucket) -> Iterator[Figure]:
    """Draw from a store that is warm and update every batch, in turn with drawing uniformly.

    Of what it takes beyond uniform drawing, somewhat more than half is drawing: searching 625,000 sums of groups, then
    looking through the sixteen weights of each group that is hit, both bound by the memory's latency. The rest is
    updating: half a dozen calls of numpy a batch to check and copy what is given, and summing again, for many batches
    at once, the groups that were hit.
    """
    replay = Replay.open(bucket)
    choose = Prioritized()
    uniform = replay.transitions(BATCH, columns=FIELDS)
    batches = replay.transitions(BATCH, columns=FIELDS, choose=choose)
    errors = itertools.cycle(np.random.default_rng(0).random((1_000, BATCH)) + 1e-2)

    def learn() -> None:
        batch = next(batches)
        choose.update(batch["index"], next(errors))

    ours, reference, ratio = paired(
        lambda: speed(learn, BATCHES, BATCH), lambda: speed(lambda: next(uniform), BATCHES, BATCH), _ROUNDS
    )
    name = f"prioritized transitions, batches of {BATCH}, each updated (reference: our uniform transitions)"
    yield Figure(
        name, round(ours), "transitions/s", round(reference), round(ratio, 3), f">= {_LEAST} x", ratio >= _LEAST
    )
