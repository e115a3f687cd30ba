"""The metrics of a consumer, each declared once."""

from __future__ import annotations

from collections import Counter as Counts
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock_schemas.chunks import fixed
from penstock_schemas.service import SECONDS, EpisodeStatistics, build_info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.partition import Committed

_PREFIX = "penstock_consumer"
_CLASSES = {
    "messages": "Messages by what they were and what became of them; read is valid and quarantined.",
    "rows": "Chunk rows judged, by what became of them; read is their sum, but for those of open episodes.",
    "steps": "Steps judged, by what became of them; read is their sum, but for those of open episodes.",
    "episodes": "Episodes stored: ended of themselves, or aborted.",
}


class ConsumerMetrics:
    """What a consumer tells of itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        build_info(registry, "consumer")
        self._statistics = EpisodeStatistics(registry, _PREFIX)
        self._classes = {
            unit: Counter(f"{_PREFIX}_{unit}", meaning, ["outcome"], registry=registry)
            for unit, meaning in _CLASSES.items()
        }
        self._gaps = Counter(
            f"{_PREFIX}_gaps", "Jumps in a producer's sequence: messages that never reached the log.", registry=registry
        )
        self._lost = Counter(
            f"{_PREFIX}_offsets_lost", "Offsets that the log had deleted before they were read.", registry=registry
        )
        self._bytes = Counter(
            f"{_PREFIX}_segment_bytes", "Bytes of segments of whole episodes written.", registry=registry
        )
        self._commit_seconds = Histogram(
            f"{_PREFIX}_commit_seconds", "Time that a commit took.", buckets=SECONDS, registry=registry
        )
        self._fenced = Counter(
            f"{_PREFIX}_fenced", "Commits lost to another consumer: this one's work was discarded.", registry=registry
        )
        self._lag = Gauge(
            f"{_PREFIX}_lag_offsets",
            "Records between a partition's end and its newest commit.",
            ["partition"],
            registry=registry,
        )
        self._lag_seconds = Gauge(
            f"{_PREFIX}_lag_seconds",
            "Age of the last record judged, 0 where there is none after it.",
            ["partition"],
            registry=registry,
        )
        self._open = Gauge(f"{_PREFIX}_open_episodes", "Open episodes.", ["partition"], registry=registry)
        self._version = Gauge(
            f"{_PREFIX}_policy_version", "The newest policy version that ended a stored episode.", registry=registry
        )

    def counted(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        """A partition's counters went from `before` to `now`."""
        grown = Counts(now)
        grown.subtract(before)
        for name, amount in grown.items():
            unit, _, outcome = name.partition("_")
            if amount <= 0:
                continue
            if name == "gaps":
                self._gaps.inc(amount)
            elif name == "offsets_lost":
                self._lost.inc(amount)
            else:
                self._classes[unit].labels(outcome).inc(amount)

    def committed(self, committed: Committed, seconds: float) -> None:
        """A commit was made."""
        self._commit_seconds.observe(seconds)
        if committed.segment:
            self._bytes.inc(committed.segment.bytes)
        episodes = committed.episodes
        if episodes is None:
            return
        whole = ~episodes.aborted
        if whole.any():
            versions = episodes.policy_version[whole]
            self._version.set(int(versions.max()))
            self._statistics.observe(versions, fixed(episodes.batch, "return")[whole], episodes.length[whole])

    def fenced(self) -> None:
        """A commit was lost to another consumer."""
        self._fenced.inc()

    def lagging(self, partition: int, offsets: int, seconds: float, open_episodes: int) -> None:
        """How far a partition is behind its end."""
        self._lag.labels(str(partition)).set(offsets)
        self._lag_seconds.labels(str(partition)).set(seconds)
        self._open.labels(str(partition)).set(open_episodes)

    def released(self, partition: int) -> None:
        """A partition is no longer this consumer's."""
        for gauge in (self._lag, self._lag_seconds, self._open):
            gauge.remove(str(partition))
