"""The reference judge: docs/exactly-once.md's verdicts in plain Python, one row at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.chaos.audit.decoding import ABORTED, BrokenRuleError, Decoder, PlainMessage, Row
from tests.chaos.audit.values import Items, content_hash, joined

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from tests.chaos.audit.records import LogRecord


class Name(NamedTuple):
    """What names an episode."""

    producer: str
    incarnation: int
    env: int
    episode: int

    def __str__(self) -> str:
        return "/".join(map(str, self))


@dataclass(frozen=True, slots=True)
class Limits:
    """By what a record is judged."""

    idle_limit_ms: int
    max_message_bytes: int = 1 << 20
    max_raw_bytes: int = 64 << 20
    max_episode_bytes: int = 1 << 30

    def decoding(self) -> dict[str, int]:
        return {"max_bytes": self.max_message_bytes, "max_raw_bytes": self.max_raw_bytes}


@dataclass(frozen=True, slots=True)
class Episode:
    """A whole episode: its plain columns, and the hash of each that has an item a step or a chunk."""

    facts: dict[str, Any]
    hashes: dict[str, bytes]

    @property
    def name(self) -> Name:
        return Name(*(self.facts[part] for part in Name._fields))


@dataclass(slots=True)
class OpenEpisode:
    """The rows of an episode that goes on, each with its record."""

    rows: list[tuple[LogRecord, Row]] = field(default_factory=list)
    bytes: int = 0

    @property
    def follows(self) -> tuple[int, int, int]:
        """The episode, chunk and step with which it goes on."""
        last = self.rows[-1][1]
        return last.facts["episode"], last.facts["chunk"] + 1, last.facts["first_step"] + last.steps


@dataclass(slots=True)
class Known:
    """What is known of a producer; `newest` and `open` are by env."""

    name: str
    incarnation: int
    seen_ms: int
    start: str
    sequence: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    open: dict[int, OpenEpisode] = field(default_factory=dict)


class ReferenceJudge:
    """Reads one partition's records in offset order.

    The items of the episodes that `kept` names stay in `items`, for whoever wants to see where they differ.
    """

    def __init__(self, decoder: Decoder, kept: Container[Name] = ()) -> None:
        self._decoder = decoder
        self._kept = kept
        self.producers: dict[str, Known] = {}
        self.episodes: list[Episode] = []
        self.items: dict[Name, dict[str, Items]] = {}
        self.counters: Counter[str] = Counter()
        self.valid: set[int] = set()
        self.quarantined: dict[int, str] = {}
        self.clock_ms = 0
        self._last_ms: int | None = None

    def lose(self, offsets: int) -> None:
        """Pass over offsets that the log had deleted before anyone judged them."""
        self.counters["offsets_lost"] += offsets

    def read(self, record: LogRecord, limits: Limits) -> None:
        """Judge the next record."""
        if self._last_ms is not None:
            self.clock_ms += min(max(record.timestamp_ms - self._last_ms, 0), limits.idle_limit_ms // 4)
        self._last_ms = record.timestamp_ms
        self.counters["messages_read"] += 1
        try:
            message = self._decoder.decode(record, **limits.decoding())
            if message.kind == "chunks":
                self._refuse_contradictions(message)
        except BrokenRuleError as broken:
            self.counters["messages_quarantined"] += 1
            self.quarantined[record.offset] = str(broken)
        else:
            self.valid.add(record.offset)
            self.counters["messages_valid"] += 1
            self.counters[f"messages_{message.kind}"] += 1
            match message.kind:
                case "begin":
                    self._begin(record, message)
                case "end":
                    self._end(record, message)
                case "chunks":
                    self._chunks(record, message, limits.max_episode_bytes)
        for known in self.producers.values():
            if self.clock_ms - known.seen_ms >= limits.idle_limit_ms:
                self._abort(known, "idle", record)

    def open_rows(self) -> dict[Name, list[tuple[LogRecord, Row]]]:
        """The rows of every open episode."""
        return {
            Name(known.name, known.incarnation, env, episode.follows[0]): episode.rows
            for known in self.producers.values()
            for env, episode in known.open.items()
        }

    def _refuse_contradictions(self, message: PlainMessage) -> None:
        """A message that is not late may neither use a number again nor go on elsewhere than its episode stands."""
        known = self.producers.get(message.producer)
        if known is None or known.incarnation != message.incarnation or message.sequence < known.sequence:
            return
        seen: set[int] = set()
        for row in message.rows:
            env, facts = row.facts["env"], row.facts
            if env in seen:
                continue
            seen.add(env)
            if facts["chunk"] == 0 and facts["episode"] <= known.newest.get(env, -1):
                raise BrokenRuleError("an episode number that was used")
            goes_on = (facts["episode"], facts["chunk"], facts["first_step"])
            if message.sequence == known.sequence and env in known.open and known.open[env].follows != goes_on:
                raise BrokenRuleError("rows that do not follow what is open")

    def _begin(self, record: LogRecord, message: PlainMessage) -> None:
        known = self.producers.get(message.producer)
        if known is not None and known.start == message.start:
            self.counters["begins_repeated"] += 1
        else:
            self._restart(record, message.producer, message.incarnation, message.start)

    def _restart(self, record: LogRecord, name: str, incarnation: int, start: str) -> Known:
        if name in self.producers:
            self._abort(self.producers[name], "restarted", record)
        self.producers[name] = Known(name, incarnation, self.clock_ms, start)
        return self.producers[name]

    def _newest(self, record: LogRecord, message: PlainMessage) -> Known:
        """An incarnation whose begin record was not read speaks for itself."""
        known = self.producers.get(message.producer)
        if known is None or message.incarnation > known.incarnation:
            return self._restart(record, message.producer, message.incarnation, known.start if known else "")
        return known

    def _end(self, record: LogRecord, message: PlainMessage) -> None:
        if message.producer not in self.producers:
            return
        known = self._newest(record, message)
        if message.incarnation == known.incarnation and message.sequence >= known.sequence:
            self._expect(record, known, message.sequence)
            self._abort(known, message.reason, record)

    def _chunks(self, record: LogRecord, message: PlainMessage, max_episode_bytes: int) -> None:
        self._count("read", *message.rows)
        known = self._newest(record, message)
        if message.incarnation < known.incarnation:
            self.counters["messages_superseded"] += 1
            self._count("superseded", *message.rows)
            return
        known.seen_ms = self.clock_ms
        if message.sequence < known.sequence:
            self.counters["messages_duplicate"] += 1
            self._count("duplicate", *message.rows)
            return
        self._expect(record, known, message.sequence)
        for row in message.rows:
            env = row.facts["env"]
            if row.facts["chunk"] == 0:
                known.newest[env] = row.facts["episode"]
                known.open[env] = OpenEpisode()
            elif env not in known.open:
                self._count("orphan", row)
                continue
            known.open[env].rows.append((record, row))
            known.open[env].bytes += row.bytes
            if row.facts["ends"]:
                self._close(known, env, row.facts["ends"], row.facts["abort_reason"], record)
        for env in dict.fromkeys(row.facts["env"] for row in message.rows):
            if env in known.open and known.open[env].bytes > max_episode_bytes:
                self._close(known, env, ABORTED, "too large", record)

    def _expect(self, record: LogRecord, known: Known, sequence: int) -> None:
        if sequence > known.sequence:
            self.counters["gaps"] += 1
            self.counters["messages_missing"] += sequence - known.sequence
            self._abort(known, "gap", record)
        known.sequence = sequence + 1

    def _abort(self, known: Known, reason: str, record: LogRecord) -> None:
        for env in list(known.open):
            self._close(known, env, ABORTED, reason, record)

    def _close(self, known: Known, env: int, ends: int, reason: str | None, record: LogRecord) -> None:
        came = known.open.pop(env).rows
        rows = [row for _, row in came]
        first = rows[0].facts
        outcome = "aborted" if ends == ABORTED else "ended"
        self.counters[f"episodes_{outcome}"] += 1
        self._count(outcome, *rows)
        items = {name: joined(name, [row.items[name] for row in rows]) for name in rows[0].items}
        items |= {name: joined(name, [row.states[name] for row in rows]) for name in rows[0].states}
        facts = {
            "producer": known.name,
            "incarnation": known.incarnation,
            **{name: first[name] for name in ("env", "episode", "seed", "reset_options", "continues")},
            "length": sum(row.steps for row in rows),
            "return": sum(float(reward) for row in rows for reward in np.ravel(row.items["reward"]).tolist()),
            "ends": ends,
            "abort_reason": reason,
            "opened_offset": came[0][0].offset,
            "closed_offset": record.offset,
            "closed_ms": record.timestamp_ms,
            "chunk_first_step": [row.facts["first_step"] for row in rows],
            **{name: [row.facts[name] for row in rows] for name in ("policy_version", "policy_digest", "exploration")},
            **{name: value for name, value in rows[-1].facts.items() if name.startswith("metric.")},
        }
        episode = Episode(facts, {name: content_hash(held) for name, held in items.items()})
        self.episodes.append(episode)
        if episode.name in self._kept:
            self.items[episode.name] = items

    def _count(self, outcome: str, *rows: Row) -> None:
        self.counters[f"rows_{outcome}"] += len(rows)
        self.counters[f"steps_{outcome}"] += sum(row.steps for row in rows)


def limits_in(read: Mapping[str, int]) -> Limits:
    """The limits that a commit names."""
    return Limits(**read)
