"""One partition recounted: its records judged again, and everything that its commits say held against that."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.chaos.audit import stored as reading
from tests.chaos.audit.decoding import Decoder
from tests.chaos.audit.judging import ReferenceJudge, limits_in
from tests.chaos.audit.report import Audit, Finding
from tests.chaos.audit.values import content_hash, first_difference, same

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tests.chaos.audit.judging import Episode, Known, Name
    from tests.chaos.audit.records import LogRecord
    from tests.chaos.audit.stored import Stored

_CLASSES = ("ended", "aborted", "duplicate", "orphan", "superseded")


class Recount:
    """The audit of one partition."""

    def __init__(
        self,
        partition: int,
        records: Sequence[LogRecord],
        objects: Mapping[str, bytes],
        manifest: Mapping[str, Any],
        limits: Collection[int],
        first: int,
        done: Audit,
    ) -> None:
        self._partition = partition
        self._records = records
        self._objects = objects
        self._manifest = manifest
        self._limits = limits
        self._first = first
        self._done = done

    def audit(self, letters: Mapping[bytes, Sequence[LogRecord]]) -> None:
        stored = reading.follow(self._objects, self._partition, self._tell)
        judge = self._judge(stored, check=True)
        counts = self._done.counts
        counts["commits"] += len(stored.commits)
        counts["records"] += len(self._records)
        for name in ("messages_quarantined", "offsets_lost", "episodes_ended", "episodes_aborted", "gaps"):
            counts[name] += judge.counters[name]
        self._check_unjudged(stored)
        self._check_conservation(stored, judge)
        self._check_episodes(stored, judge)
        self._check_open(stored, judge)
        self._check_letters(judge, letters)

    def _tell(self, kind: str, detail: str) -> None:
        self._done.findings.append(Finding(self._partition, kind, detail))

    def _judge(self, stored: Stored, *, check: bool, kept: Collection[Name] = ()) -> ReferenceJudge:
        """Judge what the commits say that they judged; with `check`, hold each against the judge where it stands."""
        judge = ReferenceJudge(Decoder(bytes.fromhex(self._manifest.get("fingerprint", ""))), kept)
        waiting = iter(self._records)
        record = next(waiting, None)
        at = closed = episodes = 0
        retired = {"episodes": 0, "steps": 0, "keys": 0}
        for commit in stored.commits:
            lost = commit["counters"].get("offsets_lost", 0) - judge.counters["offsets_lost"]
            judge.lose(lost)
            if check and lost and at + lost > self._first:
                self._tell("lost", f"commit {commit['number']} passes over {at} to {at + lost}, which the log holds")
            limits = limits_in(commit["limits"])
            last = None
            while record is not None and record.offset < commit["high_water"]:
                if record.offset >= at + lost:
                    judge.read(record, limits)
                    last = record
                record = next(waiting, None)
            at = commit["high_water"]
            if check:
                self._check_commit(commit, judge, last)
                closed = len(judge.episodes) - episodes
                self._check_balance(commit, stored, closed, retired)
                episodes, retired = len(judge.episodes), commit["retired"]
        return judge

    def _check_commit(self, commit: Mapping[str, Any], judge: ReferenceJudge, last: LogRecord | None) -> None:
        """The counters, the producers and the log's time as they were when this commit was made."""
        where = f"commit {commit['number']}"
        if commit["limits"]["idle_limit_ms"] not in self._limits:
            self._tell("limits", f"{where} was judged by the limit {commit['limits']['idle_limit_ms']} ms, nobody's")
        ids = [commit["topic_id"], commit["cluster_id"]]
        if self._manifest and ids != [self._manifest["topic_id"], self._manifest["cluster_id"]]:
            self._tell("chain", f"{where} is of another topic or cluster than store.json")
        for name in {*judge.counters, *(name for name in commit["counters"] if name in _COUNTED)}:
            counted, told = judge.counters[name], commit["counters"].get(name, 0)
            if counted != told:
                self._tell("counter", f"{where}: {name} is {told}, the log says {counted}")
        if commit["log_clock_ms"] != judge.clock_ms:
            self._tell("state", f"{where}: the log's time is {commit['log_clock_ms']}, the log says {judge.clock_ms}")
        ours = {name: _state(known) for name, known in judge.producers.items()}
        theirs = {name: _told(entry) for name, entry in commit["producers"].items()}
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                self._tell("state", f"{where}: {name} is at {theirs.get(name)}, the log says {ours.get(name)}")
        told = commit["last"]
        if last is not None and [last.offset, last.timestamp_ms, last.digest] != [*_last(told)]:
            self._tell("state", f"{where}: its last record is {told}, the log says {last.offset} and {last.digest}")

    def _check_balance(
        self, commit: Mapping[str, Any], stored: Stored, closed: int, retired: Mapping[str, int]
    ) -> None:
        """What a commit brings is what was closed; what it takes away it brings again or retires."""
        rows = {entry["name"]: entry["rows"] for each in stored.commits for entry in each["segments_added"]}
        added = sum(entry["rows"] for entry in commit["segments_added"])
        removed = sum(rows.get(name, 0) for name in commit["segments_removed"])
        gone = commit["retired"]["episodes"] - retired["episodes"]
        if added - removed + gone != closed:
            told = f"adds {added} episodes, removes {removed}, retires {gone}; {closed} were closed"
            self._tell("balance", f"commit {commit['number']} {told}")

    def _check_unjudged(self, stored: Stored) -> None:
        behind = [record for record in self._records if record.offset >= max(stored.high_water, self._first)]
        waiting = [record.offset for record in behind if ("kind", b"tick") not in record.headers]
        self._done.counts["unjudged"] += len(behind)
        if waiting:
            self._tell("unjudged", f"{len(waiting)} records from offset {waiting[0]} on are in no commit")

    def _check_conservation(self, stored: Stored, judge: ReferenceJudge) -> None:
        count = Counter(stored.commits[-1]["counters"]) if stored.commits else Counter[str]()
        is_open = sum(map(len, judge.open_rows().values()))
        accounted = is_open + sum(count[f"rows_{name}"] for name in _CLASSES)
        if count["rows_read"] != accounted:
            self._tell("conservation", f"{count['rows_read']} chunk rows were read, {accounted} are accounted for")
        told = count["messages_valid"] + count["messages_quarantined"]
        if count["messages_read"] != told:
            self._tell("conservation", f"{count['messages_read']} messages were read, {told} are accounted for")

    def _check_episodes(self, stored: Stored, judge: ReferenceJudge) -> None:
        expected = {episode.name: episode for episode in judge.episodes}
        found: Counter[Name] = Counter()
        wrong: dict[Name, Episode] = {}
        where: dict[Name, str] = {}
        for entry in stored.segments.values():
            segment = reading.load(self._objects, entry, self._tell)
            episodes = [segment.episode(row) for row in range(segment.rows)] if segment else []
            reading.check_entry(entry, episodes, self._tell)
            for episode in episodes:
                found[episode.name] += 1
                ours = expected.get(episode.name)
                self._done.counts["steps_stored"] += episode.facts["length"]
                if ours is not None and not _equal(ours, episode):
                    wrong[episode.name], where[episode.name] = episode, entry["name"]
        self._done.counts["episodes_stored"] += found.total()
        for name, times in found.items():
            if times > 1:
                self._tell("duplicated", f"episode {name} is stored {times} times")
            if name not in expected:
                self._tell("invented", f"episode {name} is stored, and the log knows none of it")
        self._check_missing(stored, [episode for name, episode in expected.items() if name not in found])
        if wrong:
            items = self._judge(stored, check=False, kept=wrong).items
            for name, episode in wrong.items():
                self._compare(expected[name], episode, items[name], stored.segments[where[name]])

    def _check_missing(self, stored: Stored, missing: list[Episode]) -> None:
        """Episodes that are gone are those that retention says it took, and no others."""
        retired = stored.retired
        steps = sum(episode.facts["length"] for episode in missing)
        gone = {"episodes": len(missing), "steps": steps, "keys": reading.key_sum(missing)}
        if gone == retired:
            self._done.counts["episodes_retired"] += len(missing)
        elif retired["episodes"]:
            self._tell("missing", f"what is gone is {gone}, what was retired is {retired}")
        else:
            for episode in missing:
                self._tell("missing", f"episode {episode.name}, {episode.facts['length']} steps, is not stored")

    def _compare(self, ours: Episode, theirs: Episode, expected: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        name = ours.name
        for fact in {*ours.facts, *theirs.facts}:
            told, is_so = theirs.facts.get(fact), ours.facts.get(fact)
            if not same(is_so, told):
                kind = "end" if fact in {"ends", "abort_reason", "closed_offset", "closed_ms"} else "altered"
                self._tell(kind, f"episode {name}: {fact} is {told!r}, the log says {is_so!r}")
        segment = reading.load(self._objects, entry, lambda *_: None)
        row = next((row for row in range(segment.rows) if segment.episode(row).name == name), 0) if segment else 0
        items = segment.items(row) if segment else {}
        for column in {*ours.hashes, *theirs.hashes}:
            if ours.hashes.get(column) == theirs.hashes.get(column):
                continue
            if column not in items or column not in expected:
                self._tell("altered", f"episode {name}: one side has no column {column}")
                continue
            told = first_difference(expected[column], items[column])
            self._tell("order" if "order" in told else "altered", f"episode {name}: {column}: {told}")

    def _check_open(self, stored: Stored, judge: ReferenceJudge) -> None:
        """The rows of open episodes, each once in a living open segment, in every bit."""
        expected = {
            (*name, row.facts["chunk"]): (record, row)
            for name, rows in judge.open_rows().items()
            for record, row in rows
        }
        self._done.counts["open_rows"] += len(expected)
        is_open = {key[:4] for key in expected}
        found: Counter[tuple[Any, ...]] = Counter()
        for entry in stored.open.values():
            segment = reading.load(self._objects, entry, self._tell)
            for at in range(segment.rows if segment else 0):
                facts = segment.facts(at)  # type: ignore[union-attr]  # there are rows only where there is one
                key = tuple(facts[name] for name in ("producer", "incarnation", "env", "episode", "chunk"))
                if key[:4] not in is_open:
                    continue
                found[key] += 1
                if key in expected and not _same_row(*expected[key], facts, segment.items(at)):  # type: ignore[union-attr]  # likewise
                    self._tell("open", f"the open row {key} is not what the log says")
        for key in expected:
            if found[key] != 1:
                self._tell("open", f"the open row {key} is in {found[key]} living open segments")
        for key in found:
            if key not in expected:
                self._tell("open", f"the open row {key} is not in the log")

    def _check_letters(self, judge: ReferenceJudge, letters: Mapping[bytes, Sequence[LogRecord]]) -> None:
        """Each quarantined record is in the dead-letter topic, as it was, with its reason; nothing else is."""
        by_offset = {record.offset: record for record in self._records}
        prefix = f"{self._manifest.get('topic_id', '')}:{self._partition}:"
        for offset, why in judge.quarantined.items():
            # A store of nothing but garbage has no manifest to name its topic.
            own = [held for key, held in letters.items() if key.decode().endswith(f":{self._partition}:{offset}")]
            record = by_offset[offset]
            if not any(_tells(letter, record) for held in own for letter in held):
                self._tell("dead letter", f"offset {offset} ({why}) is not in the dead-letter topic with its reason")
        for key, held in letters.items():
            if self._manifest and key.decode().startswith(prefix):
                offset = int(key.decode().rpartition(":")[2])
                # By other limits an episode may be open or not, and its rows a contradiction or orphans.
                others = len(self._limits) > 1 and all(_reason(letter) == b"rows" for letter in held)
                if offset in judge.valid and not others:
                    self._tell("dead letter", f"offset {offset} is valid, and in the dead-letter topic")


_COUNTED = frozenset(
    (
        *(f"{unit}_{outcome}" for unit in ("rows", "steps") for outcome in ("read", *_CLASSES)),
        *("episodes_ended", "episodes_aborted", "gaps", "messages_missing", "begins_repeated", "offsets_lost"),
        *(f"messages_{kind}" for kind in ("read", "valid", "quarantined", "begin", "chunks", "end", "tick")),
        *("messages_duplicate", "messages_superseded"),
    )
)


def _state(known: Known) -> tuple[Any, ...]:
    envs = sorted((env, episode, *_goes_on(known, env)) for env, episode in known.newest.items())
    return known.incarnation, known.sequence, known.seen_ms, known.start, envs


def _goes_on(known: Known, env: int) -> tuple[int, int, int]:
    if env not in known.open:
        return 0, 0, 0
    episode = known.open[env]
    return *episode.follows[1:], episode.bytes


def _told(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    envs = entry["envs"]
    columns = (envs[name] for name in ("env", "episode", "chunk", "step", "bytes"))
    return entry["incarnation"], entry["sequence"], entry["seen_ms"], entry["start"], sorted(zip(*columns, strict=True))


def _last(told: Mapping[str, Any] | None) -> tuple[Any, ...]:
    return (told["offset"], told["timestamp_ms"], told["digest"]) if told else ()


def _equal(ours: Episode, theirs: Episode) -> bool:
    return (
        ours.hashes == theirs.hashes
        and ours.facts.keys() == theirs.facts.keys()
        and all(same(value, theirs.facts[name]) for name, value in ours.facts.items())
    )


def _same_row(record: LogRecord, row: Any, facts: Mapping[str, Any], items: Mapping[str, Any]) -> bool:
    plain = {name: value for name, value in facts.items() if name in row.facts}
    if not all(same(value, plain.get(name)) for name, value in row.facts.items()):
        return False
    if (facts["offset"], facts["timestamp_ms"]) != (record.offset, record.timestamp_ms):
        return False
    states = all(same(np.ravel(row.states[name]).tolist(), _flat(facts[name])) for name in row.states)
    hashes = (content_hash(items[name]) == content_hash(held) for name, held in row.items.items())
    return states and items.keys() == row.items.keys() and all(hashes)


def _flat(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _reason(letter: LogRecord) -> bytes | None:
    return dict(letter.headers).get("penstock.reason")


def _tells(letter: LogRecord, record: LogRecord) -> bool:
    headers = dict(letter.headers)
    if not headers.get("penstock.reason") or headers.get("penstock.offset") != b"%d" % record.offset:
        return False
    if letter.value == record.value:
        return True
    return headers.get("penstock.sha256") == hashlib.sha256(record.value or b"").hexdigest().encode()
