"""A scripted producer, and what a test needs to carry its messages into a store and to read them back.

Every value says whose it is: an observation is (producer's number, incarnation, env, episode, step), so that any
mix-up of rows shows.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_consumers.partition import Partition
from penstock_consumers.store import commits, manifest, segments
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.columns import Column, item_column, list_column
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks, encode_end, encode_tick
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.partition import Committed
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Appended, Record

STREAM = "test"
TOPIC = f"rollouts.{STREAM}"
DEAD_LETTERS = f"dead-letters.{STREAM}"
ACTIONS = 5


def stream(name: str = STREAM) -> StreamSpec:
    """A stream whose observations have room for what names a step."""
    return StreamSpec(
        stream=name,
        observation=Box((5,), np.dtype(np.float64)),
        action=Discrete(ACTIONS),
        reward_dtype=np.dtype(np.float32),
        extras=(Column("logits", (2,), np.dtype(np.float32)),),
        env={"id": "Test-v0"},
    )


SPEC = stream()
# A Dict with text for an observation, a Tuple for an action, an extra and infos that are there at some steps only, a
# recurrent state, metrics.
NESTED = replace(
    SPEC,
    observation=Dict((("place", Box((5,), np.dtype(np.float64))), ("said", Text(40)))),
    action=Tuple((Discrete(ACTIONS), MultiBinary((2,)))),
    infos=(
        Column("info.place", (3,), np.dtype(np.int16), overlap=True, nullable=True),
        Column("info.note", (), np.dtype(object), overlap=True, nullable=True),
    ),
    extras=(*SPEC.extras, Column("log_prob", (), np.dtype(np.float32), nullable=True)),
    states=(Column("state.memory", (3,), np.dtype(np.float32)), Column("state.count", (), np.dtype(np.int64))),
    metrics=("score", "laps"),
)


class Clock:
    """A clock that stands until it is told to go on; in seconds."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Row:
    """One chunk row."""

    env: int
    episode: int
    chunk: int
    first_step: int
    length: int
    ends: Ends = Ends.OPEN
    reason: str | None = None
    seed: int | None = None
    continues: int | None = None


def rows_to_batch(producer: str, incarnation: int, rows: Sequence[Row], spec: StreamSpec = SPEC) -> pa.RecordBatch:
    """Make the batch of a message; its values follow from the rows' places."""
    columns: dict[str, Any] = {
        name: pa.array([getattr(row, name) for row in rows], spec.schema.field(name).type)
        for name in ("env", "episode", "chunk", "first_step", "seed", "continues")
    }
    columns |= {
        "ends": pa.array([int(row.ends) for row in rows], pa.uint8()),
        "abort_reason": pa.array([row.reason for row in rows], pa.string()),
        "reset_options": pa.array(
            [None if row.seed is None else f'{{"seed":{row.seed}}}' for row in rows], pa.string()
        ),
        "policy_version": pa.array([version(row) for row in rows]),
        "policy_digest": pa.array([digest(version(row)) for row in rows], pa.binary(32)),
        "exploration": pa.array([int(Exploration.ON)] * len(rows), pa.uint8()),
    }
    places_from = [Place(int(producer.rpartition("-")[2]), incarnation, row.env, row.episode, 0) for row in rows]
    for state in spec.states:
        held = [VALUES[state.name](at._replace(step=row.first_step)) for at, row in zip(places_from, rows, strict=True)]
        columns[state.name] = item_column(state, np.array(held, state.dtype))
    for metric in spec.metric_columns:
        columns[metric.name] = pa.array(
            [
                VALUES[metric.name](at._replace(step=row.first_step + row.length)) if by_env(row) else None
                for at, row in zip(places_from, rows, strict=True)
            ],
            metric.item_type,
        )
    for column in spec.columns:
        places = [
            [at._replace(step=row.first_step + step) for step in range(row.length + column.overlap)]
            for at, row in zip(places_from, rows, strict=True)
        ]
        items = [VALUES[column.name](place) for row in places for place in row]
        offsets = np.cumsum([0, *map(len, places)]).astype(np.int32)
        columns[column.name] = _list_column(column, items, offsets)
    return pa.record_batch([columns[name] for name in spec.schema.names], schema=spec.schema)


