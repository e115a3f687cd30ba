"""A producer in this process, stepped by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figure import Figure, paired
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.making import describe
from penstock_producers.publisher import Publisher, PublishLimits, message_room
from penstock_producers.rollout import Rollout
from penstock_schemas.messages import encode_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.envs import Envs
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
