"""The metrics of a producer, each declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock_schemas.service import MESSAGE_BYTES, SECONDS, EpisodeStatistics, Health, build_info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_producers.fragment import ClosedFragment
    from penstock_schemas.errors import PolicyRejectedError
    from penstock_schemas.messages import Encoded

_PREFIX = "penstock_producer"


class ProducerMetrics:
    """What a producer tells of itself; it also watches the publisher, and tells readiness what it sees there."""

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        build_info(registry, "producer")
        self._health = health
        self._statistics = EpisodeStatistics(registry, _PREFIX)
        self._steps = Counter(f"{_PREFIX}_steps", "Environment steps recorded.", registry=registry)
        self._episodes = Counter(f"{_PREFIX}_episodes", "Episodes that ended of themselves.", registry=registry)
        self._aborts = Counter(
            f"{_PREFIX}_aborted_episodes",
            "Episodes that a fault of their env ended, by its kind.",
            ["kind"],
            registry=registry,
        )
        self._left_out = Counter(
            f"{_PREFIX}_infos_left_out",
            "Values of infos that their column cannot hold, by key.",
            ["key"],
            registry=registry,
        )
        self._left_out_before: dict[str, int] = {}
        self._fragments = Counter(f"{_PREFIX}_fragments", "Fragments closed.", registry=registry)
        self._messages = Counter(f"{_PREFIX}_messages", "Messages acknowledged by the log.", registry=registry)
        self._bytes = Counter(
            f"{_PREFIX}_published_bytes", "Bytes acknowledged by the log, headers included.", registry=registry
        )
        self._message_bytes = Histogram(
            f"{_PREFIX}_message_bytes", "Sizes of messages.", buckets=MESSAGE_BYTES, registry=registry
        )
        self._latency = Histogram(
            f"{_PREFIX}_publish_latency_seconds",
            "Time from the first sending of a message to its acknowledgement.",
            buckets=SECONDS,
            registry=registry,
        )
        self._in_flight = Gauge(
            f"{_PREFIX}_in_flight_bytes", "Bytes that wait for an acknowledgement.", registry=registry
        )
        self._waiting = Gauge(
            f"{_PREFIX}_log_unavailable", "1 while the log does not take messages, else 0.", registry=registry
        )
        self._version = Gauge(f"{_PREFIX}_policy_version", "The policy version that acts.", registry=registry)
        self._loaded = Gauge(
            f"{_PREFIX}_policy_loaded_timestamp_seconds",
            "When the policy that acts was loaded or, before the first load, made.",
            registry=registry,
        )
        self._rejected = Counter(
            f"{_PREFIX}_policies_rejected", "Policy versions not loaded, by reason.", ["reason"], registry=registry
        )
        self._incarnation = Gauge(
            f"{_PREFIX}_incarnation", "The offset of this start's begin record.", registry=registry
        )

    def began(self, incarnation: int) -> None:
        """The begin record is in the log."""
        self._incarnation.set(incarnation)

    def acted(self, fragment: ClosedFragment) -> None:
        """A fragment was closed."""
        if fragment.steps:
            self._health.ready("env")
        elif fragment.aborts:
            self._health.unready("env", f"no env gave a step, and env {fragment.aborts[-1]}")
        self._fragments.inc()
        self._steps.inc(fragment.steps)
        for abort in fragment.aborts:
            self._aborts.labels(abort.kind).inc()
        if len(fragment.episode_return):
            self._episodes.inc(len(fragment.episode_return))
            self._statistics.observe(fragment.episode_version, fragment.episode_return, fragment.episode_length)

    def left_out(self, infos: Mapping[str, int]) -> None:
        """So many values of infos were left out since the start, by key."""
        for key, count in infos.items():
            self._left_out.labels(key).inc(count - self._left_out_before.get(key, 0))
            self._left_out_before[key] = count

    def loaded(self, version: int, now: float) -> None:
        """A policy version acts, from the time `now` in seconds since the epoch."""
        self._version.set(version)
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
