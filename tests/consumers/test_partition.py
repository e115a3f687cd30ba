from __future__ import annotations

import random
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.partition import Partition, record_digest
from penstock_consumers.store import commits, manifest
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.upkeep.collection import collect
from penstock_schemas.chunks import Ends, check
from penstock_schemas.errors import CorruptStoreError, FencedError, LogUnavailableError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks
from penstock_schemas.spaces import Text
from tests.consumers.messages import (
    NESTED,
    SPEC,
    STREAM,
    TOPIC,
    Clock,
    Kept,
    Row,
    ScriptedProducer,
    WrappedBucket,
    append,
    append_garbage,
    append_tick,
    key_of,
    open_partition,
    records,
    rows_to_batch,
    store_all,
    stored_episodes,
    stream,
    take_all,
)
from tests.consumers.upkept import overtaken
from tests.schemas.batches import Row as SentRow
from tests.schemas.batches import make_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_consumers.assemble import Episodes
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Record
    from penstock_schemas.stream import StreamSpec

IDLE_MS = 1_000
LIMITS = Limits(idle_limit_ms=IDLE_MS)


# The reference: one row at a time, dicts and lists, nothing of the consumer's.


@dataclass
class OpenEpisode:
    """The rows of an episode that goes on, and the offsets of their records."""

    opened_offset: int
    rows: list[dict[str, Any]]


@dataclass
class Known:
    """What the reference knows of a producer."""

    incarnation: int
    sequence: int
    seen_ms: int
    newest: dict[int, int] = field(default_factory=dict)
    open: dict[int, OpenEpisode] = field(default_factory=dict)