def by_env(row: Row) -> bool:
    """Whether the env ends the episode with this row."""
    return bool(row.ends & (Ends.TERMINATED | Ends.TRUNCATED))


class Place(NamedTuple):
    """What names a step; of a metric, the last observation of its episode."""

    producer: int
    incarnation: int
    env: int
    episode: int
    step: int


# What a column holds at a step; None where it is null.
VALUES: dict[str, Callable[[Place], Any]] = {
    "observation": list,
    "observation.place": list,
    "observation.said": lambda at: f"é{at.env} {at.episode} {at.step}",
    "action": lambda at: (at.env + at.step) % ACTIONS,
    "action.0": lambda at: (at.env + at.step) % ACTIONS,
    "action.1": lambda at: [at.step % 2, at.env % 2],
    "reward": lambda at: at.episode + at.step / 8,
    "logits": lambda at: [at.env, -at.step],
    "log_prob": lambda at: -at.step / 4 if (at.env + at.step) % 3 else None,
    "state.memory": lambda at: list(at)[2:],
    "state.count": lambda at: at.step * 7,
    "metric.score": lambda at: at.episode + at.step / 4,
    "metric.laps": lambda at: float(at.step) if at.step % 2 else None,
    "info.place": lambda at: list(at)[2:] if (at.episode + at.step) % 3 else None,
    "info.note": lambda at: f"漢{at.step}" if at.step % 2 else None,
}


def _list_column(column: Column, items: Sequence[Any], offsets: NDArray[np.int32]) -> pa.ListArray:
    valid = np.array([item is not None for item in items], np.bool_)
    if column.is_text:
        values: NDArray[Any] = np.array(items, object)
    else:
        absent = np.zeros(column.shape, column.dtype)
        values = np.array([absent if item is None else item for item in items], column.dtype)
        values = values.reshape(-1, *column.shape)
    return list_column(column, values, offsets, valid if column.nullable else None)


def version(row: Row) -> int:
    """The policy version of a chunk."""
    return row.episode + row.chunk


def digest(policy_version: int) -> bytes:
    """The digest of that version's weights."""
    return hashlib.sha256(b"%d" % policy_version).digest()


def append(log: MemoryLog, encoded: Encoded, key: str, partition: int = 0, topic: str = TOPIC) -> Appended:
    """Append an encoded record as a producer does."""
    appender = log.appender()
    try:
        return appender.append(
            topic, partition, key=key.encode(), value=encoded.value, headers=encoded.headers
        ).result()
    finally:
        appender.close()


def append_tick(log: MemoryLog, partition: int = 0) -> Appended:
    """Append a tick."""
    return append(log, encode_tick(), "tick", partition)


def append_garbage(log: MemoryLog, value: bytes = b"garbage", partition: int = 0) -> Appended:
    """Append a record that is no message."""
    return append(log, Encoded(value, ()), "garbage", partition)


class ScriptedProducer:
    """Appends begin, chunks and end records of chosen rows."""

    def __init__(self, log: MemoryLog, name: str = "producer-0", partition: int = 0, spec: StreamSpec = SPEC) -> None:
        self.log = log
        self.name = name
        self.partition = partition
        self.spec = spec
        self.incarnation = -1
        self.sequence = 0

    def begin(self) -> int:
        """Begin an incarnation; gives its number."""
        self.incarnation = self.append(encode_begin(self.spec, self.name, uuid.uuid4().hex)).offset
        self.sequence = 0
        return self.incarnation

    def encode(self, *rows: Row, sequence: int | None = None, incarnation: int | None = None) -> Encoded:
        """Encode a message of rows without sending it; the next in sequence unless told otherwise."""
        of = self.incarnation if incarnation is None else incarnation
        return encode_chunks(
            self.spec,
            rows_to_batch(self.name, of, rows, self.spec),
            producer=self.name,
            incarnation=of,
            sequence=self.sequence if sequence is None else sequence,
        )

    def send(self, *rows: Row) -> Appended:
        """Append the next message in sequence."""
        appended = self.append(self.encode(*rows))
        self.sequence += 1
        return appended

    def skip(self) -> None:
        """Lose a message: its sequence number is used, and it never reaches the log."""
        self.sequence += 1

    def end(self, reason: str = "stopped") -> Appended:
        """Append the end record."""
        encoded = encode_end(producer=self.name, incarnation=self.incarnation, sequence=self.sequence, reason=reason)
        self.sequence += 1
        return self.append(encoded)

    def append(self, encoded: Encoded) -> Appended:
        """Append what was encoded before, or elsewhere."""
        return append(self.log, encoded, self.name, self.partition)


