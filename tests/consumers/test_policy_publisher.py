from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_consumers import policies
from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import LogUnavailableError, PolicyError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.policies import FOLDER, MAX_INLINE_BYTES, decode_announcement, decode_policy

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Appended, Record

TOPIC = "policies.test"


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create(TOPIC, compacted=True)
    return log


def publisher(log: MemoryLog, bucket: Bucket) -> PolicyPublisher:
    return PolicyPublisher(log.appender(), TOPIC, bucket)


def weights(value: float) -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.full((2, 3), value, np.float32)}


def announced(log: MemoryLog) -> Record:
    reader = log.reader()
    reader.seek(TOPIC, 0, reader.bounds(TOPIC, 0)[0])
    return reader.poll(0.0)[-1]


def test_a_version_is_stored_and_announced(log: MemoryLog, bucket: Bucket) -> None:
    record = publisher(log, bucket).publish(weights(0.5), {"epsilon": 0.1})
    assert record.version == 1
    assert bucket.read(layout.POLICIES + record.object_name).to_pybytes() == record.to_safetensors()
    assert layout.policy_version(layout.POLICIES + record.object_name) == 1
    read = decode_policy(announced(log))
    assert (read.version, read.settings, read.digest) == (1, {"epsilon": 0.1}, record.digest)


def test_a_version_larger_than_a_message_is_stored_and_announced_by_name(log: MemoryLog, bucket: Bucket) -> None:
    record = publisher(log, bucket).publish({"w": np.zeros(MAX_INLINE_BYTES, np.uint8)}, {"epsilon": 0.1})
    told = decode_announcement(announced(log))
    assert (told.version, told.settings, told.inline) == (1, {"epsilon": 0.1}, None)
    stored = bucket.read(layout.POLICIES + told.object_name).to_pybytes()
    assert told.policy(stored).digest == record.digest


def test_publishers_one_after_another_go_on_counting(log: MemoryLog, bucket: Bucket) -> None:
    first = publisher(log, bucket)
    assert [first.publish(weights(at)).version for at in (1, 2)] == [1, 2]
    assert first.publish(weights(3), version=10).version == 10
    second = publisher(log, bucket)
    assert second.newest == 10
    assert second.publish(weights(4)).version == second.newest == 11
    assert decode_policy(announced(log)).version == 11


def test_no_version_goes_back(log: MemoryLog, bucket: Bucket) -> None:
    publisher(log, bucket).publish(weights(1), version=5)
    later = publisher(log, bucket)
    for version in (5, 4, 0):
        with pytest.raises(PolicyError, match=rf"policy version {version}: version 5 is in the store; versions only"):
            later.publish(weights(2), version=version)
    assert (later.newest, decode_policy(announced(log)).version) == (5, 5)


def test_a_store_keeps_policies_where_its_producers_look_for_them() -> None:
    assert layout.POLICIES == FOLDER


def test_what_is_no_policy_does_not_count(log: MemoryLog, bucket: Bucket) -> None:
    name = publisher(log, bucket).publish(weights(1)).object_name
    later = name.replace("000000000001", "000000000009")
    for stray in (f"{later}.bak", "000000000009-best.safetensors", "best.safetensors", f"kept/{later}", ".DS_Store"):
        bucket.put(layout.POLICIES + stray, b"stray")
    assert publisher(log, bucket).newest == 1


def test_a_version_that_the_log_did_not_take_is_not_used_again(log: MemoryLog, bucket: Bucket) -> None:
    ours = publisher(log, bucket)
    log.outage = True
    with pytest.raises(LogUnavailableError):
        ours.publish(weights(1))
    log.outage = False
    assert ours.publish(weights(2)).version == 2
    assert publisher(log, bucket).newest == 2


def test_a_log_that_does_not_acknowledge_is_named(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def append(self, topic: str, partition: int, **record: Any) -> Future[Appended]:
            return Future()

        def close(self, timeout: float = 10.0) -> None: ...

    monkeypatch.setattr(policies, "_TIMEOUT_SECONDS", 0.01)
    expected = rf"topic '{TOPIC}': policy version 1 was not acknowledged within 0\.01 s: check the log"
    with pytest.raises(LogUnavailableError, match=expected):
        PolicyPublisher(Silent(), TOPIC, bucket).publish(weights(1))
