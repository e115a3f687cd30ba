from __future__ import annotations

import ast
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.chunks import Ends
from penstock_schemas.log.memory import MemoryLog
from tests.chaos.audit.auditor import audit
from tests.chaos.audit.objects import bucket_objects, folder_objects
from tests.chaos.audit.records import Acknowledged, LogRecord, memory_records
from tests.consumers.messages import (
    DEAD_LETTERS,
    NESTED,
    SPEC,
    STREAM,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    append_garbage,
    append_tick,
    records,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec
    from tests.chaos.audit.report import Audit

IDLE_MS = 1_000


class Forged:
    """A log and the store that was made of it, all as plain values that a test may falsify."""

    def __init__(self, log: MemoryLog, bucket: Bucket) -> None:
        self.records = memory_records(log, TOPIC)
        self.letters = memory_records(log, DEAD_LETTERS)[0]
        self.objects = bucket_objects(bucket)
        self.ledger = [
            Acknowledged(0, record.offset, hashlib.sha256(record.value or b"").digest()) for record in self.records[0]
        ]
        self.idle_limits: int | set[int] = IDLE_MS
        self.first_offsets: dict[int, int] = {}

    def audit(self) -> Audit:
        return audit(
            self.records,
            self.objects,
            idle_limit_ms=self.idle_limits,
            dead_letters=self.letters,
            ledger=self.ledger,
            first_offsets=self.first_offsets,
        )

    @property
    def names(self) -> list[str]:
        """The commits' names, in order."""
        return sorted(name for name in self.objects if name.startswith("commits/"))

    def commit(self, at: int) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.objects[self.names[at]])
        return read

    def edit(self, at: int, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a commit."""
        commit = self.commit(at)
        change(commit)
        self.objects[self.names[at]] = json.dumps(commit).encode()

    def count(self, name: str, by: int) -> None:
        self.edit(-1, lambda commit: commit["counters"].update({name: commit["counters"].get(name, 0) + by}))

    def edit_segment(self, kind: str, change: Callable[[list[dict[str, Any]]], object], at: int = 2) -> None:
        """Change the rows of a commit's segment, and have all that names it agree with its bytes."""
        found = [number for number in range(len(self.names)) if self.commit(number)[f"{kind}_added"]]
        number = found[at]
        (entry,) = self.commit(number)[f"{kind}_added"]
        table = pa.ipc.open_file(self.objects[entry["name"]]).read_all()
        rows = table.to_pylist()
        change(rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, table.schema))
        data = sink.getvalue().to_pybytes()
        self.objects[entry["name"]] = data
        agrees = {"rows": len(rows), "bytes": len(data), "crc32c": crc32c(data)}
        if kind == "segments":
            agrees["steps"] = sum(row["length"] for row in rows)

        def update(commit: dict[str, Any]) -> None:
            live = commit["live"] or {}
            for named in (*commit[f"{kind}_added"], *live.get(kind, ())):
                if named["name"] == entry["name"]:
                    named.update(agrees)

        self.edit(number, update)


def partition_of(log: MemoryLog, bucket: Bucket, idle_ms: int = IDLE_MS) -> Partition:
    topic = log.describe(TOPIC)
    letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
    return Partition(ReplayStore(bucket, STREAM, topic), 0, letters, Limits(idle_limit_ms=idle_ms))


def consume(log: MemoryLog, bucket: Bucket, every: int = 3, idle_ms: int = IDLE_MS) -> None:
    partition = partition_of(log, bucket, idle_ms)
    for record in records(log):
        if record.offset >= partition.high_water:
            partition.take(record)
            if partition.high_water % every == 0:
                partition.commit()
    partition.commit()


