"""Evaluating from the command line: one version, or each as it comes."""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry

from penstock_producers.evaluate.metrics import EvaluationMetrics
from penstock_producers.evaluate.run import Evaluator, StoppedError
from penstock_producers.making import containment, env_source
from penstock_producers.patience import Patience, ends_unless_made, once_the_log_answers
from penstock_producers.policy import PolicyWatcher
from penstock_producers.policy.weights_store import WeightsStore
from penstock_producers.publisher import Publisher, PublishLimits, end_reason, message_room
from penstock_producers.service import use_one_thread
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.service import Endpoint, Health, build_info

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from penstock_producers.evaluate.report import Evaluation
    from penstock_producers.evaluate.run import Sink
    from penstock_producers.evaluate.settings import EvaluationSettings
    from penstock_producers.policy import Policy
    from penstock_producers.policy.fetcher import Weights
    from penstock_schemas.errors import PolicyRejectedError
    from penstock_schemas.log import Log
    from penstock_schemas.messages import Encoded
    from penstock_schemas.stream import StreamSpec

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
# What readiness has: that there are news of versions, that one acts, and that the log takes what is published.
NEWS, POLICY, PUBLISHING = "news", "policy", "publishing"

_T = TypeVar("_T")


def serve(settings: EvaluationSettings, stop: threading.Event, write: Callable[[str], object]) -> bool:
    """Evaluate what the settings name, and write what comes of it; whether every seed was played to an end.

    With `watch` it goes on until `stop`, and serves metrics and health meanwhile.
    """
    use_one_thread()
    health = Health(NEWS, POLICY, PUBLISHING, clock=time.monotonic, beat_limit=settings.liveness_seconds)
    registry = CollectorRegistry()
    build_info(registry, "evaluation")
    metrics = EvaluationMetrics(registry)
    with ends_unless_made(stop, int(not settings.watch)) as made, ExitStack() as opened:
        if settings.watch:
            opened.enter_context(Endpoint(registry, health, settings.metrics_host, settings.metrics_port))
        log = None if settings.weights and not settings.publish else opened.enter_context(_kafka(settings))
        store = WeightsStore(settings.store, settings.max_policy_bytes) if settings.store else None
        return evaluate_versions(settings, log, store, metrics, health, stop, made, write)


def evaluate_versions(
    settings: EvaluationSettings,
    log: Log | None,
    store: Weights | None,
    metrics: EvaluationMetrics,
    health: Health,
    stop: threading.Event,
    made: threading.Event,
    write: Callable[[str], object],
) -> bool:
    """Evaluate one version after the other; see `serve`. The log may be None where neither end of it is needed.

    `made` is set once an env and the policy were made: until then `stop` is not heeded.

    While the log does not answer, publishing waits, and so does what watches, also at its start.
    """
    evaluator = _evaluator(settings)
    spec, policy = evaluator.describe(
        settings.publish or settings.stream,
        settings.policy,
        arguments=settings.policy_arguments,
        behaviour=settings.behaviour,
        connectors=settings.connectors,
        device=settings.device,
    )
    made.set()

    def beat() -> None:
        health.beat()
        if stop.is_set():
            raise StoppedError

    all_played = True
    sink = _published(settings, spec, log, health, stop, beat)
    room = message_room(spec, settings.max_message_bytes)
    try:
        for _ in _loaded(settings, policy, log, store, health, stop, beat):
            evaluation = evaluator.run(policy, spec=spec, sink=sink, message_bytes=room, beat=beat)
            metrics.evaluated(evaluation, time.time())
            write(_told(settings, evaluation))
            all_played = not evaluation.count(Ends.ABORTED)
    except StoppedError:
        _LOG.info("stopped; an evaluation that was not finished is not told")
        return settings.watch
    return all_played or settings.watch


def _evaluator(settings: EvaluationSettings) -> Evaluator:
    return Evaluator(
        env_source(settings),
        settings.seed_list,
        num_envs=settings.num_envs,
        workers=settings.workers,
        infos=settings.infos,
        containment=containment(settings),
        max_steps=settings.max_steps,
        attempts=settings.attempts,
        batch=settings.batch,
    )


