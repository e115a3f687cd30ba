from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.cli.info import format_info
from penstock_consumers.info import describe
from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import NESTED, TOPIC, Clock, Row, ScriptedProducer, open_partition, take_all
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket


@pytest.fixture
def bucket() -> Bucket:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    ends = [Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT]
    # Chunks of four steps: the last ones have the versions 1, 2, 2, 3, 1.
    writer.commit(0, episodes(writer.spec, [2, 5, 7, 9, 3], ends=ends), counters={"duplicates": 9})
    # Counters count from a partition's beginning, so that only the newest commit's are added up.
    writer.commit(0, high_water=40, counters={"duplicates": 11, "orphans": 1})
    writer.commit(2, episodes(writer.spec, [4], first=5), high_water=8, counters={"duplicates": 100})
    return bucket


def test_totals(bucket: Bucket) -> None:
    info = describe(bucket)
    assert (info["stream"], info["env"]) == ("test", {"id": "Test-v0"})
    assert info["action"] == {"type": "Discrete", "n": 3, "start": 0, "dtype": "int64"}
    assert (info["episodes"], info["steps"]) == (6, 30)
    assert info["ends"] == {
        "terminated": 2,
        "truncated": 1,
        "terminated_and_truncated": 1,
        "aborted": 1,
        "cut": 1,
    }
    assert info["counters"] == {"duplicates": 111, "orphans": 1}


def test_partitions(bucket: Bucket) -> None:
    first, second = describe(bucket)["partitions"]
    size = sum(len(bucket.read(name)) for name in bucket.list("segments/") if layout.partition_of(name) == 0)
    assert first == {
        "partition": 0,
        "commit": 1,
        "high_water": 40,
        "segments": 1,
        "episodes": 5,
        "steps": 26,
        "bytes": size,
        "open_steps": 0,
        "open_bytes": 0,
    }
    assert (second["partition"], second["commit"], second["high_water"], second["steps"]) == (2, 0, 8, 4)


def test_returns_by_the_last_version_leave_out_aborted_and_cut_episodes(bucket: Bucket) -> None:
    returns = {number: 1000.0 * number * length + length * (length - 1) / 2 for number, length in ((1, 5), (2, 7))}
    assert describe(bucket)["policies"] == [
        {"policy_version": 1, "episodes": 2, "mean_return": (1 + 20_006) / 2, "mean_length": 3.0},
        {"policy_version": 2, "episodes": 2, "mean_return": sum(returns.values()) / 2, "mean_length": 6.0},
    ]


def test_json_holds_it(bucket: Bucket) -> None:
    info = describe(bucket)
    assert json.loads(json.dumps(info)) == info


def test_the_text_names_what_counts(bucket: Bucket) -> None:
    text = format_info(describe(bucket))
    lines = [line.split() for line in text.splitlines()]
    assert ["stream", "test"] in lines
    assert ["env", "id=Test-v0"] in lines
    assert ["observation", "Box(4)", "float32"] in lines
    assert ["action", "Discrete(n=3,", "start=0)"] in lines
    assert "episodes     6 (2 terminated, 1 truncated, 1 terminated and truncated, 1 aborted, 1 cut)" in text
    assert ["1", "2", "10,003.50", "3.00"] in lines
    assert ["duplicates", "111"] in lines


def test_a_part_that_continues_another_is_no_whole_episode() -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log, spec=NESTED)
    producer.begin()
    producer.send(
        Row(0, 0, 0, 0, 4, Ends.CUT),
        Row(0, 1, 0, 0, 2, Ends.TERMINATED, continues=0),
        Row(0, 2, 0, 0, 3, Ends.TERMINATED),
    )
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    take_all(partition, log)
    committed = partition.commit()
    info = describe(bucket)
    assert (info["ends"]["cut"], info["ends"]["terminated"], info["episodes"]) == (1, 2, 3)
    (policy,) = info["policies"]
    assert (policy["episodes"], policy["mean_length"], policy["mean_return"]) == (1, 3.0, 6 + 3 / 8)
    text = format_info(info)
    assert "observation  Dict(place: Box(5) float64, said: Text(at most 40 characters))" in text
    assert "action       Tuple(Discrete(n=5, start=0), MultiBinary(2) int8)" in text
    assert "infos        info.place, info.note" in text
    # What a consumer exports leaves the parts out too.
    assert committed is not None
    registry = CollectorRegistry()
    ConsumerMetrics(registry).committed(committed, 0.1)
    labels = {"policy_version": "2"}
    assert registry.get_sample_value("penstock_consumer_episode_return_mean", labels) == 6 + 3 / 8
    assert registry.get_sample_value("penstock_consumer_episode_return_mean", {"policy_version": "1"}) is None


def test_an_empty_store_is_described() -> None:
    bucket = open_bucket("memory://")
    Writer(bucket, stream())
    info = describe(bucket)
    assert (info["episodes"], info["partitions"], info["policies"], info["counters"]) == (0, [], [], {})
    assert "steps        0" in format_info(info)


def test_no_store() -> None:
    with pytest.raises(StoreError, match=r"no store\.json there"):
        describe(open_bucket("memory://"))
