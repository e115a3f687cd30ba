"""A consumer of long episodes, in a process of its own, so that its memory is nobody else's.

Every env's episode is open until the last message, all of them end in one commit. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.partition import Partition
from penstock_consumers.store import segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import list_column
from penstock_schemas.log import Record, TopicInfo
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Live
    from penstock_schemas.errors import RejectedError

SPEC = StreamSpec(
    stream="long",
    observation=Box((84, 84, 4), np.dtype(np.uint8)),
    action=Discrete(5),
    reward_dtype=np.dtype(np.float32),
    env={"id": "Long-v0"},
)
CHUNK_STEPS = 32
PRODUCER = "producer-0"


class Refusing:
    """A quarantine into which nothing belongs."""

    def add(self, record: Record, rejected: RejectedError) -> None:
        raise AssertionError(f"offset {record.offset}") from rejected

    def flush(self) -> None:
        """Nothing is under way."""


def run(folder: str, envs: int, steps: int, commit_bytes: int) -> dict[str, Any]:
    """Carry the episodes into a store in `folder`, with a restart half-way."""
    topic = topic_info()
    store = ReplayStore(open_bucket(folder), SPEC.stream, topic)
    limits = Limits(max_message_bytes=2 << 20)
    partition = Partition(store, 0, Refusing(), limits)
    before = memory_bytes("VmRSS")
    open_bytes = most_open = 0
    for offset, encoded in enumerate(messages(envs, steps)):
        partition.take(record(topic, offset, encoded))
        if partition.pending_bytes >= commit_bytes:
            partition.commit()
            open_bytes = sum(entry.bytes for entry in partition.live.open)
            most_open = max(most_open, len(partition.live.open))
        if offset == envs * (steps // CHUNK_STEPS) // 2:
            partition.commit()
            partition = Partition(store, 0, Refusing(), limits)
    partition.commit()
    most = memory_bytes("VmHWM")
    return {
        "open_bytes": open_bytes,
        "most_open_segments": most_open,
        "before": before,
        "most": most,
        "left_open": len(partition.live.open),
        "segments": len(partition.live.segments),
        "right": sum(map(int, right(store.bucket, partition.live))),
    }


def messages(envs: int, steps: int) -> Iterator[Encoded]:
    """A message for each chunk of each env."""
    yield encode_begin(SPEC, PRODUCER, "once")
    chunks = steps // CHUNK_STEPS
    for chunk in range(chunks):
        for env in range(envs):
            batch = chunk_row(env, chunk, Ends.TERMINATED if chunk == chunks - 1 else Ends.OPEN)
            sequence = chunk * envs + env
            yield encode_chunks(SPEC, batch, producer=PRODUCER, incarnation=0, sequence=sequence)


def chunk_row(env: int, chunk: int, ends: Ends) -> pa.RecordBatch:
    """One row; every pixel of an observation says its step, and its first the env."""
    first = chunk * CHUNK_STEPS
    place = {"env": env, "episode": 0, "chunk": chunk, "first_step": first, "ends": int(ends)}
    row: dict[str, Any] = place | {"policy_version": 1, "policy_digest": bytes(32), "exploration": 1}
    columns = {field.name: pa.array([row.get(field.name)], field.type) for field in SPEC.row_fields}
    observation = np.empty((CHUNK_STEPS + 1, 84, 84, 4), np.uint8)
    observation[:] = ((first + np.arange(len(observation))) % 256).astype(np.uint8)[:, None, None, None]
    observation[:, 0, 0, 0] = env
    values = {
        "observation": observation,
        "action": np.zeros(CHUNK_STEPS, np.int64),
        "reward": np.ones(CHUNK_STEPS, np.float32),
    }
    for column in SPEC.columns:
        offsets = np.array([0, len(values[column.name])], np.int32)
        columns[column.name] = list_column(column, values[column.name], offsets)
    return pa.RecordBatch.from_arrays([columns[name] for name in SPEC.schema.names], schema=SPEC.schema)


def right(bucket: Bucket, live: Live) -> Iterator[bool]:
    """Tell of each stored episode whether it is what was sent."""
    for entry in live.segments:
        batch = segments.read(bucket, entry, segments.episode_schema(SPEC))
        for row in range(batch.num_rows):
            pixels = batch.column("observation")[row].values.flatten().to_numpy().reshape(-1, 84 * 84 * 4)
            env, length = batch.column("env")[row].as_py(), batch.column("length")[row].as_py()
            step = np.arange(length + 1) % 256
            yield bool((pixels[:, 0] == env).all() and (pixels[:, [1, 5000, -1]] == step[:, None]).all())


def record(topic: TopicInfo, offset: int, encoded: Encoded) -> Record:
    return Record(
        topic=topic.name,
        partition=0,
        offset=offset,
        timestamp_ms=1_000 + offset,
        key=PRODUCER.encode(),
        value=encoded.value,
        headers=encoded.headers,
    )


def topic_info() -> TopicInfo:
    with MemoryLog() as log:
        log.create(SPEC.stream)
        return log.describe(SPEC.stream)


def memory_bytes(field: str, process: int | str = "self") -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(run(folder, *map(int, numbers))))
