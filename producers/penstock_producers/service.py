"""A producer's life: make the env and the policy, begin, publish fragment after fragment, end."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from prometheus_client import CollectorRegistry
from threadpoolctl import threadpool_limits

from penstock_producers.callbacks import attach, make_callbacks
from penstock_producers.counts import kept
from penstock_producers.envs import Seeds
from penstock_producers.making import make_described, make_env
from penstock_producers.metrics import ProducerMetrics
from penstock_producers.patience import Patience, ends_unless_made, once_the_log_answers
from penstock_producers.policy.weights_store import WeightsStore
from penstock_producers.publisher import Publisher, PublishLimits, end_reason, message_room
from penstock_producers.refresh import Refresh, RefreshRules
from penstock_producers.rollout import Rollout
from penstock_schemas.errors import EnvError, PolicyError
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.service import Endpoint, Health

if TYPE_CHECKING:
    import threading

    from penstock_producers.envs import Envs
    from penstock_producers.fragment import ClosedFragment
    from penstock_producers.policy.fetcher import Weights
    from penstock_producers.settings import ProducerSettings
    from penstock_schemas.log import Log

_LOG = logging.getLogger(__name__)


def serve(settings: ProducerSettings, stop: threading.Event) -> None:
    """Run a producer until `stop`."""
    use_one_thread()
    health = Health("log", "env", "policy", clock=time.monotonic, beat_limit=settings.liveness_seconds)
    registry = CollectorRegistry()
    metrics = ProducerMetrics(registry, health)
    weights = WeightsStore(settings.store, settings.max_policy_bytes) if settings.store else None
    log = KafkaLog(
        settings.bootstrap_servers,
        client_id=settings.producer_id,
        security=settings.kafka_security(),
        delivery_timeout=settings.delivery_timeout_seconds,
        max_message_bytes=settings.max_message_bytes,
    )
    endpoint = Endpoint(registry, health, settings.metrics_host, settings.metrics_port)
    with ends_unless_made(stop, 0) as made, endpoint, log:
        seeds = Seeds(settings.seed, settings.producer_id)
        env = make_env(settings, seeds, time.monotonic)
        try:
            produce(settings, env, seeds, log, weights, metrics, health, stop, made)
        finally:
            env.close()


def use_one_thread() -> None:
    """Compute in the calling thread only: batches are small, and handing them out costs more than it gains."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def produce(
    settings: ProducerSettings,
    env: Envs,
    seeds: Seeds,
    log: Log,
    weights: Weights | None,
    metrics: ProducerMetrics,
    health: Health,
    stop: threading.Event,
    made: threading.Event,
) -> None:
    """Step `env` and publish to `log` until `stop`, then end the incarnation; set `made` once the envs were reset too.

    Policies too large for a message are read from `weights`; without it they are refused.

    While the log does not answer it waits, also at its start, and says why.

    Raises `EnvError` where the env breaks, and `PolicyError` where the policy can choose nothing: what had been
    recorded before is published, and the open episodes are aborted with the error.
    """
    callbacks = make_callbacks(settings.callbacks)
    spec, policy = make_described(settings, env, seeds.actions(), callbacks.metrics)
    refresh = Refresh(
        policy,
        RefreshRules(settings.first_policy, settings.max_policy_lag, settings.on_policy_lag),
        weights=weights,
        observer=metrics,
        health=health,
        stop=stop,
        clock=time.monotonic,
        wall=time.time,
    )
    metrics.lag_is(lambda: refresh.lag)
    runner = attach(callbacks, env)
    limits = PublishLimits(settings.max_message_bytes, settings.max_in_flight_bytes)
    rollout = Rollout(
        env,
        policy,
        spec,
        fragment_steps=settings.fragment_steps,
        fragment_seconds=settings.fragment_seconds,
        message_bytes=message_room(spec, settings.max_message_bytes),
        cut_steps=settings.cut_steps,
        clock=time.monotonic,
        beat=health.beat,
        observer=runner,
        interrupt=refresh.due,
    )
    made.set()
    health.ready("env")
    patience = Patience(settings.grace_seconds, health, stop)

    def begin(opened: ExitStack) -> Publisher:
        log.create(settings.rollouts_topic, partitions=settings.partitions)
        log.create(settings.policies_topic, compacted=True)
        opened.enter_context(refresh.watch(log, settings.policies_topic))
        publisher = Publisher(
            log,
            settings.rollouts_topic,
            spec,
            settings.producer_id,
            limits=limits,
            encoding=None if settings.compression == "none" else settings.compression,
            observer=metrics,
            while_waiting=patience,
            clock=time.monotonic,
        )
        return opened.enter_context(publisher)

    def publish(fragment: ClosedFragment) -> None:
        metrics.acted(fragment, env)
        metrics.left_out(env.unstorable)
        publisher.publish(fragment.batches)
        if runner is not None:
            metrics.measured(runner.take())
            runner.closed(fragment)

    owner = {"producer": settings.producer_id, "stream": settings.stream}
    with kept(settings.state, owner, metrics), ExitStack() as opened:
        begun = once_the_log_answers(begin, opened, metrics.waiting, health, stop)
        if begun is None:
            return
        publisher = begun
        metrics.began(publisher.incarnation)
        _LOG.info("incarnation %d of %s began", publisher.incarnation, settings.producer_id)
        reason = "shutdown"
        try:
            while not stop.is_set():
                refresh.renew()
                if not stop.is_set():
                    publish(rollout.fragment())
        except BaseException as error:
            reason = end_reason(error)
            if isinstance(error, EnvError | PolicyError):
                publish(rollout.close())
            raise
        finally:
            publisher.end(reason)
            publisher.flush()
