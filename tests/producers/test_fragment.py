"""Fragments against a recorder that goes through them one env and one step at a time."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_producers.fragment import ActingPolicy, Fragment, split
from penstock_producers.publisher import chunk_bytes
from penstock_schemas.chunks import Exploration, check
from penstock_schemas.errors import TooLargeError
from penstock_schemas.messages import encode_chunks
from penstock_schemas.spaces import Box
from tests.producers.recorder import MODES, Recorder, answers, rows_of, spec_of

if TYPE_CHECKING:
    from penstock_schemas.stream import StreamSpec

POLICY = ActingPolicy(7, bytes(range(32)))
CAPACITY = 12


def filled(spec: StreamSpec, num_envs: int, steps: int, row_bytes: int, end: float = 0.1) -> pa.RecordBatch:
    fragment = Fragment(spec, num_envs, steps, row_bytes)
    for answer in islice(answers(spec, num_envs, "same step", np.random.default_rng(0), end), steps):
        for rows, drawn in answer:
            fragment.append(rows, drawn)
    return fragment.close(POLICY).batch


@settings(max_examples=200, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 5),
    lengths=st.lists(st.integers(0, CAPACITY), min_size=1, max_size=6),
    end=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    longest=st.sampled_from([1, 2, 3, 100]),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    seed=st.integers(0, 1 << 32),
)
# Every episode ends with the fragment, so that the next one begins with nothing at hand, and gets nothing either.
@example(mode="next step", num_envs=2, lengths=[2, 0, 3], end=1.0, longest=100, shape=(3,), seed=0)
# A fragment that ends with reset rows.
@example(mode="same step", num_envs=2, lengths=[1, 1, 2, 3], end=1.0, longest=100, shape=(3,), seed=0)
# A chunk cut by steps whose episode goes on in the next fragment.
@example(mode="same step", num_envs=2, lengths=[9, 9, 9], end=0.0, longest=2, shape=(3,), seed=0)
def test_fragments_are_what_one_step_at_a_time_records(
    mode: str, num_envs: int, lengths: list[int], end: float, longest: int, shape: tuple[int, ...], seed: int
) -> None:
    spec = spec_of(shape)
    row_bytes = spec.row_bytes + longest * spec.step_bytes + seed % spec.step_bytes
    fragment, recorder = Fragment(spec, num_envs, CAPACITY, row_bytes), Recorder(spec, longest)
    stream = answers(spec, num_envs, mode, np.random.default_rng(seed), end)
    for length in lengths:
        for answer in islice(stream, length):
            for rows, drawn in answer:
                fragment.append(rows, drawn)
                recorder.append(rows, drawn)
        closed = fragment.close(POLICY)
        expected, finished = recorder.close()
        assert rows_of(closed.batch) == expected
        check(closed.batch, spec)
        assert closed.steps == sum(len(row["reward"]) for row in expected)
        assert closed.episode_length.tolist() == [length for _, _, length in finished]
        np.testing.assert_allclose(closed.episode_return, [total for _, total, _ in finished])


def test_the_env_s_buffers_may_change_once_they_were_appended() -> None:
    spec = spec_of()
    fragment, recorder = Fragment(spec, 2, 3, 1 << 20), Recorder(spec, 1000)
    for answer in islice(answers(spec, 2, "next step", np.random.default_rng(0), 0.0), 3):
        for rows, drawn in answer:
            fragment.append(rows, drawn)
            recorder.append(rows, drawn)
            for array in (rows.observation, rows.reward, *(drawn or [])):
                array.fill(99)
    assert rows_of(fragment.close(POLICY).batch) == recorder.close()[0]


def test_a_fragment_names_the_policy_that_acted_in_it() -> None:
    spec = spec_of()
    fragment = Fragment(spec, 1, 4, 1 << 20)
    stream = answers(spec, 1, "next step", np.random.default_rng(0), 0.0)
    second = ActingPolicy(8, b"\1" * 32, Exploration.OFF)
    batches = []
    for policy in (POLICY, second):
        for answer in islice(stream, 3):
            for rows, drawn in answer:
                fragment.append(rows, drawn)
        batches.append(fragment.close(policy).batch)
    names = ("policy_version", "policy_digest", "exploration")
    told = [tuple(batch.column(name).to_pylist() for name in names) for batch in batches]
    assert told == [([7], [bytes(range(32))], [Exploration.ON]), ([8], [b"\1" * 32], [Exploration.OFF])]


@pytest.mark.parametrize(
    ("spec", "num_envs", "steps", "end"),
    [
        (spec_of((84, 84, 4), np.uint8), 3, 100, 0.02),
        (spec_of((84, 84, 4), np.uint8), 2, 40, 1.0),
        (spec_of(()), 64, 700, 0.05),
        (spec_of((), np.uint8), 200, 100, 1.0),
        (spec_of((3,), np.float64, Box((5,), np.dtype(np.float16))), 7, 999, 0.0),
    ],
)
@pytest.mark.parametrize("limit", [16_384, 100_000, 1 << 20])
def test_split_keeps_every_row_in_messages_under_the_limit(
    spec: StreamSpec, num_envs: int, steps: int, end: float, limit: int
) -> None:
    room = chunk_bytes(spec, limit)
    if spec.row_bytes + spec.step_bytes > room:
        with pytest.raises(TooLargeError, match=f"holds {room}: raise --max-message-bytes"):
            Fragment(spec, num_envs, steps, room)
        return
    batch = filled(spec, num_envs, steps, room, end)
    parts = split(batch, spec, room)
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    producer = "p" * 200
    sizes = []
    for part in parts:
        encoded = encode_chunks(spec, part, producer=producer, incarnation=(1 << 63) - 1, sequence=(1 << 63) - 1)
        sizes.append(encoded.size + len(producer))
    # The log's own framing of a record takes less than 100 bytes.
    assert max(sizes) <= limit - 100
    if len(parts) > 1:
        # Nor are they needlessly many: two neighbours would not fit into one message.
        together = [one + other for one, other in pairwise(sizes)]
        assert min(together) > limit - 4096


def test_nothing_splits_into_nothing() -> None:
    spec = spec_of()
    assert split(Fragment(spec, 1, 1, 1 << 20).close(POLICY).batch, spec, 1 << 20) == []


def test_a_step_that_does_not_fit_into_a_message_is_refused_by_size() -> None:
    spec = spec_of((84, 84, 4))
    one = spec.row_bytes + spec.step_bytes
    Fragment(spec, 1, 1, one)
    with pytest.raises(
        TooLargeError, match=rf"one step of the stream 'test' takes {one} bytes, a message holds {one - 1}"
    ):
        Fragment(spec, 1, 1, one - 1)


def test_a_chunk_that_does_not_fit_into_a_message_is_not_split_for_ever() -> None:
    spec = spec_of()
    batch = filled(spec, 2, 8, 1 << 20, end=0.0)
    with pytest.raises(TooLargeError, match="a chunk of the stream 'test' takes"):
        split(batch, spec, spec.row_bytes + 6 * spec.step_bytes)


def test_a_first_chunk_keeps_its_seed_over_an_empty_fragment() -> None:
    spec = spec_of()
    fragment = Fragment(spec, 1, 2, 1 << 20)
    stream = answers(spec, 1, "next step", np.random.default_rng(3), 0.0)
    ((reset, _),) = next(stream)
    seeded: Any = reset._replace(seed=np.array([42]))
    fragment.append(seeded, None)
    assert fragment.close(POLICY).batch.num_rows == 0
    told = []
    for _ in range(2):
        ((rows, drawn),) = next(stream)
        fragment.append(rows, drawn)
        told += fragment.close(POLICY).batch.select(["chunk", "first_step", "seed"]).to_pylist()
    assert told == [{"chunk": 0, "first_step": 0, "seed": 42}, {"chunk": 1, "first_step": 1, "seed": None}]