class WrappedBucket:
    """A bucket behind which another does the work; what a test wants otherwise it overrides."""

    def __init__(self, inner: Bucket) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Every operation comes by here."""
        return operation(*arguments)

    def create(self, name: str, data: bytes) -> bool:
        created: bool = self.operate(self.inner.create, name, data)
        return created

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        self.operate(self.inner.put, name, *pieces)

    def read(self, name: str) -> pa.Buffer:
        return self.operate(self.inner.read, name)

    def list(self, prefix: str) -> Iterable[str]:
        names: Iterable[str] = self.operate(self.inner.list, prefix)
        return names

    def folders(self, prefix: str) -> Iterable[str]:
        names: Iterable[str] = self.operate(self.inner.folders, prefix)
        return names

    def leftovers(self, prefix: str = "") -> Iterable[tuple[str, float]]:
        found: Iterable[tuple[str, float]] = self.operate(self.inner.leftovers, prefix)
        return found

    def open(self, name: str) -> pa.NativeFile:
        return self.operate(self.inner.open, name)

    def delete(self, name: str) -> None:
        self.operate(self.inner.delete, name)

    def modified(self, name: str) -> float:
        modified: float = self.operate(self.inner.modified, name)
        return modified


class Kept:
    """A quarantine that remembers."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str]] = []

    def add(self, record: Record, rejected: RejectedError) -> None:
        self.records.append((record.offset, rejected.reason))

    def flush(self) -> None:
        """Nothing is under way."""


def records(log: MemoryLog, partition: int = 0, topic: str = TOPIC) -> list[Record]:
    """Everything that a partition of the log holds."""
    reader = log.reader()
    start, end = reader.bounds(topic, partition)
    reader.seek(topic, partition, start)
    found: list[Record] = []
    while len(found) < end - start:
        found += reader.poll(0)
    reader.close()
    return found


def open_partition(
    log: MemoryLog, bucket: Bucket, limits: Limits | None = None, quarantine: Kept | None = None, partition: int = 0
) -> Partition:
    """A partition at the newest commit in the bucket."""
    store = ReplayStore(bucket, STREAM, log.describe(TOPIC))
    return Partition(store, partition, quarantine or Kept(), limits or Limits())


def take_all(partition: Partition, log: MemoryLog) -> None:
    """Judge all that the log holds from the partition's high-water mark on."""
    for record in records(log, partition.partition):
        if record.offset >= partition.high_water:
            partition.take(record)


def store_all(log: MemoryLog, bucket: Bucket) -> Committed | None:
    """Judge and commit all that a log holds; what that came to."""
    partition = open_partition(log, bucket)
    take_all(partition, log)
    return partition.commit()


def store_messages(bucket: Bucket, *messages: Iterable[Row], spec: StreamSpec = SPEC) -> Committed | None:
    """Store what one producer says in messages of rows; what that came to."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log, spec=spec)
    producer.begin()
    for rows in messages:
        producer.send(*rows)
    return store_all(log, bucket)


def stored_episodes(bucket: Bucket, partitions: Iterable[int] = (0,)) -> list[dict[str, Any]]:
    """Every episode that lives at the newest commits, as plain values, sorted by its key."""
    return sorted(_stored(bucket, partitions), key=key_of)


def key_of(episode: dict[str, Any]) -> tuple[str, int, int, int]:
    """What names an episode."""
    return episode["producer"], episode["incarnation"], episode["env"], episode["episode"]


def _stored(bucket: Bucket, partitions: Iterable[int]) -> Iterator[dict[str, Any]]:
    for partition in partitions:
        newest = commits.newest(bucket, partition)
        found = manifest.load(bucket)
        if newest is None or found is None:
            continue
        for entry in commits.live_at(bucket, newest).segments:
            yield from segments.read(bucket, entry, segments.episode_schema(found.spec)).to_pylist()
