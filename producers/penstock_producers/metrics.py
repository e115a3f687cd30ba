"""The metrics of a producer, each declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram

from penstock_producers.measured import MeasuredStatistics
from penstock_schemas.chunks import Exploration
from penstock_schemas.service import MESSAGE_BYTES, SECONDS, EpisodeStatistics, Health, build_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock_producers.envs import Envs
    from penstock_producers.fragment import ClosedFragment
    from penstock_schemas.errors import PolicyRejectedError
    from penstock_schemas.messages import Encoded

_PREFIX = "penstock_producer"


class _Totals:
    """A counter of what others have counted since the start, by its label."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._before: dict[str, int] = {}

    def are(self, totals: Mapping[str, int]) -> bool:
        """Count what has come to the totals; whether anything has."""
        come = {label: total - self._before.get(label, 0) for label, total in totals.items()}
        for label, number in come.items():
            self._counter.labels(label).inc(number)
        self._before = dict(totals)
        return any(come.values())


class ProducerMetrics:
    """What a producer tells of itself; it also watches the publisher, and tells readiness what it sees there."""

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        build_info(registry, "producer")
        self._health = health
        self._statistics = EpisodeStatistics(registry, _PREFIX)
        self._measured = MeasuredStatistics(registry, _PREFIX)
        self._counters: dict[str, Counter] = {}

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return self._counters.setdefault(name, Counter(f"{_PREFIX}_{name}", meaning, labels, registry=registry))

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", meaning, registry=registry)

        self._starts = counter("starts", "Begin records in the log.")
        self._incarnation = gauge("incarnation", "The offset of this start's begin record.")
        self._steps = counter("steps", "Environment steps recorded.")
        self._episodes = counter("episodes", "Episodes that ended of themselves.")
        self._aborts = counter("aborted_episodes", "Episodes that a fault of their env ended, by its kind.", "kind")
        self._faults = _Totals(counter("env_faults", "Faults of environments, also between episodes, by kind.", "kind"))
        self._left_out = _Totals(
            counter("infos_left_out", "Values of infos that their column cannot hold, by key.", "key")
        )
        self._fragments = counter("fragments", "Fragments closed.")
        self._messages = counter("messages", "Messages acknowledged by the log.")
        self._bytes = counter("published_bytes", "Bytes acknowledged by the log, headers included.")
        self._message_bytes = Histogram(
            f"{_PREFIX}_message_bytes", "Sizes of messages.", buckets=MESSAGE_BYTES, registry=registry
        )
        self._latency = Histogram(
            f"{_PREFIX}_publish_latency_seconds",
            "Time from the first sending of a message to its acknowledgement.",
            buckets=SECONDS,
            registry=registry,
        )
        self._in_flight = gauge("in_flight_bytes", "Bytes that wait for an acknowledgement.")
        self._waiting = gauge("log_unavailable", "1 while the log does not take messages, else 0.")
        self._version = gauge("policy_version", "The policy version that acts.")
        self._loaded = gauge(
            "policy_loaded_timestamp_seconds", "When the policy that acts was loaded or, before the first load, made."
        )
        self._lag = gauge(
            "policy_lag_versions",
            "How far the version that acts is behind the newest that was announced and not refused.",
        )
        self._waited = counter(
            "policy_wait_seconds",
            "Time that the environments stood still for want of a policy version, by reason.",
            "reason",
        )
        self._exploration = Enum(
            f"{_PREFIX}_exploration",
            "How actions are chosen now.",
            states=[exploration.name.lower() for exploration in Exploration],
            registry=registry,
        )
        self._rejected = counter("policies_rejected", "Policy versions not loaded, by reason.", "reason")

    def counts(self) -> list[Any]:
        """What the counters show, as JSON: a name, labels and a number each."""
        return [
            [name, sample.labels, sample.value]
            for name, counter in self._counters.items()
            for family in counter.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        ]

    def resume(self, counts: list[Any]) -> None:
        """Go on from what `counts` answered; a counter that is no more is left out.

        Raises `TypeError` or `ValueError` where it did not answer that.
        """
        for name, labels, count in counts:
            counter = self._counters.get(name)
            if counter is not None:
                (counter.labels(**labels) if labels else counter).inc(count)

    def lag_is(self, lag: Callable[[], int]) -> None:
        """Name who tells how many versions the policy lags behind, whenever it is asked."""
        self._lag.set_function(lag)

    def waited(self, reason: str, seconds: float) -> None:
        """The environments stood still for want of a policy version."""
        self._waited.labels(reason).inc(seconds)

    def measured(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Callbacks measured episodes: by name an item an episode."""
        self._measured.observe(values)

    def began(self, incarnation: int) -> None:
        """The begin record is in the log."""
        self._starts.inc()
        self._incarnation.set(incarnation)

    def acted(self, fragment: ClosedFragment, envs: Envs) -> None:
        """A fragment of these envs was closed."""
        failed = self._faults.are(envs.faults)
        if fragment.steps:
            self._health.ready("env")
        elif failed:
            env, reason = list(envs.last_fault.items())[-1]
            self._health.unready("env", f"no env gave a step, and env {env}: {reason}")
        self._fragments.inc()
        self._steps.inc(fragment.steps)
        for abort in fragment.aborts:
            self._aborts.labels(abort.kind).inc()
        if len(fragment.episode_return):
            self._episodes.inc(len(fragment.episode_return))
            self._statistics.observe(fragment.episode_version, fragment.episode_return, fragment.episode_length)

    def left_out(self, infos: Mapping[str, int]) -> None:
        """So many values of infos were left out since the start, by key."""
        self._left_out.are(infos)

    def loaded(self, version: int, exploration: Exploration, now: float) -> None:
        """A policy version acts, and how it explores, from the time `now` in seconds since the epoch."""
        self._version.set(version)
        self._exploration.state(exploration.name.lower())
        self._loaded.set(now)

    def rejected(self, error: PolicyRejectedError) -> None:
        """A policy version was not loaded."""
        self._rejected.labels(error.reason).inc()

    def published(self, encoded: Encoded, seconds: float) -> None:
        """The log has acknowledged a message."""
        self._messages.inc()
        self._bytes.inc(encoded.size)
        self._message_bytes.observe(encoded.size)
        self._latency.observe(seconds)

    def waiting(self, reason: str | None) -> None:
        """The log does not take messages, and why; None once it does again."""
        self._waiting.set(reason is not None)
        if reason is None:
            self._health.ready("log")
        else:
            self._health.unready("log", reason)

    def in_flight(self, size: int) -> None:
        """Bytes wait for an acknowledgement."""
        self._in_flight.set(size)
