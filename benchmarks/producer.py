"""How fast a producer is, on one core, beside bare loops that record nothing."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.bare import bare_loop
from benchmarks.figure import Figure, paired
from benchmarks.pipeline import CARTPOLE, TOPIC, Pipeline, against, envs
from benchmarks.zoo import Arm
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_producers.envs import Envs
    from penstock_schemas.log import Log

_STEPS = 300_000
_LANE_STEPS = 100_000
_ROUNDS = 7
_MAX_WIRE_BYTES = 36
_LEAST = {8: 1.3, 64: 1.25, 256: 1.0, 1024: 1.0}
_FRAMES, _FRAME_ENVS, _BLOCK_BYTES = 8_000, 8, 64 << 20
_SLOW_ENVS, _SLOW_WORKERS, _SLOW_STEPS, _SLOW_ROUNDS = 16, 8, 6_000, 5


def vector_entry_point() -> Iterator[Figure]:
    """Measure CartPole's own vector env into the in-memory log, and what a step takes on the wire."""
    for num_envs, least in _LEAST.items():
        with MemoryLog() as log:
            pipeline = _pipeline(log, envs(CARTPOLE, num_envs))
            bare = _bare(gymnasium.make_vec(CARTPOLE, num_envs, vectorization_mode="vector_entry_point"), pipeline)
            steps = _STEPS if num_envs > 8 else _LANE_STEPS  # noqa: PLR2004  (the slow one)
            yield against(f"producer to memory, N = {num_envs}", pipeline, bare, least, steps)
    yield _wire_bytes()


def to_kafka(log: Log) -> Iterator[Figure]:
    """Measure publishing to a Kafka whose broker has the other core."""
    pipeline = _pipeline(log, envs(CARTPOLE, 64))
    bare = _bare(gymnasium.make_vec(CARTPOLE, 64, vectorization_mode="vector_entry_point"), pipeline)
    yield against("producer to Kafka, N = 64", pipeline, bare, 1.0, _STEPS)


def in_lanes() -> Iterator[Figure]:
    """Measure envs one by one in lanes, all faults contained, beside gymnasium's own SyncVectorEnv."""
    for name, env, make, least in (
        ("CartPole in lanes, N = 64", CARTPOLE, partial(gymnasium.make, CARTPOLE), 1.1),
        ("Pendulum in lanes, N = 64", "Pendulum-v1", partial(gymnasium.make, "Pendulum-v1"), 1.0),
        ("Dict observations in lanes, N = 64", "benchmarks.zoo:Arm", Arm, 1.0),
    ):
        with MemoryLog() as log:
            pipeline = _pipeline(log, envs(env, 64, vectorization="lanes"))
            bare = _bare(SyncVectorEnv([make] * 64, autoreset_mode=AutoresetMode.NEXT_STEP), pipeline)
            yield against(name, pipeline, bare, least, _LANE_STEPS)


def frames() -> Iterator[Figure]:
    """Measure large observations from an env that costs nothing: bytes through recording and encoding."""
    with MemoryLog() as log:
        log.create(TOPIC)
        env = envs("benchmarks.zoo:frames", _FRAME_ENVS)
        pipeline = Pipeline(log, env, policy="random")
        frame_bytes = pipeline.spec.observation_columns[0].item_bytes
        ours, reference, ratio = paired(
            lambda: pipeline.encode(_FRAMES) * frame_bytes / 1e6,
            lambda: _copy(_FRAMES, frame_bytes) * frame_bytes / 1e6,
            _ROUNDS,
        )
    name = "84x84x4 frames through record and encode, N = 8 (reference: numpy copies them once)"
    yield Figure(name, round(ours), "MB/s", round(reference), round(ratio, 3), ">= 0.5 x", ratio >= 0.5)  # noqa: PLR2004  (the target)


def out_of_lockstep() -> Iterator[Figure]:
    """Measure 16 envs in eight workers, one of 20 ms a step and the others of 1 ms, beside the same in lockstep."""

    def measure(*, lockstep: bool) -> float:
        with MemoryLog() as log:
            env = envs(
                "benchmarks.zoo:sleeper",
                _SLOW_ENVS,
                vectorization="lanes",
                workers=_SLOW_WORKERS,
                lockstep=lockstep,
            )
            try:
                pipeline = _pipeline(log, env)
                with pipeline.publisher:
                    pipeline.run(_SLOW_ENVS)
                    return pipeline.run(_SLOW_STEPS // 10 if lockstep else _SLOW_STEPS)
            finally:
                env.close()

    ours, reference, ratio = paired(lambda: measure(lockstep=False), lambda: measure(lockstep=True), _SLOW_ROUNDS)
    name = "16 envs, one of 20 ms a step among 1 ms (reference: in lockstep)"
    yield Figure(name, round(ours), "steps/s", round(reference), round(ratio, 3), ">= 5 x", ratio >= 5)  # noqa: PLR2004  (the target)


def _pipeline(log: Log, env: Envs) -> Pipeline:
    log.create(TOPIC)
    return Pipeline(log, env)


def _bare(vector_env: Any, pipeline: Pipeline) -> Callable[[int], float]:
    return bare_loop(vector_env, pipeline.policy)


def _copy(frames: int, frame_bytes: int) -> float:
    """Copy frames once, in blocks that no processor's cache holds, as a stream's do not; answers frames per second."""
    block = np.random.default_rng(0).integers(0, 256, (_BLOCK_BYTES // frame_bytes, frame_bytes), np.uint8)
    copies = np.zeros_like(block)
    done, started = 0, time.perf_counter()
    while done < frames:
        np.copyto(copies, block)
        done += len(block)
    return done / (time.perf_counter() - started)


def _wire_bytes() -> Figure:
    with MemoryLog() as log:
        pipeline = _pipeline(log, envs(CARTPOLE, 64))
        steps = 0
        with pipeline.publisher:
            while steps < _STEPS:
                fragment = pipeline.rollout.fragment()
                pipeline.publisher.publish(fragment.batches)
                steps += fragment.steps
            pipeline.publisher.flush()
    value = pipeline.wire.bytes / steps
    # What a step is at the least: its own columns, nothing around them.
    reference = float(pipeline.spec.step_bytes)
    holds = value <= _MAX_WIRE_BYTES
    target = f"<= {_MAX_WIRE_BYTES} bytes"
    return Figure("bytes on the wire per step", round(value, 2), "bytes", reference, value / reference, target, holds)
