"""How much of a learner's time is its own, while others draw its batches."""

from __future__ import annotations

import os
import time
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.figure import Figure, paired
from penstock_consumers.replay import Prefetch
from penstock_consumers.replay.torch import ReplayDataset, ReplayLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket

_BATCH = 256
_N_STEP = 3
_WORKERS = 2
_STEP_SECONDS = 5e-3
_STEPS = 200
_WARM = 70
_ROUNDS = 3
_LEAST = 0.95


def never_waits(bucket: Bucket) -> Iterator[Figure]:
    """Take steps of 5 ms with batches of a loader's workers, and of a thread, in turn with drawing them in between.

    A step multiplies matrices on one core until its 5 ms are over by the clock: a learner's step is torch's work and
    not Python's, and lets other threads run meanwhile. So the share tells what the learner waits between its steps, and
    not what others take of its core within them. The first batches, for which processes are started and segments
    opened, are not counted. The learner has one core, and its thread with it; workers have the others, where there are
    others.
    """
    dataset = ReplayDataset(bucket.url, batch_size=_BATCH, n_step=_N_STEP, seed=0)

    def by_itself() -> float:
        return own_share(iter(dataset))

    def of_workers() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one core is too few: workers leave it
            loader = ReplayLoader(dataset, num_workers=_WORKERS, worker_init_fn=_elsewhere)
            return own_share(iter(loader))

    def of_a_thread() -> float:
        with Prefetch(dataset) as batches:
            return own_share(batches)

    for name, share in (
        (f"a ReplayLoader of {_WORKERS} workers", of_workers),
        ("a thread that draws ahead", of_a_thread),
    ):
        ours, reference, ratio = paired(share, by_itself, _ROUNDS)
        yield Figure(
            f"a learner's time in its own steps of 5 ms, batches of {_BATCH} from {name} (reference: drawn in between)",
            round(ours, 4),
            "of its time",
            round(reference, 4),
            round(ratio, 3),
            f">= {_LEAST}",
            ours >= _LEAST,
        )


def own_share(batches: Iterator[Any]) -> float:
    """Learn from batches; answer how much of the time is spent in steps."""
    weights = torch.zeros(256, 256)
    for _ in islice(batches, _WARM):
        _step(weights)
    started = time.perf_counter()
    own = sum(_step(weights) for _ in islice(batches, _STEPS))
    return own / (time.perf_counter() - started)


def _step(weights: torch.Tensor) -> float:
    started = time.perf_counter()
    while time.perf_counter() < started + _STEP_SECONDS:
        torch.mm(weights, weights)
    return time.perf_counter() - started


def _elsewhere(_: int) -> None:
    """Leave the learner's core to it, where there are others."""
    others = set(range(os.cpu_count() or 1)) - set(sorted(os.sched_getaffinity(0))[:1])
    if others:
        os.sched_setaffinity(0, others)