def _loaded(
    settings: EvaluationSettings,
    policy: Policy,
    log: Log | None,
    store: Weights | None,
    health: Health,
    stop: threading.Event,
    beat: Callable[[], None],
) -> Iterator[None]:
    """Load the version of a file, or the newest of a topic, or each newer one that comes to be there."""
    if settings.weights is not None or log is None:
        policy.load(_read(settings))
        yield
        return
    topic = settings.policies_topic
    readiness = _Readiness(health, NEWS)
    health.unready(POLICY, f"topic {topic!r} has held no version that can act: publish one")

    def reject(error: PolicyRejectedError) -> None:
        _LOG.warning("not evaluated: %s", error)

    def begin(opened: ExitStack) -> PolicyWatcher:
        if settings.watch:
            log.create(topic, compacted=True)
        watcher = PolicyWatcher(
            log, topic, check=policy.check, rejected=reject, weights=store, waiting=readiness.waiting
        )
        return opened.enter_context(watcher)

    with ExitStack() as opened:
        watcher = _begun(begin, opened, readiness, health, stop) if settings.watch else begin(opened)
        while True:
            if watcher.load(policy.load):
                health.ready(POLICY)
                yield
                if not settings.watch:
                    return
            elif not (settings.watch or watcher.announced):
                raise SettingsError(
                    f"--stream {settings.stream}: topic {topic!r} holds no version that can act, see the log for those "
                    "that were refused: publish one, or wait for it with --watch"
                )
            watcher.wait(_LOOK_SECONDS)
            beat()


def _read(settings: EvaluationSettings) -> PolicyRecord:
    path = settings.weights
    if path is None:
        raise TypeError("without a log the weights are in a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"--weights {path}: cannot be read: {error.strerror or error}") from error
    return PolicyRecord.from_safetensors(data, f"--weights {path}")


def _published(
    settings: EvaluationSettings,
    spec: StreamSpec,
    log: Log | None,
    health: Health,
    stop: threading.Event,
    beat: Callable[[], None],
) -> Callable[[], AbstractContextManager[Sink]]:
    """Make what opens an incarnation of the stream that is published to; what does nothing where none is."""
    if settings.publish is None or log is None:
        health.ready(PUBLISHING)
        return lambda: nullcontext(lambda _: None)
    topic = f"rollouts.{settings.publish}"
    patience = Patience(settings.grace_seconds, health, stop)
    readiness = _Readiness(health, PUBLISHING)

    def begin(opened: ExitStack) -> Publisher:
        log.create(topic, partitions=settings.partitions)
        publisher = Publisher(
            log,
            topic,
            spec,
            settings.producer_id,
            limits=PublishLimits(settings.max_message_bytes, settings.max_in_flight_bytes),
            encoding=None if settings.compression == "none" else settings.compression,
            observer=readiness,
            # Until it has begun there is nothing that would be lost.
            while_waiting=lambda: patience() if publisher.incarnation >= 0 else beat(),
            clock=time.monotonic,
        )
        return opened.enter_context(publisher)

    @contextmanager
    def sink() -> Iterator[Sink]:
        with ExitStack() as opened:
            publisher = _begun(begin, opened, readiness, health, stop)
            reason = "shutdown"
            try:
                yield lambda fragment: publisher.publish(fragment.batches)
            except StoppedError:
                raise
            except BaseException as error:
                reason = end_reason(error)
                raise
            finally:
                publisher.end(reason)
                publisher.flush()

    return sink


def _begun(
    begin: Callable[[ExitStack], _T], opened: ExitStack, readiness: _Readiness, health: Health, stop: threading.Event
) -> _T:
    """Begin once the log answers."""
    begun = once_the_log_answers(begin, opened, readiness.waiting, health, stop)
    if begun is None:
        raise StoppedError
    return begun


class _Readiness:
    """Tells one condition of readiness whether the log answers, each end of it its own."""

    def __init__(self, health: Health, condition: str) -> None:
        self._health = health
        self._condition = condition

    def published(self, encoded: Encoded, seconds: float) -> None:
        """Nothing that is counted here."""

    def waiting(self, reason: str | None) -> None:
        """The log does not answer, and why; None once it does again."""
        if reason is None:
            self._health.ready(self._condition)
        else:
            self._health.unready(self._condition, reason)

    def in_flight(self, size: int) -> None:
        """Nothing that is counted here."""


def _told(settings: EvaluationSettings, evaluation: Evaluation) -> str:
    if settings.output == "table":
        return evaluation.table() + "\n"
    return json.dumps(evaluation.to_json(), indent=None if settings.watch else 2) + "\n"


def _kafka(settings: EvaluationSettings) -> KafkaLog:
    return KafkaLog(
        settings.bootstrap_servers,
        client_id=settings.producer_id,
        security=settings.kafka_security(),
        delivery_timeout=settings.delivery_timeout_seconds,
        max_message_bytes=settings.max_message_bytes,
    )
