"""Fragments against a recorder that goes through them one env and one step at a time."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_producers.envs.rows import Abort, Answer, Rows
from penstock_producers.fragment import ActingPolicy, ClosedFragment, Fragment, values
from penstock_producers.fragment.split import TEXT_BYTES
from penstock_producers.publisher import message_room
from penstock_schemas.chunks import Exploration, check
from penstock_schemas.errors import EnvError, TooLargeError
from penstock_schemas.messages import encode_chunks
from penstock_schemas.spaces import Box
from tests.producers.recorder import (
    MODES,
    Recorder,
    Sent,
    answers,
    nested_spec,
    received,
    recording_of,
    recurrent_spec,
    rows_of,
    spec_of,
)

if TYPE_CHECKING:
    from penstock_schemas.stream import StreamSpec

POLICY = ActingPolicy(7, bytes(range(32)))
CAPACITY = 12


def tell(fragment: Fragment, told: Answer | Sent) -> None:
    """Tell a fragment what was sent or answered."""
    if isinstance(told, Sent):
        fragment.sent(told.env, [*told.drawn, *told.state])
    else:
        fragment.append(told)


class Pair:
    """A fragment and a recorder that are told the same."""

    def __init__(self, fragment: Fragment, recorder: Recorder) -> None:
        self.fragment = fragment
        self.recorder = recorder
        self.use(POLICY)

    def use(self, policy: ActingPolicy) -> None:
        self.fragment.use(policy)
        self.recorder.use(policy)

    def tell(self, told: Answer | Sent) -> None:
        if isinstance(told, Sent):
            tell(self.fragment, told)
            self.recorder.sent(told)
        else:
            self.fragment.append(told)
            self.recorder.append(told)

    def close(self) -> tuple[ClosedFragment, list[dict[str, Any]]]:
        """Close both, and hold the fragment to what was recorded."""
        closed, (expected, finished) = self.fragment.close(), self.recorder.close()
        assert rows_of(closed.batches) == expected
        for batch in received(closed.batches):
            check(batch, self.recorder.spec)
        assert closed.steps == sum(len(row["reward"]) for row in expected)
        assert closed.episode_length.tolist() == [episode.length for episode in finished]
        assert closed.episode_version.tolist() == [episode.version for episode in finished]
        np.testing.assert_allclose(closed.episode_return, [episode.total for episode in finished])
        return closed, expected


def filled(spec: StreamSpec, num_envs: int, steps: int, message_bytes: int, end: float = 0.1) -> ClosedFragment:
    fragment = Fragment(spec, num_envs, steps, message_bytes, recording_of(spec))
    fragment.use(POLICY)
    for told in islice(answers(spec, num_envs, "same step", np.random.default_rng(0), end), 2 * steps - 1):
        tell(fragment, told)
    return fragment.close()


@settings(max_examples=200, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 5),
    lengths=st.lists(st.integers(0, CAPACITY), min_size=1, max_size=6),
    end=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    fault=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
    longest=st.sampled_from([1, 2, 3, 100]),
    large_bytes=st.sampled_from([1, 1 << 30]),
    cut_steps=st.sampled_from([None, None, 1, 2, 3, 7]),
    spec=st.sampled_from([spec_of(()), spec_of(), spec_of((2, 2)), nested_spec(), recurrent_spec(), recurrent_spec()]),
    absent=st.sets(st.sampled_from(["log_prob", "place", "final_value"])),
    seed=st.integers(0, 1 << 32),
)
# Every episode ends with the fragment, so that the next one begins with nothing at hand, and gets nothing either.
@example("next step", 2, [2, 0, 3], 1.0, 0.0, 100, 1, None, spec_of(), set(), 0)
# A fragment that ends with reset rows.
@example("same step", 2, [1, 1, 2, 3], 1.0, 0.0, 100, 1, None, spec_of(), set(), 0)
# A chunk cut by steps whose episode goes on in the next fragment.
@example("same step", 2, [9, 9, 9], 0.0, 0.0, 2, 1, None, spec_of(), set(), 0)
# Aborts of episodes all of whose steps were published before.
@example("asynchronous", 4, [1] * 6, 0.0, 0.5, 100, 1, None, spec_of(), set(), 0)
# Parts that are cut with the fragment's last row.
@example("same step", 2, [3, 3, 3], 0.0, 0.0, 100, 1, 3, spec_of(), set(), 0)
def test_fragments_are_what_one_step_at_a_time_records(
    mode: str,
    num_envs: int,
    lengths: list[int],
    end: float,
    fault: float,
    longest: int,
    large_bytes: int,
    cut_steps: int | None,
    spec: StreamSpec,
    absent: set[str],
    seed: int,
) -> None:
    """From `large_bytes` on observations lie env by env."""
    room = TEXT_BYTES + spec.row_bytes + longest * spec.step_bytes + seed % spec.step_bytes
    with patch.object(values, "LARGE_BYTES", large_bytes):
        fragment = Fragment(spec, num_envs, 2 * CAPACITY, room, recording_of(spec), cut_steps)
    pair = Pair(fragment, Recorder(spec, longest, cut_steps))
    stream = answers(spec, num_envs, mode, np.random.default_rng(seed), end, fault)
    for number, length in enumerate(lengths):
        if number:
            left_out = frozenset(absent & {extra.name for extra in spec.extras if extra.nullable} if number % 2 else ())
            pair.use(ActingPolicy(7 + number, bytes([number]) * 32, Exploration.EPSILON, left_out))
        for told in islice(stream, length):
            pair.tell(told)
        pair.close()


def test_an_action_on_its_way_over_a_refresh_stays_with_the_policy_that_chose_it() -> None:
    spec, rng = spec_of(), np.random.default_rng(0)
    pair = Pair(Fragment(spec, 2, 8, 1 << 20), Recorder(spec, 100))
    stream = answers(spec, 2, "same step", rng, 0.0)
    pair.tell(next(stream))
    pair.tell(next(stream))  # both envs take an action of version 7
    both = next(stream)
    assert isinstance(both, Answer)
    assert both.steps is not None
    one, other = (_only(both.steps, env) for env in (0, 1))
    pair.tell(both._replace(steps=one))
    pair.close()
    pair.use(ActingPolicy(8, b"\1" * 32))
    pair.fragment.sent(one.env, [column[:1] for column in _drawn(spec, rng)])
    pair.recorder.sent(Sent(one.env, [column[:1] for column in _drawn(spec, np.random.default_rng(1))], []))
    pair.tell(both._replace(steps=other))
    closed = pair.fragment.close()
    assert [(row["env"], row["policy_version"]) for row in rows_of(closed.batches)] == [(1, 7)]


def _only(rows: Rows, env: int) -> Rows:
    at = slice(env, env + 1)
    return Rows(
        rows.env[at],
        tuple(leaf[at] for leaf in rows.observation),
        *(column[at] for column in (rows.reward, rows.terminated, rows.truncated, rows.first)),
    )


def _drawn(spec: StreamSpec, rng: np.random.Generator) -> list[Any]:
    told = list(islice(answers(spec, 2, "same step", rng, 0.0), 2))
    assert isinstance(told[1], Sent)
    return told[1].drawn


def test_many_refreshes_keep_only_the_policies_that_still_count() -> None:
    spec = spec_of()
    pair = Pair(Fragment(spec, 3, 8, 1 << 20), Recorder(spec, 100))
    stream = answers(spec, 3, "asynchronous", np.random.default_rng(5), 0.2)
    for version in range(100):
        pair.use(ActingPolicy(version, bytes([version]) * 32))
        for told in islice(stream, 4):
            pair.tell(told)
        pair.close()
    assert len(pair.fragment._policies) <= 4


def test_the_parts_of_a_cut_episode_join_to_its_return() -> None:
    spec = spec_of()
    fragments = [Fragment(spec, 1, 200, 1 << 20, None, cut_steps) for cut_steps in (None, 7)]
    for fragment in fragments:
        fragment.use(POLICY)
    ended = 0
    for told in islice(answers(spec, 1, "same step", np.random.default_rng(1), 0.03), 200):
        for fragment in fragments:
            tell(fragment, told)
    closed = [fragment.close() for fragment in fragments]
    assert closed[0].episode_return.tolist() == closed[1].episode_return.tolist()
    rows = rows_of(closed[1].batches)
    totals: list[float] = []
    for row in rows:
        if row["continues"] is None:
            totals.append(0.0)
        else:
            assert row["continues"] == row["episode"] - 1
            assert row["seed"] is None
        assert len(row["reward"]) <= 7
        totals[-1] += sum(row["reward"])
        ended += row["ends"] in {1, 2, 3}
    np.testing.assert_allclose(totals[:ended], closed[0].episode_return)
    assert ended > 1


def test_the_env_s_buffers_may_change_once_they_were_appended() -> None:
    spec = spec_of()
    pair = Pair(Fragment(spec, 2, 3, 1 << 20), Recorder(spec, 1000))
    drawn: list[Any] = []
    for told in islice(answers(spec, 2, "next step", np.random.default_rng(0), 0.0), 5):
        pair.tell(told)
        if isinstance(told, Sent):
            drawn = told.drawn
            continue
        rows = told.steps or told.resets
        assert rows is not None
        for array in (*rows.observation, rows.reward, *drawn):
            array.fill(99)
    pair.close()


def test_a_fragment_is_full_when_an_env_has_given_its_rows() -> None:
    spec = spec_of()
    fragment = Fragment(spec, 2, 3, 1 << 20)
    fragment.use(POLICY)
    stream = answers(spec, 2, "same step", np.random.default_rng(0), 0.0)
    told = list(islice(stream, 3))
    assert isinstance(told[0], Answer)
    assert isinstance(told[1], Sent)
    assert isinstance(told[2], Answer)
    assert told[2].steps is not None
    fragment.append(told[0])
    fast = told[2]._replace(steps=_only(told[2].steps, 1))
    for _ in range(3):
        assert not fragment.full
        fragment.sent(told[1].env, told[1].drawn)
        fragment.append(fast)
    assert fragment.full
    assert fragment.close().steps == 3
    assert not fragment.full


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_a_fragment_has_room_for_the_resets_of_an_env_that_fails_after_many_short_episodes(large_bytes: int) -> None:
    spec = spec_of()
    with patch.object(values, "LARGE_BYTES", large_bytes):
        pair = Pair(Fragment(spec, 1, 8, 1 << 20), Recorder(spec, 100))
    begun, sent, ended = islice(answers(spec, 1, "same step", np.random.default_rng(0), 1.0), 3)
    assert isinstance(ended, Answer)
    failed = ended._replace(steps=None, aborts=(Abort(0, "env_raised: step() raised"),))
    pair.tell(begun)
    for _ in range(7):
        pair.tell(sent)
        pair.tell(ended)
    assert not pair.fragment.full
    while not pair.fragment.full:
        pair.tell(failed)
    closed, _ = pair.close()
    assert closed.steps == 7
    # The next one has room for as many.
    pair.tell(failed)
    assert not pair.fragment.full


def test_a_fragment_of_which_nobody_acted_closes_empty() -> None:
    assert Fragment(spec_of(), 2, 3, 1 << 20).close().batches == ()


@pytest.mark.parametrize(
    ("spec", "num_envs", "steps", "end"),
    [
        (spec_of((84, 84, 4), np.uint8), 3, 100, 0.02),
        (spec_of((84, 84, 4), np.uint8), 2, 40, 1.0),
        (spec_of(()), 64, 700, 0.05),
        (spec_of((), np.uint8), 200, 100, 1.0),
        (spec_of((3,), np.float64, Box((5,), np.dtype(np.float16))), 7, 999, 0.0),
        (recurrent_spec(), 64, 200, 0.1),
        (recurrent_spec(), 50, 30, 1.0),
    ],
)
@pytest.mark.parametrize("limit", [16_384, 100_000, 1 << 20])
def test_split_keeps_every_row_in_messages_under_the_limit(
    spec: StreamSpec, num_envs: int, steps: int, end: float, limit: int
) -> None:
    room = message_room(spec, limit)
    if spec.row_bytes + spec.step_bytes > room - TEXT_BYTES:
        with pytest.raises(TooLargeError, match=f"holds {room - TEXT_BYTES}: raise --max-message-bytes"):
            Fragment(spec, num_envs, steps, room)
        return
    producer = "p" * 200
    sizes = []
    for batch in filled(spec, num_envs, steps, room, end).batches:
        encoded = encode_chunks(spec, batch, producer=producer, incarnation=(1 << 63) - 1, sequence=(1 << 63) - 1)
        sizes.append(encoded.size + len(producer))
    # The log's own framing of a record takes less than 100 bytes.
    assert max(sizes) <= limit - 100
    if len(sizes) > 1:
        # Nor are they needlessly many: two neighbours would not fit into one message.
        together = [one + other for one, other in pairwise(sizes)]
        assert min(together) > limit - 4096


def test_nothing_splits_into_nothing() -> None:
    fragment = Fragment(spec_of(), 1, 1, 1 << 20)
    fragment.use(POLICY)
    assert fragment.close().batches == ()


def test_a_step_that_does_not_fit_into_a_message_is_refused_by_size() -> None:
    spec = spec_of((84, 84, 4))
    one = spec.row_bytes + spec.step_bytes
    Fragment(spec, 1, 1, one + TEXT_BYTES)
    with pytest.raises(
        TooLargeError, match=rf"one step of the stream 'test' takes {one} bytes, a message holds {one - 1}"
    ):
        Fragment(spec, 1, 1, one + TEXT_BYTES - 1)


def test_reset_options_that_do_not_fit_into_a_message_are_refused() -> None:
    spec = spec_of()
    fragment = Fragment(spec, 1, 4, 4096)
    fragment.use(POLICY)
    reset, sent, answer = islice(answers(spec, 1, "next step", np.random.default_rng(3), 0.0), 3)
    assert isinstance(reset, Answer)
    assert isinstance(sent, Sent)
    assert isinstance(answer, Answer)
    assert reset.resets is not None
    options = np.array(["x" * 5000], object)
    with pytest.raises(EnvError, match="env 0: reset options of 5000 characters are too long: one step of the stream"):
        fragment.append(reset._replace(resets=reset.resets._replace(options=options)))
    # What was recorded before is there still, and what comes after it.
    fragment.append(reset)
    fragment.sent(sent.env, sent.drawn)
    fragment.append(answer)
    assert fragment.close().steps == 1


def test_long_reset_options_leave_room_for_fewer_steps_of_a_chunk() -> None:
    spec = spec_of()
    fragment = Fragment(spec, 2, 400, 1 << 14)
    fragment.use(POLICY)
    options = np.array(["ü" * 4_000, None], object)
    for at, told in enumerate(islice(answers(spec, 2, "next step", np.random.default_rng(3), 0.0), 601)):
        if isinstance(told, Sent):
            fragment.sent(told.env, told.drawn)
        elif at == 0:
            assert told.resets is not None
            fragment.append(told._replace(resets=told.resets._replace(options=options)))
        else:
            fragment.append(told)
    closed = fragment.close()
    assert closed.steps == 600
    rows = [row for batch in closed.batches for row in batch.to_pylist()]
    assert [row["reset_options"] for row in rows if row["chunk"] == 0] == options.tolist()
    assert all(batch.nbytes <= 1 << 14 for batch in closed.batches)
    # Another env's are as long as ever.
    longest = [max(len(row["reward"]) for row in rows if row["env"] == env) for env in (0, 1)]
    assert longest[0] < longest[1] == 300


def test_large_observations_are_laid_out_by_env_and_come_out_the_same() -> None:
    spec = spec_of((20, 20, 4), np.uint8)
    for mode in MODES:
        pair = Pair(Fragment(spec, 4, 9, 1 << 20, None, 5), Recorder(spec, 10**6, 5))
        stream = answers(spec, 4, mode, np.random.default_rng(2), 0.2, 0.1)
        for _ in range(12):
            for told in stream:
                pair.tell(told)
                if isinstance(told, Answer) and pair.fragment.full:
                    break
            pair.close()


def test_a_first_chunk_keeps_its_seed_and_options_over_an_empty_fragment() -> None:
    spec = spec_of()
    fragment = Fragment(spec, 1, 2, 1 << 20)
    fragment.use(POLICY)
    stream = answers(spec, 1, "next step", np.random.default_rng(3), 0.0)
    reset = next(stream)
    assert isinstance(reset, Answer)
    assert reset.resets is not None
    seeded = reset.resets._replace(seed=np.array([42]), options=np.array(['{"level":2}'], object))
    fragment.append(reset._replace(resets=seeded))
    assert fragment.close().batches == ()
    told = []
    for _ in range(2):
        sent, answer = next(stream), next(stream)
        assert isinstance(sent, Sent)
        assert isinstance(answer, Answer)
        fragment.sent(sent.env, sent.drawn)
        fragment.append(answer)
        (batch,) = fragment.close().batches
        told += batch.select(["chunk", "first_step", "seed", "reset_options"]).to_pylist()
    assert told == [
        {"chunk": 0, "first_step": 0, "seed": 42, "reset_options": '{"level":2}'},
        {"chunk": 1, "first_step": 1, "seed": None, "reset_options": None},
    ]
