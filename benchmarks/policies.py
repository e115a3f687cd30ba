"""How fast a producer is with larger policies, beside bare loops of the same networks that record nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium
import torch

from benchmarks.bare import bare_loop
from benchmarks.figure import Figure, paired
from benchmarks.pipeline import CARTPOLE, TOPIC, Pipeline, against, envs
from benchmarks.zoo import Frames
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENVS, _STEPS = 64, 150_000
_FRAME_ENVS, _FRAME_STEPS, _FRAME_ROUNDS = 256, 40_000, 5
_LEAST = 0.9


def recurrent() -> Iterator[Figure]:
    """Measure a GRU on CartPole's own vector env into the in-memory log."""
    with MemoryLog() as log:
        log.create(TOPIC)
        pipeline = Pipeline(log, envs(CARTPOLE, _ENVS), policy="recurrent")
        bare = bare_loop(gymnasium.make_vec(CARTPOLE, _ENVS, vectorization_mode="vector_entry_point"), pipeline.policy)
        yield against(f"a GRU policy to memory, N = {_ENVS}", pipeline, bare, _LEAST, _STEPS)


def convolutional(device: str = "cuda", num_envs: int = _FRAME_ENVS, steps: int = _FRAME_STEPS) -> Iterator[Figure]:
    """Measure a convolutional network on 84x84x4 frames; nothing where there is no such device.

    The frames come from an env that costs nothing: the network, recording and encoding are all that there is.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return
    with MemoryLog() as log:
        log.create(TOPIC)
        pipeline = Pipeline(log, envs("benchmarks.zoo:frames", num_envs), policy="convolutional", device=device)
        bare = bare_loop(Frames(num_envs), pipeline.policy, device)
        pipeline.encode(steps // 6)
        bare(steps // 6)
        ours, reference, ratio = paired(lambda: pipeline.encode(steps), lambda: bare(steps), _FRAME_ROUNDS)
        pipeline.env.close()
    name = f"a convolutional policy on {device} through record and encode, N = {num_envs}"
    yield Figure(name, round(ours), "steps/s", round(reference), round(ratio, 3), f">= {_LEAST} x", ratio >= _LEAST)
