from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.cli.info import format_info
from penstock_consumers.info import describe
from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.outcomes import Outcome
from penstock_consumers.progress import Progress
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends, fixed
from penstock_schemas.errors import StoreError
from tests.consumers.messages import NESTED, Row, WrappedBucket, store_messages
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from tests.consumers.stores import Episodes


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


def test_sizes(bucket: Bucket) -> None:
    whole = sum(len(bucket.read(name)) for name in bucket.list("segments/"))
    assert describe(bucket)["bytes"] == {"segments": whole, "open": 0, "all": whole, "per_step": whole / 30}


def test_what_is_open_counts_as_such() -> None:
    bucket = open_bucket("memory://")
    store_messages(bucket, [Row(0, 0, 0, 0, 3, Ends.TERMINATED), Row(1, 0, 0, 0, 5)])
    ended, opened = (sum(len(bucket.read(name)) for name in bucket.list(f"{kind}/")) for kind in ("segments", "open"))
    assert describe(bucket)["bytes"] == {
        "segments": ended,
        "open": opened,
        "all": ended + opened,
        "per_step": ended / 3,
    }


def test_returns_by_the_last_version_leave_out_aborted_and_cut_episodes(bucket: Bucket) -> None:
    # The episodes 0 and 5, and 1 and 2: 1000 · number · length and the sum of the steps' numbers.
    returns = {1: [1.0, 20_006.0], 2: [5_010.0, 14_021.0]}
    assert describe(bucket)["policies"] == [
        {
            "policy_version": version,
            "episodes": 2,
            "mean_return": sum(of) / 2,
            "std_return": (of[1] - of[0]) / 2,
            "min_return": of[0],
            "max_return": of[1],
            "mean_length": length,
        }
        for (version, of), length in zip(returns.items(), (3.0, 6.0), strict=True)
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
    assert ["1", "2", "10,003.50", "10,002.50", "1.00", "20,006.00", "3.00"] in lines
    assert ["duplicates", "111"] in lines


def test_the_parts_of_a_cut_episode_are_one() -> None:
    rows = (
        Row(0, 0, 0, 0, 4, Ends.CUT),
        Row(0, 1, 0, 0, 2, Ends.TERMINATED, continues=0),
        Row(0, 2, 0, 0, 3, Ends.TERMINATED),
    )
    bucket = open_bucket("memory://")
    committed = store_messages(bucket, rows, spec=NESTED)
    info = describe(bucket)
    assert (info["ends"]["cut"], info["ends"]["terminated"], info["episodes"]) == (1, 2, 3)
    assert [
        (policy["policy_version"], policy["episodes"], policy["mean_length"], policy["mean_return"])
        for policy in info["policies"]
    ] == [(1, 1, 6.0, 6 / 8 + 2 + 1 / 8), (2, 1, 3.0, 6 + 3 / 8)]
    text = format_info(info)
    assert "observation  Dict(place: Box(5) float64, said: Text(at most 40 characters))" in text
    assert "action       Tuple(Discrete(n=5, start=0), MultiBinary(2) int8)" in text
    assert "infos        info.place, info.note" in text
    # What a consumer exports knows one commit alone, so it leaves parts out.
    assert committed is not None
    registry = CollectorRegistry()
    ConsumerMetrics(registry).committed(committed, 0.1)
    labels = {"policy_version": "2"}
    assert registry.get_sample_value("penstock_consumer_episode_return_mean", labels) == 6 + 3 / 8
    assert registry.get_sample_value("penstock_consumer_episode_return_mean", {"policy_version": "1"}) is None


def of_parts(rng: np.random.Generator, count: int) -> Episodes:
    """Episodes of two producers, two incarnations and two envs, some cut into parts, of which some are missing."""
    lengths = rng.integers(1, 30, count)
    stored = episodes(stream(), lengths)
    columns = {name: stored.batch.column(name) for name in stored.batch.schema.names}
    key = rng.integers(0, 8, count)
    number = np.zeros(count, np.int64)
    ends = rng.choice([1, 2, 3, 4, 8, 8, 8], count)
    continues: list[int | None] = [None] * count
    for of in range(8):
        at = np.flatnonzero(key == of)
        number[at] = np.arange(len(at)) + 10
        for before, now in pairwise(at):
            if ends[before] == Ends.CUT:
                continues[now] = number[before]
    columns |= {
        "producer": pa.array([f"producer-{of & 1}" for of in key]),
        "incarnation": pa.array(7 + (key >> 1 & 1)),
        "env": pa.array((key >> 2).astype(np.int32)),
        "episode": pa.array(number),
        "ends": pa.array(ends.astype(np.uint8)),
        "continues": pa.array(continues, pa.int64()),
        "closed_ms": pa.array(rng.integers(0, 10_000, count)),
        "abort_reason": pa.array(["gap" if end == Ends.ABORTED else None for end in ends]),
    }
    batch = pa.record_batch([columns[name] for name in stored.batch.schema.names], schema=stored.batch.schema)
    there = np.flatnonzero(rng.random(count) < 0.9)
    return replace(stored, batch=batch.take(pa.array(rng.permutation(there))))


def wholes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What `Outcome` tells, one episode after the other."""
    by_name = {(row["producer"], row["incarnation"], row["env"], row["episode"]): row for row in rows}
    found = []
    for row in rows:
        if not row["ends"] & (Ends.TERMINATED | Ends.TRUNCATED):
            continue
        parts: list[dict[str, Any] | None] = [row]
        while (part := parts[-1]) is not None and part["continues"] is not None:
            parts.append(by_name.get((part["producer"], part["incarnation"], part["env"], part["continues"])))
        there = [part for part in parts if part is not None]
        # One that was not cut lost its end.
        if len(there) == len(parts) and all(part["ends"] == Ends.CUT for part in there[1:]):
            sums = (sum(part[name] for part in there) for name in ("return", "length"))
            found.append((row["policy_version"][-1], *sums, row["closed_ms"]))
    return sorted(found)


@pytest.mark.parametrize("seed", range(20))
def test_whole_episodes_are_those_of_which_all_parts_are_there_wherever_they_lie(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stored = of_parts(rng, 120).batch
    ends = fixed(stored, "ends").copy()
    ends[(ends == Ends.CUT) & (rng.random(len(ends)) < 0.1)] = Ends.ABORTED
    stored = stored.set_column(stored.schema.names.index("ends"), stored.schema.field("ends"), pa.array(ends))
    outcome = Outcome()
    borders = np.sort(rng.integers(0, stored.num_rows, 5))
    batches = [
        pa.concat_batches([stored.slice(start, end - start)])
        for start, end in zip([0, *borders], [*borders, stored.num_rows], strict=True)
    ]
    told = [*(outcome.of(batch) for batch in batches), outcome.joined()]
    found = sorted(row for part in told for row in zip(*(values.tolist() for values in part), strict=True))
    expected = wholes(stored.to_pylist())
    assert found == expected
    assert len(expected) > 30
    assert sum(len(part.length) for part in told[:-1]) < len(expected)


def test_an_episode_of_which_a_part_lost_its_end_is_no_whole_one() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    stored = episodes(writer.spec, [3, 2, 3, 4], ends=[Ends.CUT, Ends.ABORTED, Ends.TERMINATED, Ends.TERMINATED])
    same = {"producer": pa.array(["a"] * 4), "env": pa.array([1] * 4, pa.int32())}
    columns = {name: stored.batch.column(name) for name in stored.batch.schema.names} | same
    columns["continues"] = pa.array([None, 0, 1, None], pa.int64())
    batch = pa.record_batch(list(columns.values()), schema=stored.batch.schema)
    writer.commit(0, replace(stored, batch=batch))
    assert [(of["episodes"], of["mean_length"]) for of in describe(bucket)["policies"]] == [(1, 4.0)]


@pytest.mark.parametrize("name", ["producer", "incarnation", "env", None])
def test_parts_are_of_one_env(name: str | None) -> None:
    """Another's part of the number that is continued is no part of it."""
    stored = episodes(stream(), [3, 4], first=10, ends=[Ends.CUT, Ends.TERMINATED])
    columns = {column: stored.batch.column(column) for column in stored.batch.schema.names}
    same = {"producer": pa.array(["a", "a"]), "incarnation": pa.array([7, 7]), "env": pa.array([1, 1], pa.int32())}
    other = {"producer": pa.array(["a", "b"]), "incarnation": pa.array([7, 8]), "env": pa.array([1, 2], pa.int32())}
    columns |= same | {"continues": pa.array([None, 10], pa.int64())} | ({name: other[name]} if name else {})
    outcome = Outcome()
    outcome.of(pa.record_batch(list(columns.values()), schema=stored.batch.schema))
    assert outcome.joined().length.tolist() == ([] if name else [7])


def test_returns_are_summed_up_alike_however_they_lie_in_batches() -> None:
    rng = np.random.default_rng(0)
    # Far from 0, where the squares of returns hold nothing of their spread.
    version, returns = rng.integers(0, 5, 1_000), 1e9 + rng.standard_normal(1_000)
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    for part in np.array_split(np.arange(1_000), 7):
        stored = episodes(writer.spec, np.ones(len(part)), first=int(part[0]))
        batch = stored.batch.set_column(
            stored.batch.schema.names.index("return"), stored.batch.schema.field("return"), pa.array(returns[part])
        )
        at = batch.schema.names.index("policy_version")
        versions = pa.ListArray.from_arrays(
            batch.column(at).offsets, pa.array(version[part]), type=batch.schema.field(at).type
        )
        writer.commit(0, replace(stored, batch=batch.set_column(at, batch.schema.field(at), versions)))
    for policy in describe(bucket)["policies"]:
        of = returns[version == policy["policy_version"]]
        assert policy["episodes"] == len(of)
        assert (policy["min_return"], policy["max_return"]) == (of.min(), of.max())
        assert policy["mean_return"] == pytest.approx(of.mean(), rel=1e-15)
        assert policy["std_return"] == pytest.approx(of.std(), rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_return_that_is_no_number_spoils_its_own_version_alone() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    for version, returned in ((1, np.nan), (2, np.inf), (3, 7.0)):
        stored = episodes(writer.spec, [2], first=version, version=version)
        at = stored.batch.schema.names.index("return")
        batch = stored.batch.set_column(at, stored.batch.schema.field(at), pa.array([returned]))
        writer.commit(0, replace(stored, batch=batch))
    nan, infinite, well = describe(bucket)["policies"]
    assert np.isnan([nan["mean_return"], nan["std_return"], infinite["std_return"]]).all()
    assert (infinite["mean_return"], well["mean_return"], well["std_return"]) == (np.inf, 7.0, 0.0)


def test_a_thousand_versions_are_a_short_table(bucket: Bucket) -> None:
    info = describe(bucket) | {
        "policies": [
            {"policy_version": version, "episodes": 1, "mean_return": 0.0, "mean_length": 1.0}
            for version in range(1, 1_001)
        ]
    }
    lines = format_info(info).splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("policy version"))
    shown = [int(line.split()[0].replace(",", "")) for line in lines[head + 1 : head + 21]]
    assert (shown[0], shown[-1]) == (1, 1_000)
    assert set(np.diff(shown)) <= {52, 53}
    assert lines[head + 21] == "20 of 1,000 versions; --json has all"


class Counting(WrappedBucket):
    """A bucket that counts the bytes that are read of opened objects, and refuses to give whole segments."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.bytes = 0

    def read(self, name: str) -> pa.Buffer:
        assert not name.startswith("segments/"), "a segment is read whole"
        return super().read(name)

    def open(self, name: str) -> pa.NativeFile:
        return pa.PythonFile(Counted(self, super().open(name)), mode="r")


class Counted:
    def __init__(self, counts: Counting, inner: pa.NativeFile) -> None:
        self.counts = counts
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.inner.read(size)
        self.counts.bytes += len(data)
        return data


def test_the_steps_are_not_read() -> None:
    counting = Counting(open_bucket("memory://"))
    writer = Writer(counting, stream())
    for number in range(4):
        writer.commit(0, episodes(writer.spec, [2_000, 3_000], first=2 * number))
    progress = Progress()
    info = describe(counting, progress)
    assert info["steps"] == 20_000
    # An item a chunk of four steps is needed to know the last one's version.
    assert 20_000 / 4 * 8 < counting.bytes < info["bytes"]["segments"] / 5
    assert (progress.total, progress.done) == (20_000, 20_000)


def test_an_empty_store_is_described() -> None:
    bucket = open_bucket("memory://")
    Writer(bucket, stream())
    info = describe(bucket)
    assert (info["episodes"], info["partitions"], info["policies"], info["counters"]) == (0, [], [], {})
    assert "steps        0" in format_info(info)


def test_no_store() -> None:
    with pytest.raises(StoreError, match=r"no store\.json there"):
        describe(open_bucket("memory://"))