class Reference:
    """Judges and assembles the records of one partition by the rules, as plainly as can be."""

    def __init__(self, undecodable: set[int], spec: StreamSpec = SPEC) -> None:
        self.undecodable = undecodable
        self.lists = [column.name for column in spec.columns]
        self.states = [state.name for state in spec.states]
        self.metrics = [f"metric.{name}" for name in spec.metrics]
        self.producers: dict[str, Known] = {}
        self.episodes: list[dict[str, Any]] = []
        self.counters: Counter[str] = Counter()
        self.quarantined: list[int] = []
        self.clock_ms = 0
        self.last_ms: int | None = None

    @property
    def open_rows(self) -> int:
        return sum(len(episode.rows) for known in self.producers.values() for episode in known.open.values())

    def read(self, record: Record) -> None:
        if self.last_ms is not None:
            self.clock_ms += min(max(0, record.timestamp_ms - self.last_ms), IDLE_MS // 4)
        self.last_ms = record.timestamp_ms
        self.counters["messages_read"] += 1
        headers = dict(record.headers)
        if record.offset in self.undecodable or self.contradicts(record, headers):
            self.counters["messages_quarantined"] += 1
            self.quarantined.append(record.offset)
        else:
            kind = headers["kind"].decode()
            self.counters["messages_valid"] += 1
            self.counters[f"messages_{kind}"] += 1
            getattr(self, kind)(record, headers)
        for known in self.producers.values():
            if self.clock_ms - known.seen_ms >= IDLE_MS:
                self.abort(known, "idle", record)

    def contradicts(self, record: Record, headers: dict[str, bytes]) -> bool:
        if headers["kind"] != b"chunks":
            return False
        known = self.producers.get(headers["producer"].decode())
        sequence = int(headers["sequence"])
        if known is None or known.incarnation != int(headers["incarnation"]) or sequence < known.sequence:
            return False
        seen: set[int] = set()
        for row in rows_in(record):
            if row["env"] not in seen and row["chunk"] == 0 and row["episode"] <= known.newest.get(row["env"], -1):
                return True
            if sequence == known.sequence and row["env"] not in seen and row["env"] in known.open:
                last = known.open[row["env"]].rows[-1]
                expected = (last["episode"], last["chunk"] + 1, last["first_step"] + len(last["reward"]))
                if (row["episode"], row["chunk"], row["first_step"]) != expected:
                    return True
            seen.add(row["env"])
        return False

    def begin(self, record: Record, headers: dict[str, bytes]) -> None:
        self.start(headers["producer"].decode(), record.offset, record)

    def start(self, name: str, incarnation: int, record: Record) -> Known:
        if name in self.producers:
            self.abort(self.producers[name], "restarted", record)
        self.producers[name] = Known(incarnation, 0, self.clock_ms)
        return self.producers[name]

    def end(self, record: Record, headers: dict[str, bytes]) -> None:
        name, incarnation = headers["producer"].decode(), int(headers["incarnation"])
        known = self.producers.get(name)
        sequence = int(headers["sequence"])
        if known is None:
            return
        if incarnation > known.incarnation:
            known = self.start(name, incarnation, record)
        if known.incarnation != incarnation or sequence < known.sequence:
            return
        self.expect(known, sequence, record)
        self.abort(known, headers["reason"].decode(), record)

    def tick(self, record: Record, headers: dict[str, bytes]) -> None:
        pass

    def chunks(self, record: Record, headers: dict[str, bytes]) -> None:
        rows = rows_in(record)
        self.count("read", *rows)
        name, incarnation, sequence = (
            headers["producer"].decode(),
            int(headers["incarnation"]),
            int(headers["sequence"]),
        )
        known = self.producers.get(name)
        if known is None or incarnation > known.incarnation:
            known = self.start(name, incarnation, record)
        if incarnation < known.incarnation:
            self.counters["messages_superseded"] += 1
            self.count("superseded", *rows)
            return
        known.seen_ms = self.clock_ms
        if sequence < known.sequence:
            self.counters["messages_duplicate"] += 1
            self.count("duplicate", *rows)
            return
        self.expect(known, sequence, record)
        for row in rows:
            env = row["env"]
            if row["chunk"] == 0:
                known.newest[env] = row["episode"]
                known.open[env] = OpenEpisode(record.offset, [])
            elif env not in known.open:
                self.count("orphan", row)
                continue
            known.open[env].rows.append(row)
            if row["ends"]:
                self.close(known, name, env, Ends(row["ends"]), row["abort_reason"], record)

    def count(self, outcome: str, *rows: dict[str, Any]) -> None:
        for row in rows:
            self.counters[f"rows_{outcome}"] += 1
            self.counters[f"steps_{outcome}"] += len(row["reward"])

    def expect(self, known: Known, sequence: int, record: Record) -> None:
        if sequence > known.sequence:
            self.counters["gaps"] += 1
            self.counters["messages_missing"] += sequence - known.sequence
            self.abort(known, "gap", record)
        known.sequence = sequence + 1

    def abort(self, known: Known, reason: str, record: Record) -> None:
        name = next(name for name, other in self.producers.items() if other is known)
        for env in list(known.open):
            self.close(known, name, env, Ends.ABORTED, reason, record)

    def close(self, known: Known, name: str, env: int, ends: Ends, reason: str | None, record: Record) -> None:
        episode = known.open.pop(env)
        rows = episode.rows
        rewards = [reward for row in rows for reward in row["reward"]]
        outcome = "aborted" if ends is Ends.ABORTED else "ended"
        self.counters[f"episodes_{outcome}"] += 1
        self.count(outcome, *rows)
        self.episodes.append(
            {
                "producer": name,
                "incarnation": known.incarnation,
                "env": env,
                "episode": rows[0]["episode"],
                "length": len(rewards),
                "return": sum(rewards),
                "ends": int(ends),
                "abort_reason": reason,
                "seed": rows[0]["seed"],
                "reset_options": rows[0]["reset_options"],
                "continues": rows[0]["continues"],
                "opened_offset": episode.opened_offset,
                "closed_offset": record.offset,
                "closed_ms": record.timestamp_ms,
                "chunk_first_step": [row["first_step"] for row in rows],
                "policy_version": [row["policy_version"] for row in rows],
                "policy_digest": [row["policy_digest"] for row in rows],
                "exploration": [row["exploration"] for row in rows],
                **{name: rows[-1][name] if ends in {1, 2, 3} else None for name in self.metrics},
                **{name: [row[name] for row in rows] for name in self.states},
                **{name: end_to_end(name, rows) for name in self.lists},
            }
        )


def end_to_end(name: str, rows: list[dict[str, Any]]) -> list[Any]:
    overlaps = name.startswith(("observation", "info."))
    items = [item for row in rows for item in (row[name][:-1] if overlaps else row[name])]
    return [*items, rows[-1][name][-1]] if overlaps else items


def rows_in(record: Record) -> list[dict[str, Any]]:
    value, headers = record.value, dict(record.headers)
    if "encoding" in headers:
        value = pa.decompress(value, int(headers["raw_size"]), headers["encoding"].decode(), asbytes=True)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(value).read_all().to_pylist()
    return rows


# The script: several producers at random, and everything that can go wrong between them and the log.


class RandomProducer(ScriptedProducer):
    """A producer whose envs go on at random."""

    def __init__(self, log: MemoryLog, name: str, rng: random.Random, spec: StreamSpec) -> None:
        super().__init__(log, name, spec=spec)
        self.rng = rng
        self.envs: list[Row | None] = []
        self.sent: list[Encoded] = []
        self.restart()

    def restart(self) -> None:
        self.begin()
        self.reset()

    def begin_unheard(self) -> int:
        """Begin with a record that nobody can read; its offset counts all the same."""
        begin = encode_begin(self.spec, self.name, uuid.uuid4().hex)
        self.incarnation = self.append(replace(begin, value=(begin.value or b"")[:-40])).offset
        self.reset()
        return self.incarnation

    def reset(self) -> None:
        self.sequence = 0
        self.envs = [None] * self.rng.randint(1, 4)
        self.last = dict.fromkeys(range(len(self.envs)), -1)
        self.cut: set[int] = set()

    def step(self) -> list[Row]:
        """The rows of one message: of each env none, some chunks of one episode, or of several."""
        rows: list[Row] = []
        for env in range(len(self.envs)):
            rows += [self.next_row(env) for _ in range(self.rng.choice([0, 1, 1, 2, 4]))]
        return rows or [self.next_row(0)]

    def next_row(self, env: int) -> Row:
        before = self.envs[env]
        ends = self.rng.choice([Ends.OPEN] * 5 + [Ends.TERMINATED, Ends.TRUNCATED, Ends.ABORTED, Ends.CUT, Ends(3)])
        reason = "env raised" if ends is Ends.ABORTED else None
        # What was published of an episode may be all that there is when it is aborted.
        length = self.rng.randint(0 if before and reason else 1, 4)
        if before is None:
            continues = self.last[env] if env in self.cut else None
            self.last[env] += 1
            seed = self.rng.choice([None, self.rng.randrange(1000)]) if continues is None else None
            row = Row(env, self.last[env], 0, 0, length, ends, reason, seed, continues)
        else:
            row = Row(env, before.episode, before.chunk + 1, before.first_step + before.length, length, ends, reason)
        self.envs[env] = row if ends is Ends.OPEN else None
        self.cut = self.cut | {env} if ends is Ends.CUT else self.cut - {env}
        return row

    def go_on(self) -> None:
        self.sent.append(self.encode(*self.step()))
        self.append(self.sent[-1])
        self.sequence += 1

    def lose(self) -> None:
        self.step()
        self.skip()

    def lie(self) -> None:
        """A message that is next in sequence, and whose rows do not go on where the episode stands."""
        env = self.rng.randrange(len(self.envs))
        self.append(self.encode(Row(env, self.last[env] + 7, 3, 50, 2)))


def random_log(rng: random.Random, length: int, spec: StreamSpec = SPEC) -> tuple[MemoryLog, set[int]]:
    """A log of one partition, and the offsets of what cannot be decoded."""
    clock = Clock()
    log = MemoryLog(clock=clock)
    log.create(TOPIC)
    undecodable: set[int] = set()
    producers = [RandomProducer(log, f"producer-{number}", rng, spec) for number in range(3)]

    def garbage(producer: RandomProducer) -> None:
        message = producer.encode(*producer.step())
        wrong = [
            Encoded(rng.randbytes(50), message.headers),
            Encoded((message.value or b"")[: rng.randrange(1, 200)], message.headers),
            Encoded(message.value, message.headers[1:]),
            replace(message, headers=tuple((k, b"x" * 32 if k == "schema" else v) for k, v in message.headers)),
        ]
        undecodable.add(producer.append(rng.choice(wrong)).offset)
        producer.skip()

    def end(producer: RandomProducer) -> None:
        producer.end(rng.choice(["stopped", "preempted"]))
        if rng.random() < 0.5:
            producer.restart()
        else:
            undecodable.add(producer.begin_unheard())

    def tick(_: RandomProducer) -> None:
        append_tick(log)

    def repeat(producer: RandomProducer) -> None:
        if producer.sent:
            producer.append(rng.choice(producer.sent[-8:]))

    actions: tuple[Callable[[RandomProducer], object], ...] = (
        *([RandomProducer.go_on] * 12),
        *([repeat] * 3),
        *(RandomProducer.lose, RandomProducer.restart, RandomProducer.lie, garbage, end),
        tick,
    )
    while log.bounds(TOPIC, 0)[1] < length:
        rng.choice(actions)(rng.choice(producers))
        clock.advance(rng.choice([0, 0, 0.01, 0.05, 0.2, 0.2, -0.1, 30]) * rng.random())
    return log, undecodable


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assemble a few episodes at a time, lay every column part by part, write open rows into many small batches."""
    sizes = {
        "partition._GROUP_BYTES": 3_000,
        "gather._LARGE_ITEM_BYTES": 1,
        "open_rows.SEGMENT_BYTES": 20_000,
        "open_rows._LEAST_LEVEL_BYTES": 9_000,
        "open_rows._BATCH_BYTES": 600,
        "open_rows._MOST_BATCH_BYTES": 1_000,
    }
    for name, size in sizes.items():
        monkeypatch.setattr(f"penstock_consumers.{name}", size)


@pytest.mark.parametrize("spec", [SPEC, NESTED], ids=["plain", "nested"])
@pytest.mark.parametrize(
    ("seed", "small"),
    [
        *((seed, False) for seed in range(4)),
        *((seed, True) for seed in range(2)),
        *(pytest.param(seed, False, marks=pytest.mark.chaos) for seed in range(4, 20)),
    ],
)
def test_the_store_holds_what_the_reference_assembles_wherever_it_is_cut(
    seed: int, spec: StreamSpec, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        in_small_pieces(monkeypatch)
    rng = random.Random(seed)  # noqa: S311  (to be repeated, not to be kept secret)
    log, undecodable = random_log(rng, 120, spec)
    reference = Reference(undecodable, spec)
    for record in records(log):
        reference.read(record)
    expected = sorted(reference.episodes, key=key_of)
    assert len({key_of(episode) for episode in expected}) == len(expected) > 20

    for cut in (0.1,) if small else (0.0, 0.1, 0.6):
        bucket, quarantine = open_bucket("memory://"), Kept()
        partition = cut_at_random(log, bucket, quarantine, rng, cut)
        told = f"seed {seed}, cut {cut}"
        assert stored_episodes(bucket) == expected, told
        assert partition.counters == reference.counters, told
        assert {offset for offset, _ in quarantine.records} == set(reference.quarantined), told
        assert open_rows(bucket) == reference.open_rows, told


def cut_at_random(log: MemoryLog, bucket: Bucket, quarantine: Kept, rng: random.Random, cut: float) -> Partition:
    """Judge a log; before each record a commit, and a new start from the store, more often the larger `cut`."""
    kept = records(log)
    partition = open_partition(log, bucket, LIMITS, quarantine)
    while partition.high_water < len(kept):
        if rng.random() < cut:
            partition.commit()
        if rng.random() < cut / 3:
            partition = open_partition(log, bucket, LIMITS, quarantine)
        partition.take(kept[partition.high_water])
    partition.commit()
    return partition


def open_rows(bucket: Bucket) -> int:
    """Rows in the living open segments whose episodes the newest commit says are open."""
    newest = commits.newest(bucket, 0)
    assert newest is not None
    is_open = {
        (name, entry.incarnation, env, episode)
        for name, entry in newest.producers.items()
        for env, episode, chunk in zip(entry.envs.env, entry.envs.episode, entry.envs.chunk, strict=True)
        if chunk
    }
    rows = [
        row
        for entry in commits.live_at(bucket, newest).open
        for row in pa.ipc.open_file(bucket.read(entry.name)).read_all().to_pylist()
    ]
    return sum(key_of(row) in is_open for row in rows)


def test_the_random_logs_hold_everything_that_can_happen() -> None:
    """What the test above would not notice: that one of the rules has nothing to judge."""
    counters, reasons = Counter[str](), set[str]()
    for seed in range(8):
        log, undecodable = random_log(random.Random(seed), 120)  # noqa: S311  (the same logs as above)
        reference = Reference(undecodable)
        for record in records(log):
            reference.read(record)
        counters += reference.counters
        counters["continued"] += sum(episode["continues"] is not None for episode in reference.episodes)
        counters["aborted at once"] += sum(
            episode["chunk_first_step"][-1] == episode["length"] for episode in reference.episodes
        )
        counters["contradictions"] += len(reference.quarantined) - len(undecodable)
        reasons |= {str(episode["abort_reason"]) for episode in reference.episodes}
    assert reasons == {"None", "env raised", "gap", "idle", "preempted", "restarted", "stopped"}
    classes = ("ended", "aborted", "duplicate", "orphan", "superseded")
    names = [f"rows_{name}" for name in classes]
    names += ["messages_tick", "messages_end", "gaps", "contradictions", "continued", "aborted at once"]
    assert {name: counters[name] for name in names if counters[name] < 10} == {}


# Crashes, races and lost answers.


class Crash(Exception):  # noqa: N818  (it is no error of a program: the process is gone)
    """The process dies here."""


class CrashingBucket(WrappedBucket):
    """Dies at its n-th operation; before it is done, or after."""

    def __init__(self, inner: Bucket, dies_at: int, *, done: bool) -> None:
        super().__init__(inner)
        self.left = dies_at
        self.done = done

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            return operation(*arguments)
        if self.done:
            operation(*arguments)
        raise Crash


def begun() -> tuple[MemoryLog, Bucket, ScriptedProducer]:
    """A log to which a producer has begun to write, and an empty bucket."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    return log, open_bucket("memory://"), producer


def scripted_log() -> MemoryLog:
    """A short log whose second half ends episodes that its first half opened."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer, other = ScriptedProducer(log), ScriptedProducer(log, "producer-1")
    producer.begin()
    other.begin()
    producer.send(Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2), Row(2, 0, 0, 0, 1, Ends.TERMINATED))
    other.send(Row(0, 0, 0, 0, 1))
    append_garbage(log)
    other.send(Row(0, 0, 1, 1, 4))
    producer.send(Row(0, 0, 1, 3, 2, Ends.TRUNCATED), Row(0, 1, 0, 0, 2), Row(1, 0, 1, 2, 1))
    other.send(Row(0, 0, 2, 5, 1, Ends.TERMINATED))
    producer.skip()
    producer.send(Row(1, 0, 3, 4, 1), Row(2, 5, 0, 0, 2))
    producer.begin()
    return log


def reference_episodes(log: MemoryLog, undecodable: set[int]) -> list[dict[str, Any]]:
    reference = Reference(undecodable)
    for record in records(log):
        reference.read(record)
    return sorted(reference.episodes, key=key_of)


GARBAGE_AT = {4}


def consume(log: MemoryLog, bucket: Bucket, every: int = 3) -> Partition:
    """From the newest commit to the log's end, with a commit after each few records."""
    partition = open_partition(log, bucket, LIMITS)
    for record in records(log)[partition.high_water :]:
        partition.take(record)
        if partition.high_water % every == 0:
            partition.commit()
    partition.commit()
    return partition


@pytest.mark.parametrize("small", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_crash_at_any_operation_of_the_bucket_loses_and_doubles_nothing(
    done: bool, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        in_small_pieces(monkeypatch)
    log = scripted_log()
    expected = reference_episodes(log, GARBAGE_AT)
    assert len(expected) == 6
    crashes = 0
    while True:
        bucket = open_bucket("memory://")
        try:
            consume(log, CrashingBucket(bucket, crashes, done=done))
        except Crash:
            crashes += 1
        else:
            break
        partition = consume(log, bucket)
        assert stored_episodes(bucket) == expected, f"crash at operation {crashes}"
        assert partition.counters["messages_read"] == 10
    # Each of four commits reads, and writes a commit and a segment, an open one, or both.
    assert crashes > 15


def test_crashes_one_after_another_lose_and_double_nothing() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    for dies_at in range(60):
        with suppress(Crash):
            consume(log, CrashingBucket(bucket, dies_at, done=dies_at % 2 == 0), every=1)
    assert stored_episodes(bucket) == reference_episodes(log, GARBAGE_AT)


def test_the_second_of_two_owners_is_fenced_and_goes_on_after_a_reload() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    first, second = (open_partition(log, bucket, LIMITS) for _ in range(2))
    for record in records(log)[:5]:
        first.take(record)
    take_all(second, log)
    first.commit()
    with pytest.raises(FencedError, match=r"commits/00000/000000000/000000000000\.json"):
        second.commit()
    reloaded = open_partition(log, bucket, LIMITS)
    assert reloaded.high_water == 5
    take_all(reloaded, log)
    reloaded.commit()
    assert stored_episodes(bucket) == reference_episodes(log, GARBAGE_AT)


def test_a_zombies_late_commit_is_refused_though_others_followed() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    zombie = open_partition(log, bucket, LIMITS)
    take_all(zombie, log)
    consume(log, bucket, every=1)
    before = stored_episodes(bucket)
    with pytest.raises(FencedError):
        zombie.commit()
    assert stored_episodes(bucket) == before == reference_episodes(log, GARBAGE_AT)


class LostAnswer(WrappedBucket):
    """Creates objects, and says that it could not; the client's second try finds what the first one made."""

    def create(self, name: str, data: bytes) -> bool:
        assert self.inner.create(name, data)
        return self.inner.create(name, data)


def test_a_create_whose_answer_was_lost_is_recognised() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = consume(log, LostAnswer(bucket), every=2)
    assert partition.commit_found == commits.newest(bucket, 0)
    assert stored_episodes(bucket) == reference_episodes(log, GARBAGE_AT)


def test_nothing_judged_is_nothing_to_commit() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    assert partition.commit() is None
    take_all(partition, log)
    assert partition.commit() is not None
    assert partition.commit() is None
    newest = commits.newest(bucket, 0)
    assert newest is not None
    assert newest.number == 0


def test_a_record_is_judged_once() -> None:
    log = scripted_log()
    partition = open_partition(log, open_bucket("memory://"))
    take_all(partition, log)
    with pytest.raises(ValueError, match=r"offset 3 was judged already: the next is 10"):
        partition.take(records(log)[3])


def test_offsets_that_the_log_leaves_out_are_passed_over() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    for at, record in enumerate(records(log)):
        partition.take(replace(record, offset=record.offset + 5 * at))
    partition.commit()
    newest = commits.newest(bucket, 0)
    assert newest is not None
    assert newest.last is not None
    assert (newest.high_water, newest.last.offset) == (55, 54)


def test_nothing_is_committed_before_what_was_set_aside_is_safe() -> None:
    class Unsafe(Kept):
        def flush(self) -> None:
            raise LogUnavailableError("nothing is acknowledged")

    log = scripted_log()
    append_garbage(log)
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket, quarantine=Unsafe())
    take_all(partition, log)
    with pytest.raises(LogUnavailableError):
        partition.commit()
    assert commits.newest(bucket, 0) is None


@pytest.mark.parametrize("limits", [Limits(max_message_bytes=2_000), Limits(max_raw_bytes=20_000)])
def test_a_message_over_a_partitions_limits_is_set_aside(limits: Limits) -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    quarantine = Kept()
    partition = open_partition(log, open_bucket("memory://"), limits, quarantine)
    producer = ScriptedProducer(log)
    producer.begin()
    batch = rows_to_batch(producer.name, producer.incarnation, [Row(0, 0, 0, 0, 1_000, Ends.TERMINATED)])
    told = {"producer": producer.name, "incarnation": producer.incarnation, "sequence": 0}
    producer.append(encode_chunks(SPEC, batch, **told, encoding="zstd"))
    assert 2_000 < records(log)[-1].size < 20_000 < batch.nbytes
    take_all(partition, log)
    assert quarantine.records[-1] == (1, "oversized")


def test_a_commit_names_where_it_stands() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket, LIMITS)
    take_all(partition, log)
    committed = partition.commit()
    assert committed is not None
    commit, last, topic = committed.commit, records(log)[-1], log.describe(TOPIC)
    assert (commit.high_water, commit.limits) == (10, LIMITS)
    assert (commit.topic_id, commit.cluster_id) == (topic.topic_id, topic.cluster_id)
    assert commit.last == commits.LastRecord(9, last.timestamp_ms, record_digest(last))
    start = dict(records(log)[9].headers)["start"]
    assert start
    assert commit.producers["producer-0"] == commits.ProducerEntry(9, 0, 0, start.decode())


def test_a_record_is_known_by_its_key_its_value_and_its_headers() -> None:
    record = records(scripted_log())[1]
    headers = record.headers
    others = [
        *(replace(record, key=b"another"), replace(record, value=b"another"), replace(record, headers=headers[:-1])),
        *(replace(record, headers=(*headers, ("more", value))) for value in (None, b"")),
    ]
    assert len({record_digest(one) for one in (record, *others)}) == 6


def test_an_open_segment_lives_until_the_last_of_its_episodes_ends() -> None:
    log, bucket, producer = begun()
    producer.send(Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2))
    partition = open_partition(log, bucket)

    def live() -> tuple[int, int]:
        take_all(partition, log)
        committed = partition.commit()
        assert committed is not None
        at = commits.live_at(bucket, committed.commit)
        return len(at.segments), len(at.open)

    assert live() == (0, 1)
    producer.send(Row(0, 0, 1, 3, 1, Ends.TERMINATED))
    assert live() == (1, 1)
    producer.send(Row(1, 0, 1, 2, 1, Ends.TERMINATED))
    assert live() == (2, 0)


