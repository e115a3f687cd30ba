"""Whatever a producer's messages hold, a learner's episodes hold, and verifying sees where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_consumers.replay import Replay
from penstock_consumers.replay.segment import given_dtypes
from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.verify import verify
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import item_values, list_valid, list_values
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from penstock_schemas.spaces import flatten
from tests.consumers.messages import (
    NESTED,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    append,
    open_partition,
    records,
    store_messages,
)
from tests.schemas.batches import make_batch, make_rows, replaced
from tests.schemas.random_spaces import same_bits
from tests.schemas.random_streams import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_consumers.replay import Episode
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

PRODUCER = "pod-0"


class Chunk(NamedTuple):
    """A chunk row as it went in: a row of a message."""

    batch: pa.RecordBatch
    row: int

    def plain(self, name: str) -> Any:
        return self.batch.column(name)[self.row].as_py()

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name).slice(self.row, 1)


def messages_of(spec: StreamSpec, generator: np.random.Generator) -> list[pa.RecordBatch]:
    """Messages of one producer; the rows of each env are divided among them at random."""
    envs, count = int(generator.integers(1, 4)), int(generator.integers(1, 6))
    rows = make_rows(generator, envs=envs, chunks=int(generator.integers(1, 9)), from_start=True)
    message = np.concatenate(
        [np.sort(generator.integers(0, count, sum(row.env == env for row in rows))) for env in range(envs)]
    )
    parts = [[row for row, at in zip(rows, message, strict=True) if at == number] for number in range(count)]
    return [make_batch(spec, part, generator=generator) for part in parts if part]


def ended_in(batches: Sequence[pa.RecordBatch]) -> dict[tuple[int, int], list[Chunk]]:
    """The chunks of each episode that ended, by env and number."""
    episodes: dict[tuple[int, int], list[Chunk]] = {}
    for batch in batches:
        for row, key in enumerate(zip(*(batch.column(name).to_pylist() for name in ("env", "episode")), strict=True)):
            episodes.setdefault(key, []).append(Chunk(batch, row))
    return {key: chunks for key, chunks in episodes.items() if chunks[-1].plain("ends") != Ends.OPEN}


def store_of(spec: StreamSpec, batches: Sequence[pa.RecordBatch], generator: np.random.Generator) -> Bucket:
    """A store of these messages, with commits and new beginnings of its consumer in between."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    incarnation = append(log, encode_begin(spec, PRODUCER, "a-start"), PRODUCER).offset
    for number, batch in enumerate(batches):
        encoded = encode_chunks(spec, batch, producer=PRODUCER, incarnation=incarnation, sequence=number)
        append(log, encoded, PRODUCER)
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    for record in records(log):
        partition.take(record)
        if generator.random() < 0.5:
            partition.commit()
            if generator.random() < 0.5:
                partition = open_partition(log, bucket)
    partition.commit()
    return bucket


def assert_holds(values: NDArray[Any], column: Column, chunks: Sequence[Chunk], dtype: np.dtype[Any]) -> None:
    """The items of a list column, chunk after chunk; where chunks overlap, the last one's last item only."""
    arrays = [chunk.column(column.name) for chunk in chunks]
    there = [np.ones(len(a.flatten()), np.bool_) if list_valid(a) is None else list_valid(a) for a in arrays]
    items = [list_values(array, column) for array in arrays]
    if column.overlap:
        there, items = ([*(part[:-1] for part in parts[:-1]), parts[-1]] for parts in (there, items))
    valid, expected = np.concatenate(there), np.concatenate(items).astype(dtype)
    assert isinstance(values, np.ma.MaskedArray) == column.nullable
    absent = np.ma.getmaskarray(values).reshape(len(values), -1) if len(values) else np.zeros((0, 1), np.bool_)
    assert (absent == ~valid[:, None]).all(), column.name
    assert same_bits(np.ma.getdata(values)[valid], expected[valid]), column.name
    assert values.shape == expected.shape


