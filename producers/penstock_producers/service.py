"""A producer's life: make the env and the policy, begin, publish fragment after fragment, end."""

from __future__ import annotations

import logging
import time
import zlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from prometheus_client import CollectorRegistry
from threadpoolctl import threadpool_limits

from penstock_producers.envs import CanonicalEnv, make_env
from penstock_producers.metrics import ProducerMetrics
from penstock_producers.policy import PolicyWatcher, TorchPolicy, make_policy
from penstock_producers.publisher import Publisher, PublishLimits, chunk_bytes
from penstock_producers.rollout import Rollout
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.errors import EnvError, LogUnavailableError, SettingsError
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.service import Endpoint, Health
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from penstock_producers.fragment import ClosedFragment
    from penstock_producers.settings import ProducerSettings
    from penstock_schemas.errors import PolicyRejectedError
    from penstock_schemas.log import Log

_LOG = logging.getLogger(__name__)
_BEAT_LIMIT_SECONDS = 60.0
_AGAIN_SECONDS = 1.0

_T = TypeVar("_T")


def serve(settings: ProducerSettings, stop: threading.Event) -> None:
    """Run a producer until `stop`."""
    use_one_thread()
    health = Health("log", "env", clock=time.monotonic, beat_limit=_BEAT_LIMIT_SECONDS)
    registry = CollectorRegistry()
    metrics = ProducerMetrics(registry, health)
    log = KafkaLog(
        settings.bootstrap_servers,
        client_id=settings.producer_id,
        security=settings.kafka_security(),
        delivery_timeout=settings.delivery_timeout_seconds,
        max_message_bytes=settings.max_message_bytes,
    )
    with Endpoint(registry, health, settings.metrics_host, settings.metrics_port), log:
        env = make_env(
            settings.env,
            settings.num_envs,
            kwargs=settings.env_arguments,
            vectorization=settings.vectorization,
            autoreset=_autoreset(settings.autoreset),
        )
        try:
            produce(settings, env, log, metrics, health, stop)
        finally:
            env.close()


def use_one_thread() -> None:
    """Compute in the calling thread only: batches are small, and handing them out costs more than it gains."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def produce(
    settings: ProducerSettings,
    env: CanonicalEnv,
    log: Log,
    metrics: ProducerMetrics,
    health: Health,
    stop: threading.Event,
) -> None:
    """Step `env` and publish to `log` until `stop`, then end the incarnation.

    While the log does not answer it waits, also at its start, and says why.

    Raises `EnvError` where the env breaks: what it had given before is published, and its open episodes are aborted
    with the error.
    """
    health.ready("env")
    env_seed, action_rng = _generators(settings)
    spec, policy = describe(settings, env, action_rng)
    metrics.loaded(policy.version, time.time())
    limits = PublishLimits(settings.max_message_bytes, settings.max_in_flight_bytes)
    rollout = Rollout(
        env,
        policy,
        spec,
        fragment_steps=settings.fragment_steps,
        fragment_seconds=settings.fragment_seconds,
        row_bytes=chunk_bytes(spec, settings.max_message_bytes),
        seed=env_seed,
        clock=time.monotonic,
    )
    patience = _Patience(settings.grace_seconds, health, stop)

    def reject(error: PolicyRejectedError) -> None:
        _LOG.warning("not loaded, the last good policy acts on: %s", error)
        metrics.rejected(error)

    def begin(opened: ExitStack) -> tuple[PolicyWatcher, Publisher]:
        log.create(settings.rollouts_topic, partitions=settings.partitions)
        log.create(settings.policies_topic, compacted=True)
        watcher = PolicyWatcher(log, settings.policies_topic, check=policy.check, rejected=reject)
        opened.enter_context(watcher)
        publisher = Publisher(
            log,
            settings.rollouts_topic,
            spec,
            settings.producer_id,
            limits=limits,
            observer=metrics,
            while_waiting=patience,
            clock=time.monotonic,
        )
        return watcher, opened.enter_context(publisher)

    def publish(fragment: ClosedFragment) -> None:
        metrics.acted(fragment, policy.version)
        publisher.publish(fragment.batch)

    with ExitStack() as opened:
        begun = _once_the_log_answers(begin, opened, metrics, health, stop)
        if begun is None:
            return
        watcher, publisher = begun
        metrics.began(publisher.incarnation)
        _LOG.info("incarnation %d of %s began", publisher.incarnation, settings.producer_id)
        reason = "shutdown"
        try:
            while not stop.is_set():
                if (newer := watcher.take()) is not None:
                    policy.load(newer)
                    metrics.loaded(newer.version, time.time())
                publish(rollout.fragment())
                health.beat()
        except EnvError as error:
            reason = f"env_error: {error}"
            publish(rollout.close())
            raise
        except Exception as error:
            reason = f"error: {error!r}"
            raise
        finally:
            publisher.end(reason)
            publisher.flush()


def _once_the_log_answers(
    begin: Callable[[ExitStack], _T],
    opened: ExitStack,
    metrics: ProducerMetrics,
    health: Health,
    stop: threading.Event,
) -> _T | None:
    """Call `begin` again and again until the log answers; None where `stop` came first.

    What `begin` has entered into `opened` before it failed is left again.
    """
    while True:
        try:
            begun = begin(opened)
        except LogUnavailableError as error:
            opened.close()
            _LOG.warning("waiting for the log: %s", error)
            metrics.waiting(str(error))
            health.beat()
            if stop.wait(_AGAIN_SECONDS):
                return None
        else:
            metrics.waiting(None)
            return begun


class _Patience:
    """Waits for the log as long as it takes, but once a stop was asked for no longer than the grace."""

    def __init__(self, grace_seconds: float, health: Health, stop: threading.Event) -> None:
        self._grace_seconds = grace_seconds
        self._health = health
        self._stop = stop
        self._deadline: float | None = None

    def __call__(self) -> None:
        self._health.beat()
        if not self._stop.is_set():
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_seconds
        if time.monotonic() > self._deadline:
            raise LogUnavailableError(
                f"the log did not take all within {self._grace_seconds:g} s after the stop: the rest is lost"
            )


def describe(settings: ProducerSettings, env: CanonicalEnv, rng: np.random.Generator) -> tuple[StreamSpec, TorchPolicy]:
    """Make the policy for an env, and describe the stream that the two give."""
    observation = from_gymnasium(env.observation_space, "observation")
    action = from_gymnasium(env.action_space, "action")
    policy = make_policy(
        settings.policy,
        observation,
        action,
        arguments=settings.policy_arguments,
        rng=rng,
    )
    spec = StreamSpec(
        settings.stream,
        observation,
        action,
        env.reward_dtype,
        policy.extras,
        env={"id": settings.env, "arguments": settings.env_arguments},
        policy={"name": settings.policy, "arguments": settings.policy_arguments, "mapping": policy.mapping},
    )
    return spec, policy


def _generators(settings: ProducerSettings) -> tuple[int, np.random.Generator]:
    """Seed the envs and the actions; producers that share a seed still differ, by their names."""
    entropy = None if settings.seed is None else [settings.seed, zlib.crc32(settings.producer_id.encode())]
    for_envs, for_actions = np.random.SeedSequence(entropy).spawn(2)
    return int(for_envs.generate_state(1)[0]) >> 1, np.random.default_rng(for_actions)


def _autoreset(name: str | None) -> AutoresetMode | None:
    try:
        return None if name is None else AutoresetMode(name)
    except ValueError as error:
        known = ", ".join(mode.value for mode in AutoresetMode)
        raise SettingsError(f"--autoreset {name}: there are {known}") from error