def test_a_commit_that_brings_no_rows_writes_none_again() -> None:
    log, bucket, producer = begun()
    producer.send(Row(0, 0, 0, 0, 3))
    store_all(log, bucket)
    append_tick(log)
    committed = store_all(log, bucket)
    assert committed is not None
    assert (committed.commit.open_added, committed.commit.open_removed) == ((), ())


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_lie_dead_in_an_open_segment_are_not_taken_for_those_of_the_next_episode(restarts: bool) -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    bucket = open_bucket("memory://")
    producer, other = ScriptedProducer(log), ScriptedProducer(log, "producer-1")
    producer.begin()
    other.begin()
    producer.send(Row(0, 0, 0, 0, 4))
    # So much of it lives that it is not written again.
    other.send(Row(0, 0, 0, 0, 2_000))
    store_all(log, bucket)
    if restarts:
        producer.begin()
    else:
        producer.send(Row(0, 0, 1, 4, 1, Ends.TERMINATED))
    producer.send(Row(0, int(not restarts), 0, 0, 2))
    committed = store_all(log, bucket)
    assert committed is not None
    assert [entry.rows for entry in commits.live_at(bucket, committed.commit).open] == [2, 1]
    producer.send(Row(0, int(not restarts), 1, 2, 1, Ends.TERMINATED))
    store_all(log, bucket)
    assert [episode["length"] for episode in stored_episodes(bucket)] == ([4, 3] if restarts else [5, 3])