def assert_is(episode: Episode, chunks: Sequence[Chunk], spec: StreamSpec) -> None:
    given_as = given_dtypes(spec)
    values = {
        **dict(zip(spec.observation_columns, flatten(spec.observation, episode.observation), strict=True)),
        **dict(zip(spec.action_columns, flatten(spec.action, episode.action), strict=True)),
        spec.reward_column: episode.reward,
        **{extra: episode.extras[extra.name] for extra in spec.extras},
        **{info: episode.infos[info.name.removeprefix("info.")] for info in spec.infos},
    }
    for column, found in values.items():
        assert_holds(found, column, chunks, given_as[column.name])
    assert episode.chunk_first_step.tolist() == [chunk.plain("first_step") for chunk in chunks]
    assert episode.chunk_state.keys() == {state.name.removeprefix("state.") for state in spec.states}
    for state in spec.states:
        expected = np.concatenate([item_values(chunk.column(state.name), state) for chunk in chunks])
        assert same_bits(episode.chunk_state[state.name.removeprefix("state.")], expected), state.name
    assert episode.metrics == {name: chunks[-1].plain(f"metric.{name}") for name in spec.metrics}


@settings(max_examples=25, deadline=None)
@given(streams(), st.integers(0, 1 << 32))
def test_an_episode_holds_what_its_chunks_held_wherever_they_were_cut(spec: StreamSpec, seed: int) -> None:
    generator = np.random.default_rng(seed)
    batches = messages_of(spec, generator)
    expected = ended_in(batches)
    found = {
        (episode.env, episode.episode): episode
        for episode in Replay.open(store_of(spec, batches, generator)).episodes()
    }
    assert found.keys() == expected.keys()
    for key, episode in found.items():
        assert_is(episode, expected[key], spec)


@pytest.fixture
def log() -> MemoryLog:
    """An episode that ended, whose metrics were measured, and one that is open."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log, spec=NESTED)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 2), Row(1, 0, 0, 0, 2))
    producer.send(Row(0, 0, 1, 2, 3, Ends.TERMINATED))
    return log


@pytest.fixture
def bucket(log: MemoryLog) -> Bucket:
    """A store of that log: a commit a record."""
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    for record in records(log):
        partition.take(record)
        partition.commit()
    return bucket


def forge(bucket: Bucket, number: int, changed: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Replace the segment of a commit by an altered one, whose size and checksum the commit names."""
    commit = commits.read(bucket, 0, number)
    is_open = bool(commit.open_added)
    (entry,) = commit.open_added or commit.segments_added
    schema = segments.open_schema if is_open else segments.episode_schema
    altered = changed(segments.read(bucket, entry, schema(NESTED)))
    if is_open:
        forged = segments.write_rows(bucket, layout.open_segment(0, number), [altered])
    else:
        forged = segments.write_episodes(bucket, layout.segment(0, number), altered)
    added = {"open_added" if is_open else "segments_added": (forged,)}
    bucket.put(commit.name, replace(commit, **added).to_json())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state.memory", [[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]]),
        ("state.count", [0, 15]),
        ("metric.score", 1.5),
        ("metric.score", None),
        ("log_prob", [None, -0.25, None, None, -1.0]),
    ],
)
def test_verifying_finds_a_stored_column_that_is_not_the_log_s(
    log: MemoryLog, bucket: Bucket, name: str, value: Any
) -> None:
    assert verify(bucket, log).ok
    forge(bucket, 2, lambda batch: replaced(batch, name, [value]))
    report = verify(bucket, log)
    assert (report.episodes_wrong, report.steps_wrong, report.ok) == (1, 5, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state.memory", [1.0, 0.0, 5.0]),
        ("state.count", 1),
        ("metric.score", 1.0),
        ("log_prob", [-0.25, None]),
    ],
)
def test_verifying_finds_an_open_row_whose_column_is_not_the_log_s(
    log: MemoryLog, bucket: Bucket, name: str, value: Any
) -> None:
    forge(bucket, 1, lambda batch: replaced(batch, name, [batch.column(name)[0].as_py(), value]))
    report = verify(bucket, log)
    assert (report.open_rows_wrong, report.ok) == (1, False)


def test_what_is_read_of_a_state_is_a_view_of_the_store(bucket: Bucket) -> None:
    (episode,) = Replay.open(bucket).episodes()
    for state in episode.chunk_state.values():
        assert not state.flags.owndata
        assert not state.flags.writeable


def test_a_segment_of_a_stream_without_them_has_no_column_for_them() -> None:
    plain = replace(NESTED, states=(), metrics=())
    bucket = open_bucket("memory://")
    store_messages(bucket, [Row(0, 0, 0, 0, 2, Ends.TERMINATED)], spec=plain)
    (episode,) = Replay.open(bucket).episodes()
    assert (episode.chunk_state, episode.metrics) == ({}, {})
    names = segments.episode_schema(plain).names
    assert not [name for name in names if name.startswith(("state.", "metric."))]
