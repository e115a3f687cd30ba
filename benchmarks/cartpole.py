"""The pieces that the benches share: CartPole-v1, its policy, its stream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from penstock_producers.envs import make_env
from penstock_producers.policy import TorchPolicy, make_policy
from penstock_producers.publisher import Publisher, PublishLimits, chunk_bytes
from penstock_producers.rollout import Rollout
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_schemas.log import Log
    from penstock_schemas.messages import Encoded

ENV = "CartPole-v1"
STREAM = "bench"
TOPIC = f"rollouts.{STREAM}"
_SEED = 0


class Wire:
    """Counts what a publisher sends."""

    def __init__(self) -> None:
        self.bytes = 0

    def published(self, encoded: Encoded, seconds: float) -> None:
        """A message was acknowledged."""
        del seconds
        self.bytes += encoded.size

    def waiting(self, reason: str | None) -> None:
        """The log is away: no figure holds then."""
        if reason is not None:
            raise RuntimeError(reason)

    def in_flight(self, size: int) -> None:
        """Bytes wait."""


class Pipeline:
    """A producer in this process, stepped by hand."""

    def __init__(self, log: Log, num_envs: int, producer: str = "bench-0", fragment_steps: int = 256) -> None:
        self.env = make_env(ENV, num_envs)
        self.policy = _policy(self.env)
        self.spec = StreamSpec(
            STREAM,
            from_gymnasium(self.env.observation_space, "observation"),
            from_gymnasium(self.env.action_space, "action"),
            self.env.reward_dtype,
            self.policy.extras,
            env={"id": ENV},
            policy={"name": "actor-critic"},
        )
        self.wire = Wire()
        limits = PublishLimits()
        self.rollout = Rollout(
            self.env,
            self.policy,
            self.spec,
            fragment_steps=fragment_steps,
            fragment_seconds=1.0,
            row_bytes=chunk_bytes(self.spec, limits.max_message_bytes),
            seed=_SEED,
            clock=time.monotonic,
        )
        self.publisher = Publisher(
            log,
            TOPIC,
            self.spec,
            producer,
            limits=limits,
            observer=self.wire,
            while_waiting=lambda: None,
            clock=time.monotonic,
        )

    def run(self, steps: int) -> float:
        """Step, record, encode and publish until `steps` steps are acknowledged; answer steps per second."""
        done, started = 0, time.perf_counter()
        while done < steps:
            fragment = self.rollout.fragment()
            self.publisher.publish(fragment.batch)
            done += fragment.steps
        self.publisher.flush()
        return done / (time.perf_counter() - started)


def bare_loop(num_envs: int) -> Callable[[int], float]:
    """The reference: the vector env, a torch forward, a numpy draw, nothing recorded; answers steps per second."""
    env = gymnasium.make_vec(ENV, num_envs=num_envs, vectorization_mode="vector_entry_point")
    module: Any = _policy(make_env(ENV, num_envs)).module
    rng = np.random.default_rng(_SEED)
    state = {"observation": env.reset(seed=_SEED)[0]}

    def run(steps: int) -> float:
        observation, done, started = state["observation"], 0, time.perf_counter()
        with torch.inference_mode():
            while done < steps:
                logits, _ = module(torch.from_numpy(observation))
                values = logits.numpy()
                action = (values + rng.gumbel(size=values.shape)).argmax(axis=1)
                observation, *_ = env.step(action)
                done += num_envs
        state["observation"] = observation
        return done / (time.perf_counter() - started)

    return run


def _policy(env: Any) -> TorchPolicy:
    observation = from_gymnasium(env.observation_space, "observation")
    action = from_gymnasium(env.action_space, "action")
    return make_policy("actor-critic", observation, action, rng=np.random.default_rng(_SEED))
