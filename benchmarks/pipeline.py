"""A producer in this process, stepped by hand, and the bare loops that it is measured against."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.figure import Figure, paired
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.making import describe
from penstock_producers.policy import make_policy
from penstock_producers.publisher import Publisher, PublishLimits, message_room
from penstock_producers.rollout import Rollout
from penstock_schemas.messages import encode_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock_producers.envs import Envs
    from penstock_producers.policy import Policy
    from penstock_schemas.log import Log
    from penstock_schemas.messages import Encoded

CARTPOLE = "CartPole-v1"
STREAM = "bench"
TOPIC = f"rollouts.{STREAM}"
_SEED = 0
_ROUNDS = 7


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

    def __init__(
        self, log: Log, env: Envs, policy: str = "actor-critic", fragment_steps: int = 256, device: str = "cpu"
    ) -> None:
        self.env = env
        self.spec, self.policy = describe(
            STREAM, env, {}, policy=policy, rng=np.random.default_rng(_SEED), device=device
        )
        self.wire = Wire()
        limits = PublishLimits()
        self.rollout = Rollout(
            env,
            self.policy,
            self.spec,
            fragment_steps=fragment_steps,
            fragment_seconds=1.0,
            message_bytes=message_room(self.spec, limits.max_message_bytes),
            clock=time.monotonic,
        )
        self.publisher = Publisher(
            log,
            TOPIC,
            self.spec,
            "bench-0",
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
            self.publisher.publish(fragment.batches)
            done += fragment.steps
        self.publisher.flush()
        return done / (time.perf_counter() - started)

    def encode(self, steps: int) -> float:
        """Step, record and encode only, since the memory log keeps what it is given; answer steps per second."""
        done, started = 0, time.perf_counter()
        while done < steps:
            fragment = self.rollout.fragment()
            for batch in fragment.batches:
                encode_chunks(self.spec, batch, producer="bench-0", incarnation=0, sequence=0)
            done += fragment.steps
        return done / (time.perf_counter() - started)


def against(name: str, pipeline: Pipeline, bare: Callable[[int], float], least: float, steps: int) -> Figure:
    """Measure a producer that publishes, in turn with a bare loop; closes its envs."""
    with pipeline.publisher:
        pipeline.run(steps // 6)
        bare(steps // 6)
        ours, reference, ratio = paired(lambda: pipeline.run(steps), lambda: bare(steps), _ROUNDS)
        pipeline.publisher.end("bench")
        pipeline.publisher.flush()
    pipeline.env.close()
    return Figure(name, round(ours), "steps/s", round(reference), round(ratio, 3), f">= {least} x", ratio >= least)


def envs(env: str, num_envs: int, **settings: Any) -> Envs:
    """Make envs with seeds of the bench's own."""
    return make_envs(EnvSource(env), num_envs, seeds=Seeds(_SEED, "bench-0"), clock=time.monotonic, **settings)


def policy_for(env: Envs, name: str = "actor-critic") -> Policy:
    """Make a policy for envs."""
    return make_policy(name, env.observation_space, env.action_space, rng=np.random.default_rng(_SEED))


def bare_loop(vector_env: Any, module: Any) -> Callable[[int], float]:
    """The reference: a vector env of gymnasium's, a torch forward, a numpy draw, nothing recorded.

    Answers a function that steps so many steps, and answers steps per second.
    """
    rng = np.random.default_rng(_SEED)
    state = {"observation": vector_env.reset(seed=_SEED)[0]}
    space = vector_env.single_action_space
    continuous = space.shape != ()

    def run(steps: int) -> float:
        observation, done, ends = state["observation"], 0, list[Any]()
        started = time.perf_counter()
        with torch.inference_mode():
            while done < steps:
                parameters, _ = module(torch.from_numpy(_flat(observation)))
                values = parameters.numpy()
                if continuous:
                    mean, log_std = np.split(values, 2, axis=1)
                    drawn = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
                    action = np.clip(drawn, space.low, space.high)
                else:
                    action = (values + rng.gumbel(size=values.shape)).argmax(axis=1)
                observation, _, terminated, truncated, _ = vector_env.step(action)
                ends.append((terminated, truncated))
                done += vector_env.num_envs
        seconds = time.perf_counter() - started
        state["observation"] = observation
        # In NEXT_STEP the call after an end resets the env, which is no step.
        resets = sum(int(np.count_nonzero(terminated | truncated)) for terminated, truncated in ends)
        return (done - resets) / seconds

    return run


def _flat(observation: np.ndarray[Any, Any] | Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if isinstance(observation, np.ndarray):
        return observation
    parts = [part.reshape(len(part), -1) for part in observation.values()]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")
