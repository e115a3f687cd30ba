"""The bare loop that producers are measured against: a vector env, a torch forward, a numpy draw, nothing recorded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SEED = 0


def bare_loop(vector_env: Any, policy: Any, device: str = "cpu") -> Callable[[int], float]:
    """Make a loop of a vector env of gymnasium's and a policy's module, its state zeroed where an episode ended.

    Answers a function that steps so many steps, and answers steps per second.
    """
    rng = np.random.default_rng(_SEED)
    module, space = policy.module, vector_env.single_action_space
    continuous, elsewhere = space.shape != (), device != "cpu"
    kept: dict[str, Any] = {
        "observation": vector_env.reset(seed=_SEED)[0],
        "state": tuple(torch.zeros(vector_env.num_envs, *column.shape, device=device) for column in policy.states),
    }

    def forward(observation: Any, state: tuple[torch.Tensor, ...]) -> tuple[Any, tuple[torch.Tensor, ...]]:
        seen = torch.from_numpy(_flat(observation))
        if elsewhere:
            seen = seen.to(device)
        if state:
            parameters, _, state = module(seen, state)
        else:
            parameters, _ = module(seen)
        return (parameters.cpu() if elsewhere else parameters).numpy(), state

    def run(steps: int) -> float:
        observation, state, done, ends = kept["observation"], kept["state"], 0, list[Any]()
        started = time.perf_counter()
        with torch.inference_mode():
            while done < steps:
                values, state = forward(observation, state)
                if continuous:
                    mean, log_std = np.split(values, 2, axis=1)
                    drawn = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
                    action = np.clip(drawn, space.low, space.high)
                else:
                    action = (values + rng.gumbel(size=values.shape)).argmax(axis=1)
                observation, _, terminated, truncated, _ = vector_env.step(action)
                if state and (ended := terminated | truncated).any():
                    for part in state:
                        part[torch.from_numpy(ended)] = 0
                ends.append((terminated, truncated))
                done += vector_env.num_envs
        seconds = time.perf_counter() - started
        kept.update(observation=observation, state=state)
        # In NEXT_STEP the call after an end resets the env, which is no step.
        resets = sum(int(np.count_nonzero(terminated | truncated)) for terminated, truncated in ends)
        return (done - resets) / seconds

    return run


def _flat(observation: np.ndarray[Any, Any] | Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if isinstance(observation, np.ndarray):
        return observation
    parts = [part.reshape(len(part), -1) for part in observation.values()]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")
