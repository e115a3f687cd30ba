"""A consumer's life: open the store, join the group, read and commit until it is told to stop."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from penstock_consumers.heap import Trimmer
from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.upkeep import Retention, Upkeep, UpkeepSettings
from penstock_consumers.worker import Cadence, Worker
from penstock_schemas.errors import (
    FatalError,
    LogUnavailableError,
    PenstockError,
    RecoverableError,
    StoreError,
    StoreUnavailableError,
    TopicError,
)
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.service import Endpoint, Health

if TYPE_CHECKING:
    import threading

    from penstock_consumers.settings import ConsumerSettings
    from penstock_schemas.log import Log, TopicInfo

_LOG = logging.getLogger(__name__)
_BEAT_LIMIT_SECONDS = 120.0
_AGAIN_SECONDS = 1.0


def serve(settings: ConsumerSettings, stop: threading.Event) -> None:
    """Run a consumer until `stop`."""
    health = Health("log", "store", clock=time.monotonic, beat_limit=_BEAT_LIMIT_SECONDS)
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(registry)
    log = KafkaLog(
        settings.bootstrap_servers,
        client_id="penstock-consumer",
        security=settings.kafka_security(),
        session_timeout=settings.session_seconds,
    )
    with Endpoint(registry, health, settings.metrics_host, settings.metrics_port), log:
        consume(settings, log, metrics, health, stop)


def consume(
    settings: ConsumerSettings, log: Log, metrics: ConsumerMetrics, health: Health, stop: threading.Event
) -> None:
    """Read the stream's topic into the store until `stop`."""
    bucket = open_bucket(settings.store)
    while not stop.is_set():
        try:
            topic = _topic(settings, log, health, stop)
            if topic is None:
                return
            store = ReplayStore(bucket, settings.stream, topic)
            health.ready("store")
            _work(settings, log, store, metrics, health, stop)
        except FatalError as error:
            # Told until the process is gone, which its endpoint may outlive by a probe.
            health.unready(_part(error), str(error))
            raise
        except RecoverableError as error:
            _LOG.warning("leaving the group, and joining it anew: %s", error)
            health.unready(_part(error), str(error))
            health.beat()
            stop.wait(_AGAIN_SECONDS)


def _part(error: PenstockError) -> str:
    """Which part of a consumer is not ready for an error."""
    return "store" if isinstance(error, StoreError | StoreUnavailableError) else "log"


def _work(
    settings: ConsumerSettings,
    log: Log,
    store: ReplayStore,
    metrics: ConsumerMetrics,
    health: Health,
    stop: threading.Event,
) -> None:
    """Be a member of the group until `stop`, or until something goes wrong."""
    log.create(settings.dead_letter_topic)
    worker = Worker(
        log,
        store,
        settings.dead_letter_topic,
        group=f"{settings.group}.{settings.stream}",
        limits=Limits(
            idle_limit_ms=int(settings.idle_seconds * 1000),
            max_message_bytes=settings.max_message_bytes,
            max_raw_bytes=settings.max_raw_bytes,
            max_episode_bytes=settings.max_episode_bytes,
        ),
        cadence=Cadence(
            commit_seconds=settings.commit_seconds,
            commit_bytes=settings.commit_bytes,
            upkeep_seconds=settings.upkeep_seconds,
            revoke_seconds=settings.revoke_seconds,
        ),
        metrics=metrics,
        clock=time.monotonic,
        wall=time.time,
        instance=settings.instance,
        max_bad_share=settings.max_bad_share,
        upkeep=_upkeep(settings, store),
        beat=health.beat,
        stopping=stop.is_set,
    )
    trimmer = Trimmer(time.monotonic)
    try:
        while not stop.is_set():
            worker.run_once()
            trimmer.run_once()
            health.beat()
            health.ready("log")
    except BaseException:
        worker.abandon()
        raise
    worker.close()
    _LOG.info("left the group")


def _upkeep(settings: ConsumerSettings, store: ReplayStore) -> Upkeep:
    retention = Retention(
        steps=settings.retain_steps,
        bytes=settings.retain_bytes,
        seconds=settings.retain_seconds,
        versions=settings.retain_versions,
    )
    return Upkeep(store.bucket, UpkeepSettings(settings.compact_bytes, settings.collect_seconds, retention))


def _topic(settings: ConsumerSettings, log: Log, health: Health, stop: threading.Event) -> TopicInfo | None:
    """Wait for the stream's topic, which its first producer makes; None where `stop` came first."""
    while True:
        try:
            topic = log.describe(settings.rollouts_topic)
        except (TopicError, LogUnavailableError) as error:
            _LOG.warning("waiting for the stream's topic: %s", error)
            health.unready("log", str(error))
            health.beat()
            if stop.wait(_AGAIN_SECONDS):
                return None
            continue
        if not topic.log_append_time:
            raise TopicError(
                f"topic {topic.name!r}: its timestamps are its writers', and idle episodes end by the broker's: "
                "set message.timestamp.type=LogAppendTime"
            )
        return topic