def test_the_log_began_above_the_high_water_mark() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket, LIMITS)
    partition.skip_to(2)
    take_all(partition, log)
    partition.commit()
    assert partition.counters["offsets_lost"] == 2
    # The begin records are gone; their incarnations speak for themselves.
    assert [episode["incarnation"] for episode in stored_episodes(bucket)] == [0] * 5 + [1]


def test_rows_that_are_not_accounted_for_are_not_committed() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.counters["rows_read"] += 1
    with pytest.raises(CorruptStoreError, match=r"offset 10: 12 chunk rows were read, 11 are accounted for"):
        partition.commit()
    assert commits.newest(bucket, 0) is None


def test_a_damaged_open_segment_is_named() -> None:
    log = scripted_log()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    for record in records(log)[:5]:
        partition.take(record)
    committed = partition.commit()
    assert committed is not None
    name = committed.commit.open_added[0].name
    bucket.put(name, bucket.read(name).to_pybytes()[:-20])
    with pytest.raises(CorruptStoreError, match=name):
        open_partition(log, bucket)


def test_episodes_that_end_together_are_assembled_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_consumers.partition._GROUP_BYTES", 3_000)
    log, bucket, producer = begun()
    producer.send(*(Row(env, 0, 0, 0, 20) for env in range(6)))
    seen: list[int] = []
    store = ReplayStore(bucket, SPEC.stream, log.describe(TOPIC))
    partition = Partition(store, 0, Kept(), LIMITS, assembled=lambda episodes: seen.append(episodes.batch.num_rows))
    take_all(partition, log)
    partition.commit()
    assert seen == []
    producer.send(*(Row(env, 0, 1, 20, 1 + env, Ends.TERMINATED) for env in range(6)))
    take_all(partition, log)
    committed = partition.commit()
    assert committed is not None
    assert len(seen) > 1
    assert [entry.rows for entry in committed.commit.segments_added] == seen
    # What is told of the commit is told of all of them, and holds no step.
    assert committed.episodes is not None
    assert committed.episodes.length.tolist() == [21, 22, 23, 24, 25, 26]
    assert committed.episodes.whole.all()
    assert "observation" not in committed.episodes.batch.schema.names
    assert [episode["env"] for episode in stored_episodes(bucket)] == list(range(6))
    assert partition.counters["episodes_ended"] == 6


