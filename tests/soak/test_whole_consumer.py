"""A whole consumer over Kafka, with more open than it may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deploy.local.pod import Pod
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Live
from penstock_schemas.log.kafka import KafkaLog
from tests.consumers.long_episodes import CHUNK_STEPS, PRODUCER, SPEC, memory_bytes, messages, right
from tests.local.started import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket

ENVS, STEPS = 16, 4_000
MIB = 1 << 20
TOPIC = f"rollouts.{SPEC.stream}"
# A deadline for who hangs, not a speed.
SECONDS = 1800.0


def publish(log: KafkaLog) -> int:
    """Append every message, in order; answer the topic's end."""
    appender = log.appender()
    futures = [
        appender.append(TOPIC, 0, key=PRODUCER.encode(), value=encoded.value, headers=encoded.headers)
        for encoded in messages(ENVS, STEPS)
    ]
    offsets = [future.result().offset for future in futures]
    appender.close()
    assert offsets == list(range(1 + ENVS * STEPS // CHUNK_STEPS))
    return len(offsets)


def committed(bucket: Bucket) -> int:
    newest = commits.newest(bucket, 0)
    return newest.high_water if newest else 0


def history(bucket: Bucket) -> list[Live]:
    """What lived at each commit."""
    newest = commits.newest(bucket, 0)
    assert newest
    lives = [Live()]
    for number in range(newest.number + 1):
        lives.append(lives[-1].after(commits.read(bucket, 0, number)))
    return lives


@pytest.mark.soak
def test_a_whole_consumer_of_sixteen_long_episodes_of_images_fits_into_512_mib(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """A backlog of 1.8 GB, read as fast as it goes, all of it open at once; the episodes end in one commit.

    Its resident memory is measured, `VmHWM`, as it is of a part of it in `tests/consumers/test_open_rows.py`.
    """
    common = ["--stream", SPEC.stream, "--bootstrap-servers", kafka_bootstrap]
    consumer = Pod("consumer", "penstock_consumers", [*common, "--store", str(tmp_path / "store")], tmp_path)
    bucket = open_bucket(tmp_path / "store")
    with KafkaLog(kafka_bootstrap) as log:
        log.create(TOPIC)
        end = publish(log)

    def all_committed() -> bool:
        assert consumer.running, consumer.last_lines()
        return committed(bucket) == end

    with consumer:
        wait_until(all_committed, SECONDS, lambda: f"offset {end}; committed is {committed(bucket)}")
        assert consumer.pid
        most = memory_bytes("VmHWM", consumer.pid)
    lives = history(bucket)
    open_bytes = max(sum(entry.bytes for entry in live.open) for live in lives)
    print(f"\n{most / MIB:.0f} MiB at most, {open_bytes / MIB:.0f} MiB open")  # noqa: T201  (what the run is for)
    assert open_bytes > 1_700 * MIB
    assert not lives[-1].open
    assert list(right(bucket, lives[-1])) == [True] * ENVS
    assert most < 512 * MIB