def scripted(spec: StreamSpec = SPEC) -> MemoryLog:
    """A log with something of everything: gaps, orphans, duplicates, a restart, silence, garbage, open rows."""
    clock = Clock()
    log = MemoryLog(clock=clock)
    log.create(TOPIC)
    log.create(DEAD_LETTERS)
    producer, other = ScriptedProducer(log, spec=spec), ScriptedProducer(log, "producer-1", spec=spec)
    producer.begin()
    other.begin()
    producer.send(Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2), Row(2, 0, 0, 0, 1, Ends.TERMINATED))
    other.send(Row(0, 0, 0, 0, 1, seed=7))
    append_garbage(log)
    late = other.encode(Row(0, 0, 1, 1, 4))
    other.append(late)
    other.append(late)
    other.sequence += 1
    producer.send(Row(0, 0, 1, 3, 2, Ends.TRUNCATED), Row(0, 1, 0, 0, 2, Ends.CUT), Row(1, 0, 1, 2, 1))
    producer.send(Row(0, 2, 0, 0, 2, continues=1))
    other.send(Row(0, 0, 2, 5, 1, Ends.TERMINATED))
    producer.append(producer.encode(Row(1, 7, 3, 30, 1)))
    producer.skip()
    producer.send(Row(1, 0, 3, 4, 1), Row(2, 5, 0, 0, 2))
    old = producer.encode(Row(2, 5, 1, 2, 2))
    producer.begin()
    producer.append(old)
    other.send(Row(0, 1, 0, 0, 3))
    for _ in range(5):
        clock.advance(0.3)
        append_tick(log)
    producer.send(Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2))
    producer.send(Row(0, 0, 1, 3, 1), Row(1, 0, 1, 2, 2, Ends.ABORTED, "env raised"))
    other.end("preempted")
    other.begin()
    other.send(Row(0, 0, 0, 0, 2))
    return log


def forged(spec: StreamSpec = SPEC, every: int = 3) -> Forged:
    log, bucket = scripted(spec), open_bucket("memory://")
    consume(log, bucket, every)
    return Forged(log, bucket)


@pytest.mark.parametrize("spec", [SPEC, NESTED], ids=["plain", "nested"])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_a_store_that_is_what_the_log_says(spec: StreamSpec, every: int) -> None:
    found = forged(spec, every).audit()
    assert found.ok, found.text
    counted = {name: found.counts[name] for name in ("episodes_stored", "open_rows", "messages_quarantined", "gaps")}
    assert counted == {"episodes_stored": 9, "open_rows": 3, "messages_quarantined": 2, "gaps": 1}
    assert found.text.endswith("ok")


def test_a_folder_is_read_like_a_bucket(tmp_path: Path) -> None:
    log, bucket = scripted(), open_bucket(tmp_path)
    consume(log, bucket)
    found = Forged(log, bucket)
    assert folder_objects(tmp_path) == found.objects
    assert found.audit().ok


def test_records_are_judged_by_the_limit_that_their_commit_names() -> None:
    log, bucket = scripted(), open_bucket("memory://")
    consume(log, bucket)
    for _ in range(6):
        append_tick(log)
    consume(log, bucket, idle_ms=200)
    found = Forged(log, bucket)
    found.idle_limits = {IDLE_MS, 200}
    assert found.audit().ok
    found.idle_limits = IDLE_MS
    assert found.audit().kinds == {"limits"}


@pytest.mark.parametrize("spec", [SPEC, NESTED], ids=["plain", "nested"])
def test_a_message_with_a_byte_changed_is_to_the_auditor_what_it_is_to_the_consumer(spec: StreamSpec) -> None:
    log, bucket = MemoryLog(clock=Clock()), open_bucket("memory://")
    for topic in (TOPIC, DEAD_LETTERS):
        log.create(topic)
    producer = ScriptedProducer(log, spec=spec)
    producer.begin()
    message = producer.encode(Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2, Ends.TERMINATED))
    assert message.value is not None
    rng = random.Random(0)  # noqa: S311 - not for secrets
    for at in rng.sample(range(len(message.value)), 1_500):
        changed = bytearray(message.value)
        changed[at] ^= rng.randrange(1, 256)
        producer.append(replace(message, value=bytes(changed)))
    consume(log, bucket, every=500)
    found = Forged(log, bucket).audit()
    assert found.ok, found.text
    assert 0 < found.counts["messages_quarantined"] < 1_500


# A forger's work: one fault each, everything else as it should be.


def drop_episode(store: Forged) -> None:
    store.edit_segment("segments", lambda rows: rows.pop())


def double_episode(store: Forged) -> None:
    store.edit_segment("segments", lambda rows: rows.append(rows[0]))


def invent_episode(store: Forged) -> None:
    store.edit_segment("segments", lambda rows: rows.append({**rows[0], "episode": 99}))


def longest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: int(row["length"]))


def change_fact(name: str, value: Any) -> Callable[[Forged], None]:
    return lambda store: store.edit_segment("segments", lambda rows: longest(rows).update({name: value}))


def change_item(name: str, change: Callable[[list[Any]], object]) -> Callable[[Forged], None]:
    return lambda store: store.edit_segment("segments", lambda rows: change(longest(rows)[name]))