def test_episodes_of_long_texts_are_assembled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text may be longer than its space says, and lies in one message with the steps of others."""
    monkeypatch.setattr("penstock_consumers.partition._GROUP_BYTES", 1 << 16)
    spec = replace(SPEC, observation=Text(1))
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    bucket = open_bucket("memory://")
    append(log, encode_begin(spec, "producer-0", "once"), "producer-0")
    long = "x" * 100_000
    said = [[long, "a"], ["b"] * 501, [long, "c"], ["d", long]]
    lengths = [len(texts) - 1 for texts in said]
    seen: list[list[int]] = []

    def assembled(episodes: Episodes) -> None:
        seen.append(episodes.batch.column("env").to_pylist())

    def opened() -> Partition:
        store = ReplayStore(bucket, spec.stream, log.describe(TOPIC))
        return Partition(store, 0, Kept(), LIMITS, assembled=assembled)

    places = [SentRow(env=env, steps=steps) for env, steps in enumerate(lengths)]
    observation = np.array([text for texts in said for text in texts], object)
    for sequence, rows, texts in (
        (0, places, observation),
        (1, [SentRow(env=at, chunk=1, first_step=n, steps=1, ends=Ends.CUT) for at, n in enumerate(lengths)], None),
    ):
        batch = make_batch(spec, rows, values={} if texts is None else {"observation": texts})
        sent = encode_chunks(spec, batch, producer="producer-0", incarnation=0, sequence=sequence)
        append(log, sent, "producer-0")
        partition = opened()
        take_all(partition, log)
        partition.commit()
    # Each group is begun anew past 64 KiB.
    assert seen == [[0], [1, 2], [3]]
    found = [episode["observation"][:-2] for episode in stored_episodes(bucket)]
    assert found == [texts[:-1] for texts in said]


def test_the_rest_of_an_episode_that_grew_too_large_is_counted_and_the_next_stored() -> None:
    log, bucket, producer = begun()
    for chunk in range(5):
        producer.send(Row(0, 0, chunk, 10 * chunk, 10, Ends.TERMINATED if chunk == 4 else Ends.OPEN))
    producer.send(Row(0, 1, 0, 0, 2, Ends.TERMINATED))
    (row,) = check(rows_to_batch(producer.name, 0, [Row(0, 0, 0, 0, 10)]), SPEC).bytes.tolist()
    limits = Limits(max_episode_bytes=2 * row)
    for record in records(log):
        # Each commit is made by a consumer that knows only the store.
        partition = open_partition(log, bucket, limits)
        partition.take(record)
        partition.commit()
    told = [(each["length"], each["ends"], each["abort_reason"]) for each in stored_episodes(bucket)]
    assert told == [(30, Ends.ABORTED, "too large"), (2, Ends.TERMINATED, None)]
    counted = {name: partition.counters[name] for name in ("rows_orphan", "steps_orphan", "messages_quarantined")}
    assert counted == {"rows_orphan": 2, "steps_orphan": 20, "messages_quarantined": 0}


def test_pending_bytes_are_what_messages_take_of_memory() -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    partition = open_partition(log, open_bucket("memory://"))
    producer = ScriptedProducer(log)
    producer.begin()
    take_all(partition, log)
    assert partition.pending_bytes == 0
    append_garbage(log, bytes(5_000))
    take_all(partition, log)
    assert partition.pending_bytes >= 5_000
    producer.send(Row(0, 0, 0, 0, 1_000))
    before = partition.pending_bytes
    take_all(partition, log)
    size = records(log)[-1].size
    assert size < partition.pending_bytes - before < size + (64 << 10)
    # A message of one step is far larger in memory than on the wire.
    producer.send(Row(0, 0, 1, 1_000, 1))
    before = partition.pending_bytes
    take_all(partition, log)
    assert partition.pending_bytes - before > 3 * records(log)[-1].size
    # So is one that is compressed.
    batch = rows_to_batch(producer.name, producer.incarnation, [Row(0, 0, 2, 1_001, 2_000)])
    told = {"producer": producer.name, "incarnation": producer.incarnation, "sequence": producer.sequence}
    producer.append(encode_chunks(SPEC, batch, **told, encoding="zstd"))
    before = partition.pending_bytes
    take_all(partition, log)
    assert partition.pending_bytes - before > batch.nbytes > 3 * records(log)[-1].size
    partition.commit()
    assert partition.pending_bytes == 0


def test_the_first_valid_message_says_what_the_store_is_of() -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    bucket, quarantine = open_bucket("memory://"), Kept()
    ScriptedProducer(log, "producer-1", spec=stream("another")).begin()
    ScriptedProducer(log, "producer-0").begin()
    ScriptedProducer(log, "producer-2", spec=replace(SPEC, env={"id": "Other-v0"})).begin()
    partition = open_partition(log, bucket, quarantine=quarantine)
    take_all(partition, log)
    partition.commit()
    assert quarantine.records == [(0, "schema"), (2, "fingerprint")]
    found = manifest.load(bucket)
    assert found is not None
    assert found.spec == SPEC


def test_a_log_of_nothing_but_garbage_is_committed_without_a_manifest() -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    bucket = open_bucket("memory://")
    append_garbage(log)
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.commit()
    assert manifest.load(bucket) is None
    reloaded = open_partition(log, bucket)
    assert (reloaded.high_water, reloaded.counters["messages_quarantined"]) == (1, 1)


def test_messages_of_the_producers_own_making(log_with_real_fragments: MemoryLog) -> None:
    """Batches that are slices of larger ones, as a producer splits them, and compressed ones."""
    bucket = open_bucket("memory://")
    partition = open_partition(log_with_real_fragments, bucket, quarantine=(quarantine := Kept()))
    take_all(partition, log_with_real_fragments)
    partition.commit()
    assert quarantine.records == []
    assert stored_episodes(bucket) == reference_episodes(log_with_real_fragments, set())
    assert len(stored_episodes(bucket)) == 3


@pytest.fixture
def log_with_real_fragments() -> MemoryLog:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    rows = [
        *(Row(0, 0, chunk, 3 * chunk, 3, Ends.TERMINATED if chunk == 4 else Ends.OPEN) for chunk in range(5)),
        Row(0, 1, 0, 0, 2, Ends.CUT),
        Row(1, 0, 0, 0, 4, Ends.TRUNCATED),
    ]
    batch = rows_to_batch(producer.name, producer.incarnation, rows)
    for start, stop in ((0, 2), (2, 4), (4, 7)):
        encoded = encode_chunks(
            SPEC,
            batch.slice(start, stop - start),
            producer=producer.name,
            incarnation=producer.incarnation,
            sequence=producer.sequence,
            encoding="zstd" if start else None,
        )
        producer.append(encoded)
        producer.sequence += 1
    return log


def test_who_saw_the_store_empty_takes_on_what_others_left_open_there() -> None:
    """As a member does that has judged no message of its own so far."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    bucket = open_bucket("memory://")
    standby = ReplayStore(bucket, STREAM, log.describe(TOPIC))
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3))
    owner = open_partition(log, bucket)
    take_all(owner, log)
    owner.commit()
    assert Partition(standby, 0, Kept(), Limits()).open_episodes == 1


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_zombie_whose_open_segments_were_collected_is_fenced_and_not_told_of_damage(ahead: int) -> None:
    log, bucket, producer = begun()
    producer.send(Row(0, 0, 0, 0, 3))
    first = open_partition(log, bucket)
    take_all(first, log)
    first.commit()
    zombie, owner = (open_partition(log, bucket) for _ in range(2))
    for chunk in range(1, ahead + 1):
        producer.send(Row(0, 0, chunk, 3 * chunk, 3, Ends.TERMINATED if chunk == ahead else Ends.OPEN))
        take_all(owner, log)
        owner.commit()
    newest = commits.newest(bucket, 0)
    assert newest is not None
    assert collect(bucket, newest, 0.0).deleted
    take_all(zombie, log)
    with pytest.raises(FencedError):
        zombie.commit()


def test_who_loads_while_what_is_open_is_collected_is_fenced_and_not_told_of_damage() -> None:
    log, bucket, producer = begun()
    producer.send(Row(0, 0, 0, 0, 3))
    owner = open_partition(log, bucket)
    take_all(owner, log)
    owner.commit()
    producer.send(Row(0, 0, 1, 3, 3, Ends.TERMINATED))
    take_all(owner, log)

    with pytest.raises(FencedError):
        open_partition(log, overtaken(bucket, owner))
    assert open_partition(log, bucket).open_episodes == 0
