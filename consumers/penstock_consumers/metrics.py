"""The metrics of a consumer, each declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock_schemas.chunks import fixed
from penstock_schemas.service import SECONDS, EpisodeStatistics, build_info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.partition import Committed
    from penstock_consumers.store.commits import Commit, Live

_PREFIX = "penstock_consumer"
_UNITS = {
    "rows": "Chunk rows by what became of them.",
    "steps": "Steps by what became of them.",
    "episodes": "Episodes stored: ended of themselves or cut, or aborted.",
}
_OUTCOMES = ("ended", "aborted", "duplicate", "orphan", "superseded")
_MOVES = ("assigned", "revoked", "given_up", "lost")
_KINDS = ("begin", "chunks", "end", "tick", "quarantined")


class ConsumerMetrics:
    """What a consumer tells of itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        build_info(registry, "consumer")
        self._statistics = EpisodeStatistics(registry, _PREFIX)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", meaning, labels, registry=registry)

        messages = counter("messages", "Messages judged, by their kind; quarantined is one.", "kind")
        dropped = counter("messages_dropped", "Valid messages of chunks that were not new, by why.", "reason")
        # By the name under which a partition counts it.
        self._counters = {
            "gaps": counter("gaps", "Jumps in a producer's sequence: messages that never reached the log."),
            "messages_missing": counter("messages_missing", "Messages that never reached the log."),
            "offsets_lost": counter("offsets_lost", "Offsets that the log had deleted before they were read."),
            "rows_read": counter("rows_read", "Chunk rows read; they become one of rows_total, or are open."),
            "steps_read": counter("steps_read", "Steps read; they become one of steps_total, or are open."),
            **{f"messages_{kind}": messages.labels(kind) for kind in _KINDS},
            **{f"messages_{reason}": dropped.labels(reason) for reason in ("duplicate", "superseded")},
        }
        for unit, meaning in _UNITS.items():
            outcomes = counter(unit, meaning, "outcome")
            for outcome in _OUTCOMES[:2] if unit == "episodes" else _OUTCOMES:
                self._counters[f"{unit}_{outcome}"] = outcomes.labels(outcome)
        self._read_bytes = counter("read_bytes", "Bytes of messages read, headers included.")
        self._bytes = Counter(
            f"{_PREFIX}_segment_bytes", "Bytes of segments of whole episodes written.", registry=registry
        )
        self._commit_seconds = Histogram(
            f"{_PREFIX}_commit_seconds", "Time that a commit took.", buckets=SECONDS, registry=registry
        )
        self._fenced = Counter(
            f"{_PREFIX}_commits_fenced",
            "Commits lost to another consumer: this one's work was discarded.",
            registry=registry,
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
        self._segments = Gauge(
            f"{_PREFIX}_live_segments",
            "Segments that the newest commit names, by what they hold: whole episodes, or open ones.",
            ["partition", "kind"],
            registry=registry,
        )
        self._segment_bytes = Gauge(
            f"{_PREFIX}_live_segment_bytes", "Bytes of those segments.", ["partition", "kind"], registry=registry
        )
        moves = counter(
            "partition_moves",
            "Partitions that the group has moved; given_up ones were let go before their commit had come back.",
            "move",
        )
        self._moves = {move: moves.labels(move) for move in _MOVES}
        self._upkeep_seconds = Histogram(
            f"{_PREFIX}_upkeep_seconds", "Time that a partition's upkeep took.", buckets=SECONDS, registry=registry
        )
        self._collected = counter("objects_collected", "Objects deleted that nobody could need any more.")
        self._compacted = counter("segments_compacted", "Segments whose episodes were written into larger ones.")
        self._retired_steps = counter("steps_retired", "Steps that retention has let go.")
        self._newest_version = 0
        self._version = Gauge(
            f"{_PREFIX}_policy_version", "The newest policy version that ended a stored episode.", registry=registry
        )

    def read(self, size: int) -> None:
        """Messages were read."""
        self._read_bytes.inc(size)

    def counted(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        """A partition's counters went from `before` to `now`."""
        for name, counter in self._counters.items():
            counter.inc(now.get(name, 0) - before.get(name, 0))

    def committed(self, committed: Committed, seconds: float) -> None:
        """A commit was made."""
        self._commit_seconds.observe(seconds)
        self._bytes.inc(sum(entry.bytes for entry in committed.commit.segments_added))
        episodes = committed.episodes
        if episodes is None:
            return
        whole = episodes.whole
        if whole.any():
            versions = episodes.policy_version[whole]
            self._newest_version = max(self._newest_version, int(versions.max()))
            self._version.set(self._newest_version)
            self._statistics.observe(versions, fixed(episodes.batch, "return")[whole], episodes.length[whole])

    def fenced(self) -> None:
        """A commit was lost to another consumer."""
        self._fenced.inc()

    def moved(self, move: str, partitions: int) -> None:
        """The group has moved partitions: `assigned`, `revoked`, `given_up` or `lost`."""
        self._moves[move].inc(partitions)

    def kept_up(self, before: Commit | None, after: Commit | None, collected: int, seconds: float) -> None:
        """A partition was kept up: `after` is the commit that this made, or still `before`."""
        self._upkeep_seconds.observe(seconds)
        self._collected.inc(collected)
        if before is None or after is None or after.number == before.number:
            return
        self._retired_steps.inc(after.retired.steps - before.retired.steps)
        if after.segments_added:
            self._compacted.inc(len(after.segments_removed))

    def holding(self, partition: int, live: Live, open_episodes: int) -> None:
        """What a partition has in the store."""
        for kind, segments in (("episodes", live.segments), ("open", live.open)):
            self._segments.labels(str(partition), kind).set(len(segments))
            self._segment_bytes.labels(str(partition), kind).set(sum(entry.bytes for entry in segments))
        self._open.labels(str(partition)).set(open_episodes)

    def lagging(self, partition: int, offsets: int, seconds: float) -> None:
        """How far a partition is behind its end."""
        self._lag.labels(str(partition)).set(offsets)
        self._lag_seconds.labels(str(partition)).set(seconds)

    def released(self, partition: int) -> None:
        """A partition is no longer this consumer's."""
        for gauge in (self._lag, self._lag_seconds, self._open):
            gauge.remove(str(partition))
        for gauge in (self._segments, self._segment_bytes):
            for kind in ("episodes", "open"):
                gauge.remove(str(partition), kind)
