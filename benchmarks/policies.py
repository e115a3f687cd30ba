"""How fast a producer is with larger policies, beside bare loops of the same networks that record nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from benchmarks.figure import Figure, paired
from benchmarks.pipeline import CARTPOLE, TOPIC, Pipeline, against, envs
from benchmarks.zoo import Frames
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SEED = 0
_ENVS, _STEPS = 64, 150_000
_FRAME_ENVS, _FRAME_STEPS, _FRAME_ROUNDS = 256, 40_000, 5
_LEAST = 0.9


def recurrent() -> Iterator[Figure]:
    """Measure a GRU on CartPole's own vector env into the in-memory log."""
    with MemoryLog() as log:
        log.create(TOPIC)
        pipeline = Pipeline(log, envs(CARTPOLE, _ENVS), policy="recurrent")
        bare = _bare_loop(gymnasium.make_vec(CARTPOLE, _ENVS, vectorization_mode="vector_entry_point"), pipeline.policy)
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
        bare = _bare_loop(Frames(num_envs), pipeline.policy, device)
        pipeline.encode(steps // 6)
        bare(steps // 6)
        ours, reference, ratio = paired(lambda: pipeline.encode(steps), lambda: bare(steps), _FRAME_ROUNDS)
        pipeline.env.close()
    name = f"a convolutional policy on {device} through record and encode, N = {num_envs}"
    yield Figure(name, round(ours), "steps/s", round(reference), round(ratio, 3), f">= {_LEAST} x", ratio >= _LEAST)


def _bare_loop(vector_env: Any, policy: Any, device: str = "cpu") -> Callable[[int], float]:
    """The reference: a torch forward with its state, zeroed where an episode ended, and a numpy draw."""
    rng = np.random.default_rng(_SEED)
    module = policy.module
    kept: dict[str, Any] = {
        "observation": vector_env.reset(seed=_SEED)[0],
        "state": tuple(torch.zeros(vector_env.num_envs, *column.shape, device=device) for column in policy.states),
    }

    def run(steps: int) -> float:
        observation, state, done, started = kept["observation"], kept["state"], 0, time.perf_counter()
        with torch.inference_mode():
            while done < steps:
                seen = torch.from_numpy(observation).to(device)
                parameters, _, *after = module(seen, state) if state else module(seen)
                state = after[0] if after else ()
                values = parameters.cpu().numpy()
                action = (values + rng.gumbel(size=values.shape)).argmax(axis=1)
                observation, _, terminated, truncated, _ = vector_env.step(action)
                ended = terminated | truncated
                if ended.any():
                    for part in state:
                        part[torch.from_numpy(ended).to(device)] = 0
                # In NEXT_STEP the call after an end resets the env, which is no step.
                done += vector_env.num_envs - int(np.count_nonzero(ended))
        kept.update(observation=observation, state=state)
        return done / (time.perf_counter() - started)

    return run