def the_smallest_float(items: list[Any]) -> None:
    items[1][0] += 2.0**-44


def swap(items: list[Any]) -> None:
    items[0], items[1] = items[1], items[0]


def raise_first(items: list[Any]) -> None:
    items[0] += 1


def cut_bytes(store: Forged) -> None:
    name = next(name for name in store.objects if name.startswith("segments/"))
    store.objects[name] = store.objects[name][:-3]


def flip_padding(store: Forged) -> None:
    """A byte that holds no value at all."""
    name = next(name for name in store.objects if name.startswith("segments/"))
    store.objects[name] = store.objects[name].replace(b"ARROW1\0\0", b"ARROW1\0\1", 1)


def delete(kind: str) -> Callable[[Forged], None]:
    def gone(store: Forged) -> None:
        number = max(number for number in range(len(store.names)) if store.commit(number)[f"{kind}_added"])
        del store.objects[store.commit(number)[f"{kind}_added"][0]["name"]]

    return gone


def drop_commit(at: int) -> Callable[[Forged], object]:
    return lambda store: store.objects.pop(store.names[at])


def in_commit(at: int, change: Callable[[dict[str, Any]], object]) -> Callable[[Forged], None]:
    return lambda store: store.edit(at, change)


def go_back(commit: dict[str, Any]) -> None:
    commit["high_water"] -= 4


def retire_one(commit: dict[str, Any]) -> None:
    commit["retired"]["episodes"] += 1


def drop_segment(commit: dict[str, Any]) -> None:
    commit["segments_added"] = []


def later_sequence(commit: dict[str, Any]) -> None:
    commit["producers"]["producer-0"]["sequence"] += 1


def close_env(commit: dict[str, Any]) -> None:
    commit["producers"]["producer-0"]["envs"]["chunk"][0] = 0


def grow_env(commit: dict[str, Any]) -> None:
    commit["producers"]["producer-0"]["envs"]["bytes"][0] += 1


def later_seen(commit: dict[str, Any]) -> None:
    commit["producers"]["producer-1"]["seen_ms"] += 1


def wrong_digest(commit: dict[str, Any]) -> None:
    commit["last"]["digest"] = "0" * 64


def wrong_keys(commit: dict[str, Any]) -> None:
    for entry in commit["segments_added"]:
        entry["keys"] += 1


def wrong_range(commit: dict[str, Any]) -> None:
    for entry in commit["segments_added"]:
        entry["ranges"]["length"][1] += 1


def wrong_ends(commit: dict[str, Any]) -> None:
    for entry in commit["segments_added"]:
        entry["ranges"]["ends"].append(99)


def wrong_producers(commit: dict[str, Any]) -> None:
    for entry in commit["segments_added"]:
        entry["ranges"]["producers"] = None


def wrong_metrics(commit: dict[str, Any]) -> None:
    for entry in commit["segments_added"]:
        entry["ranges"]["metrics"]["height"] = [0.0, 1.0]


def other_topic(commit: dict[str, Any]) -> None:
    commit["topic_id"] = "another"


def raise_open_reward(rows: list[dict[str, Any]]) -> None:
    rows[-1]["reward"][0] += 1


def twice_open(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[-1])


def lose_letter(store: Forged) -> None:
    store.letters.pop()


def valid_letter(store: Forged) -> None:
    letter = store.letters[0]
    key = (letter.key or b"").rpartition(b":")[0]
    store.letters.append(replace(letter, key=key + b":3"))


def letter_without_reason(store: Forged) -> None:
    store.letters[0] = replace(store.letters[0], headers=store.letters[0].headers[1:])


def lose_record(store: Forged) -> None:
    store.records[0].pop(3)


def lose_last_record(store: Forged) -> None:
    last = store.records[0][-1]
    store.ledger.append(Acknowledged(0, last.offset + 1, b""))


def change_record(store: Forged) -> None:
    store.ledger[5] = replace(store.ledger[5], sha256=b"0" * 32)


def unread_record(store: Forged) -> None:
    last = store.records[0][-1]
    store.records[0].append(replace(last, offset=last.offset + 1))


def lose_all(store: Forged) -> None:
    for name in store.names:
        del store.objects[name]


def other_manifest(store: Forged) -> None:
    store.objects["store.json"] = store.objects["store.json"].replace(b"Test-v0", b"Test-v1")


def pass_over(commit: dict[str, Any]) -> None:
    commit["counters"]["offsets_lost"] = 2


