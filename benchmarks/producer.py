"""How fast a producer is, on one core, beside a bare loop that records nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cartpole import TOPIC, Pipeline, bare_loop
from benchmarks.figure import Figure, paired
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_schemas.log import Log

_STEPS = 300_000
_ROUNDS = 7
_WARM_UP = 50_000
_MAX_WIRE_BYTES = 36


def to_memory() -> Iterator[Figure]:
    """Measure publishing to the in-memory log, and what a step takes on the wire."""
    for num_envs in (64, 256):
        with MemoryLog() as log:
            log.create(TOPIC)
            pipeline = Pipeline(log, num_envs)
            yield _against_bare(f"producer to memory, N = {num_envs}", pipeline, num_envs, 0.8)
            if num_envs == 64:  # noqa: PLR2004  (the figure's own)
                yield _wire_bytes(pipeline)


def to_kafka(log: Log) -> Iterator[Figure]:
    """Measure publishing to a Kafka whose broker has the other core."""
    log.create(TOPIC)
    yield _against_bare("producer to Kafka, N = 64", Pipeline(log, 64), 64, 0.6)


def _against_bare(name: str, pipeline: Pipeline, num_envs: int, least: float) -> Figure:
    bare = bare_loop(num_envs)
    with pipeline.publisher:
        pipeline.run(_WARM_UP)
        bare(_WARM_UP)
        ours, reference, ratio = paired(lambda: pipeline.run(_STEPS), lambda: bare(_STEPS), _ROUNDS)
        pipeline.publisher.end("bench")
        pipeline.publisher.flush()
    return Figure(name, round(ours), "steps/s", round(reference), round(ratio, 3), f">= {least} x", ratio >= least)


def _wire_bytes(pipeline: Pipeline) -> Figure:
    with MemoryLog() as log:
        log.create(TOPIC)
        fresh = Pipeline(log, 64)
        steps = 0
        with fresh.publisher:
            while steps < _STEPS:
                fragment = fresh.rollout.fragment()
                fresh.publisher.publish(fragment.batch)
                steps += fragment.steps
            fresh.publisher.flush()
    value = fresh.wire.bytes / steps
    # What a step is at the least: its own columns, nothing around them.
    reference = float(pipeline.spec.step_bytes)
    holds = value <= _MAX_WIRE_BYTES
    target = f"<= {_MAX_WIRE_BYTES} bytes"
    return Figure("bytes on the wire per step", round(value, 2), "bytes", reference, value / reference, target, holds)
