"""How fast one consumer is, on one core: from Kafka through judging and assembling to synced files and commits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from benchmarks.figure import Figure, paired
from benchmarks.pipeline import CARTPOLE, STREAM, TOPIC, Pipeline, envs
from penstock_consumers import heap
from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.upkeep import Upkeep, UpkeepSettings
from penstock_consumers.worker import Cadence, Worker
from penstock_producers.service import use_one_thread
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import decode, encode_begin, encode_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Log
    from penstock_schemas.stream import StreamSpec

_RECORDED_STEPS = 2_000_000
_PRODUCERS = 6
_ROUNDS = 5
_LEAST = 3_000_000
_DEAD_LETTERS = f"{TOPIC}.dead-letter"


def from_kafka(bootstrap_servers: str, folder: Path) -> Iterator[Figure]:
    """Measure in a process of its own, with the heap of a consumer's; it runs where this one does."""
    command = [sys.executable, "-m", "benchmarks.consumer", bootstrap_servers, str(folder)]
    told = subprocess.run(command, env=os.environ | heap.ENVIRONMENT, check=True, stdout=subprocess.PIPE).stdout  # noqa: S603  (our own)
    yield Figure(**json.loads(told))


def measure(log: Log, folder: Path) -> Figure:
    """Fill a topic with real rollouts, then read it into new stores, in turn with reading it alone."""
    topic = f"{TOPIC}.full"
    log.create(topic)
    log.create(_DEAD_LETTERS)
    steps = _fill(log, topic)
    rounds = iter(range(2 * _ROUNDS))
    ours, reference, ratio = paired(
        lambda: _consume(log, topic, folder / str(next(rounds))), lambda: steps / _read(log, topic), _ROUNDS
    )
    name = "one consumer, from Kafka to committed (reference: reading the records alone)"
    return Figure(name, round(ours), "steps/s", round(reference), round(ratio, 3), f">= {_LEAST:,}", ours >= _LEAST)


def _fill(log: Log, topic: str) -> int:
    """Publish the same real rollouts under several names, as so many producers would."""
    spec, batches = _record()
    appender = log.appender()
    for number in range(_PRODUCERS):
        name = f"bench-{number}"
        begin = encode_begin(spec, name, name)
        begun = appender.append(topic, 0, key=name.encode(), value=begin.value, headers=begin.headers).result()
        for sequence, batch in enumerate(batches):
            encoded = encode_chunks(spec, batch, producer=name, incarnation=begun.offset, sequence=sequence)
            appender.append(topic, 0, key=name.encode(), value=encoded.value, headers=encoded.headers).result()
    appender.close()
    return _PRODUCERS * sum(len(batch.column("reward").values) for batch in batches)


def _record() -> tuple[StreamSpec, list[pa.RecordBatch]]:
    with MemoryLog() as memory:
        memory.create(TOPIC)
        pipeline = Pipeline(memory, envs(CARTPOLE, 64))
        with pipeline.publisher:
            pipeline.run(_RECORDED_STEPS)
        reader = memory.reader()
        reader.seek(TOPIC, 0, 0)
        messages = []
        while records := reader.poll(0.0):
            messages += [decode(record, pipeline.spec) for record in records]
    return pipeline.spec, [message.batch for message in messages if message.batch is not None]


def _consume(log: Log, topic: str, folder: Path) -> float:
    """Read the topic into a new store; answer steps per second from the first commit to the last that was full.

    From the first commit, since joining a group and finding the brokers is no work of the pipeline's; to the last that
    was full, since the one after it waits a second for more than the log has. The store is deleted afterwards: a
    virtual machine takes up to ten times as long to write into memory that it never used before, which says nothing of
    a consumer that has run for a while.
    """
    bucket = open_bucket(folder)
    store = ReplayStore(bucket, STREAM, log.describe(topic))
    worker = Worker(
        log,
        store,
        _DEAD_LETTERS,
        group=f"bench-{folder.name}",
        limits=Limits(),
        # As a pod's: calls of the store beside the member that takes part in its group, and upkeep.
        cadence=Cadence(revoke_seconds=5.0),
        metrics=ConsumerMetrics(CollectorRegistry()),
        clock=time.monotonic,
        wall=time.time,
        upkeep=Upkeep(bucket, UpkeepSettings()),
    )
    reader = log.reader()
    end = reader.bounds(topic, 0)[1]
    reader.close()
    commits_seen: list[tuple[float, int]] = []
    high_water = 0
    trimmer = heap.Trimmer(time.monotonic)
    while high_water < end:
        worker.run_once()
        trimmer.run_once()
        if worker.committed.get(0, 0) > high_water:
            high_water = worker.committed[0]
            commits_seen.append((time.perf_counter(), _steps_committed(bucket)))
    worker.close()
    shutil.rmtree(folder)
    (started, before), (ended, after) = commits_seen[0], commits_seen[-2]
    return (after - before) / (ended - started)


def _steps_committed(bucket: Bucket) -> int:
    newest = commits.newest(bucket, 0)
    return newest.counters["steps_read"] if newest else 0


def _read(log: Log, topic: str) -> float:
    reader = log.reader()
    end = reader.bounds(topic, 0)[1]
    reader.seek(topic, 0, 0)
    started, at = time.perf_counter(), 0
    while at < end:
        for record in reader.poll(1.0):
            at = record.offset + 1
    elapsed = time.perf_counter() - started
    reader.close()
    return elapsed


if __name__ == "__main__":
    use_one_thread()
    with KafkaLog(sys.argv[1]) as kafka:
        sys.stdout.write(json.dumps(measure(kafka, Path(sys.argv[2])).to_json()))