FORGERIES: dict[str, tuple[Callable[[Forged], object], set[str]]] = {
    "a missing episode": (drop_episode, {"missing"}),
    "a doubled episode": (double_episode, {"duplicated"}),
    "an invented episode": (invent_episode, {"invented"}),
    "a changed float": (change_item("observation", the_smallest_float), {"altered"}),
    "a changed action": (change_item("action", raise_first), {"altered"}),
    "a changed reward": (change_item("reward", raise_first), {"altered"}),
    "a changed extra": (change_item("logits", swap), {"order"}),
    "steps in another order": (change_item("observation", swap), {"order"}),
    "a step less": (change_item("action", lambda items: items.pop()), {"altered"}),
    "a changed policy version": (change_item("policy_version", raise_first), {"altered"}),
    "a changed seed": (change_fact("seed", 8), {"altered"}),
    "a changed return": (change_fact("return", 0.125), {"altered"}),
    "a wrong end": (change_fact("ends", int(Ends.CUT)), {"end"}),
    "a wrong reason": (change_fact("abort_reason", "tired"), {"end"}),
    "a wrong closing record": (change_fact("closed_offset", 2), {"end"}),
    "a truncated segment": (cut_bytes, {"altered"}),
    "a byte without a meaning": (flip_padding, {"altered"}),
    "a segment that is gone": (delete("segments"), {"gone"}),
    "an open segment that is gone": (delete("open"), {"gone"}),
    "a commit that is gone": (drop_commit(2), {"chain"}),
    "the last commit gone": (drop_commit(-1), {"unjudged"}),
    "all commits gone": (lose_all, {"unjudged"}),
    "a high-water mark that goes back": (in_commit(3, go_back), {"chain"}),
    "a segment that no commit names": (in_commit(2, drop_segment), {"missing", "balance"}),
    "an episode retired that is there": (in_commit(-1, retire_one), {"balance"}),
    "a wrong sequence number": (in_commit(-1, later_sequence), {"state"}),
    "an open episode that is said to have ended": (in_commit(-1, close_env), {"state"}),
    "an open episode that is said to be larger": (in_commit(-1, grow_env), {"state"}),
    "a wrong sign of life": (in_commit(-1, later_seen), {"state"}),
    "a wrong digest of the last record": (in_commit(-1, wrong_digest), {"state"}),
    "a wrong log's time": (in_commit(-1, lambda commit: commit.update(log_clock_ms=1)), {"state"}),
    "a wrong key sum": (in_commit(2, wrong_keys), {"altered"}),
    "a wrong range": (in_commit(2, wrong_range), {"altered"}),
    "wrong ends": (in_commit(2, wrong_ends), {"altered"}),
    "wrong producers": (in_commit(2, wrong_producers), {"altered"}),
    "wrong metrics": (in_commit(2, wrong_metrics), {"altered"}),
    "another topic": (in_commit(-1, other_topic), {"chain"}),
    "offsets passed over that the log has": (in_commit(0, pass_over), {"lost"}),
    "a changed open row": (lambda store: store.edit_segment("open", raise_open_reward, -1), {"open"}),
    "a missing open row": (lambda store: store.edit_segment("open", lambda rows: rows.pop(), -1), {"open"}),
    "a doubled open row": (lambda store: store.edit_segment("open", twice_open, -1), {"open"}),
    "a missing dead letter": (lose_letter, {"dead letter"}),
    "a dead letter that is valid": (valid_letter, {"dead letter"}),
    "a dead letter without its reason": (letter_without_reason, {"dead letter"}),
    "a record that the log lost": (lose_record, {"ledger"}),
    "an acknowledged record beyond the log's end": (lose_last_record, {"ledger"}),
    "a record that changed after it was acknowledged": (change_record, {"ledger"}),
    "a record that nobody read": (unread_record, {"unjudged"}),
    "another description": (other_manifest, {"manifest"}),
    **{
        f"a counter off by one: {name}": (lambda store, name=name: store.count(name, 1), {"counter"})  # type: ignore[misc]  # a lambda's default has no type
        for name in (
            *("messages_read", "messages_valid", "messages_quarantined", "messages_tick", "messages_duplicate"),
            *("rows_read", "rows_ended", "rows_aborted", "rows_duplicate", "rows_orphan", "rows_superseded"),
            *("steps_ended", "episodes_ended", "episodes_aborted", "gaps", "begins_repeated", "messages_missing"),
        )
    },
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(name: str) -> None:
    forge, kinds = FORGERIES[name]
    store = forged()
    forge(store)
    found = store.audit()
    assert kinds <= found.kinds, f"{name}: {found.text}"
    assert "FAULTS" in found.text
    assert next(iter(kinds)) in found.text


@pytest.mark.parametrize("column", [column.name for column in (*NESTED.columns, *NESTED.states)])
def test_no_column_is_left_out(column: str) -> None:
    store = forged(NESTED)

    def change(rows: list[dict[str, Any]]) -> None:
        items = longest(rows)[column]
        at = next(at for at, item in enumerate(items) if item is not None)
        match items[at]:
            case str():
                items[at] += "x"
            case list():
                items[at] = [*items[at][:-1], 1 - items[at][-1]]
            case number:
                items[at] = 1 - number

    store.edit_segment("segments", change)
    found = store.audit()
    assert "altered" in found.kinds, found.text
    assert f": {column}: item" in found.text


def test_a_metric_is_compared() -> None:
    store = forged(NESTED)
    store.edit_segment("segments", lambda rows: rows[0].update({"metric.score": 77.0}))
    assert "metric.score is 77.0" in store.audit().text


def test_a_store_that_passed_over_what_the_log_had_deleted() -> None:
    log, bucket = scripted(), open_bucket("memory://")
    whole = memory_records(log, TOPIC)
    log.trim(TOPIC, 0, 4)
    partition = partition_of(log, bucket)
    partition.skip_to(4)
    for record in records(log):
        partition.take(record)
    partition.commit()
    store = Forged(log, bucket)
    store.first_offsets = {0: 4}
    found = store.audit()
    assert found.ok, found.text
    assert found.counts["offsets_lost"] == 4
    # What the scenario kept before it trimmed changes nothing; that it trimmed less is a loss.
    store.records = whole
    assert store.audit().ok
    store.first_offsets = {0: 3}
    assert store.audit().kinds == {"lost"}


def test_what_retention_took_is_told_from_what_is_missing() -> None:
    log, bucket = scripted(), open_bucket("memory://")
    consume(log, bucket)
    newest = commits.newest(bucket, 0)
    assert newest is not None
    live = commits.live_at(bucket, newest)
    commits.rewrite(bucket, newest, live, retired=live.segments[:2])
    for entry in live.segments[:2]:
        bucket.delete(entry.name)
    store = Forged(log, bucket)
    found = store.audit()
    assert found.ok, found.text
    assert found.counts["episodes_retired"] == sum(entry.rows for entry in live.segments[:2])
    drop_episode_of_a_living_segment = max(store.objects, key=lambda name: (name.startswith("segments/"), name))
    del store.objects[drop_episode_of_a_living_segment]
    assert {"gone", "missing"} <= store.audit().kinds


def test_partitions_are_audited_each_by_itself() -> None:
    store = forged()
    store.records[1] = [LogRecord(0, 0, b"garbage", b"garbage", ())]
    found = store.audit()
    assert [(finding.partition, finding.kind) for finding in found.findings] == [(1, "unjudged")]


def test_polls_and_commits_have_no_say() -> None:
    """Wherever commits fall, the episodes that are stored are the same, and so is the audit."""
    rng = random.Random(0)  # noqa: S311  (to be repeated, not to be kept secret)
    told = set()
    for _ in range(5):
        log, bucket = scripted(), open_bucket("memory://")
        partition = partition_of(log, bucket)
        for record in records(log):
            partition.take(record)
            if rng.random() < 0.3:
                partition.commit()
            if rng.random() < 0.2:
                partition.commit()
                partition = partition_of(log, bucket)
        partition.commit()
        found = Forged(log, bucket).audit()
        assert found.ok, found.text
        told.add((found.counts["episodes_stored"], found.counts["steps_stored"], found.counts["open_rows"]))
    assert len(told) == 1


def test_the_auditor_uses_nothing_of_what_it_audits() -> None:
    """What it imports of ours are types, for those who check them."""
    for source in Path(__file__).parent.glob("*.py"):
        if source.name.startswith("test_"):
            continue
        tree = ast.parse(source.read_text())
        for_types = {id(node) for block in ast.walk(tree) if isinstance(block, ast.If) for node in ast.walk(block)}
        nodes = [node for node in ast.walk(tree) if id(node) not in for_types]
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert "__future__" in names
        assert not [name for name in names if name.startswith("penstock")], source
