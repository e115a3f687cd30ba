"""Recurrent states, extras that may be absent, final values and metrics: to which chunk and step each is bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.envs.rows import Abort, Answer, Rows
from penstock_producers.fragment import ActingPolicy, Fragment, Recording
from penstock_producers.fragment.split import TEXT_BYTES
from penstock_producers.publisher import message_room
from penstock_producers.rollout import _capacity
from penstock_schemas.chunks import Ends, Exploration, check
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError
from penstock_schemas.messages import HEADER_BYTES, encode_chunks
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import StreamSpec
from tests.producers.recorder import received, recording_of, recurrent_spec, rows_of
from tests.schemas.batches import make_batch, make_rows
from tests.schemas.random_streams import streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

FLOAT = np.dtype(np.float32)
VALUE = Column("final_value", (), FLOAT, nullable=True)
SPEC = StreamSpec(
    "test",
    Box((), FLOAT),
    Discrete(99),
    np.dtype(np.float64),
    (Column("log_prob", (), FLOAT, nullable=True), VALUE),
    (),
    (Column("state.h", (2,), FLOAT),),
    ("score",),
)
FIRST, SECOND = ActingPolicy(1, b"\1" * 32), ActingPolicy(2, b"\2" * 32)
NONE = float("nan")


class Played:
    """A fragment, and envs that are told step by step what to give; the n-th action of all is n, its state (n, -n)."""

    def __init__(
        self, num_envs: int = 1, *, message_bytes: int = 1 << 20, cut_steps: int | None = None, spec: StreamSpec = SPEC
    ) -> None:
        self.fragment = Fragment(spec, num_envs, 100, message_bytes, recording_of(spec), cut_steps)
        self.every = np.arange(num_envs, dtype=np.int32)
        self.action = 0
        self.use(FIRST)
        self.reset(*self.every)

    def use(self, policy: ActingPolicy) -> None:
        self.fragment.use(policy)

    def reset(self, *envs: int) -> None:
        self.fragment.append(self._answer(None, resets=self._rows(envs, first=True)))

    def send(self, *envs: int) -> None:
        """Envs take one more action each."""
        n = len(envs)
        taken = np.full(n, self.action)
        state = np.stack([taken, -taken], axis=1).astype(np.float32)
        self.fragment.sent(np.array(envs, np.int32), [taken, np.full(n, -0.5, np.float32), state])
        self.action += 1

    def recv(
        self, *envs: int, ends: int = 0, first: bool = False, final: float = NONE, score: float | None = NONE
    ) -> None:
        """Envs answer; a `score` of None stands for callbacks that measured nothing at all."""
        rows = self._rows(envs, ends=ends, first=first)
        metrics = None if score is None else np.full((len(envs), 1), score)
        rows = rows._replace(final=np.full(len(envs), final, np.float32), metrics=metrics)
        self.fragment.append(self._answer(rows))

    def step(self, **answer: Any) -> None:
        """One env acts, and answers."""
        self.send(0)
        self.recv(0, **answer)

    def abort(self, env: int = 0) -> None:
        self.fragment.append(self._answer(None)._replace(aborts=(Abort(env, "env_died"),)))

    def close(self) -> list[dict[str, Any]]:
        """The chunk rows; a state as its first number."""
        closed = self.fragment.close()
        for batch in received(closed.batches):
            check(batch, SPEC)
        return rows_of(closed.batches)

    def _rows(self, envs: Sequence[int], *, ends: int = 0, first: bool = False) -> Rows:
        n = len(envs)
        flags = [np.full(n, flag, np.bool_) for flag in (ends & Ends.TERMINATED, ends & Ends.TRUNCATED, first)]
        return Rows(np.array(envs, np.int32), (np.zeros(n, np.float32),), np.zeros(n), *flags)

    def _answer(self, steps: Rows | None, resets: Rows | None = None) -> Answer:
        return Answer(steps, (), resets, self.every, ())


def told(rows: Sequence[dict[str, Any]], *names: str) -> list[list[Any]]:
    return [[row[name] for name in names] for row in rows]


def test_a_chunk_has_the_state_before_its_first_step_over_borders_and_cuts() -> None:
    played = Played(cut_steps=3)
    for _ in range(4):
        played.step()
    assert told(played.close(), "ends", "action", "state.h") == [
        [Ends.CUT, [0, 1, 2], [0, 0]],
        [Ends.OPEN, [3], [3, -3]],
    ]
    played.step()
    played.step(ends=Ends.TERMINATED)
    played.reset(0)
    played.step()
    assert told(played.close(), "ends", "action", "state.h") == [
        [Ends.TERMINATED, [4, 5], [4, -4]],
        [Ends.OPEN, [6], [6, -6]],
    ]


def test_a_chunk_that_a_message_s_size_cut_off_has_its_own_state() -> None:
    played = Played(message_bytes=SPEC.row_bytes + 2 * SPEC.step_bytes + TEXT_BYTES)
    for _ in range(5):
        played.step()
    rows = played.close()
    assert told(rows, "action", "state.h") == [[[0, 1], [0, 0]], [[2, 3], [2, -2]], [[4], [4, -4]]]


def test_an_action_on_its_way_over_a_refresh_keeps_its_state_and_the_value_that_its_end_was_given() -> None:
    """Whoever gives the value knows by whom the action was chosen; the fragment is told of the step later, perhaps."""
    played = Played(2)
    played.send(0, 1)
    played.recv(1)
    assert told(played.close(), "env", "action", "state.h") == [[1, [0], [0, 0]]]
    played.use(SECOND)
    played.send(1)
    played.recv(0, 1, ends=Ends.TERMINATED, final=0.25)
    assert told(played.close(), "env", "policy_version", "action", "state.h", "final_value") == [
        [0, 1, [0], [0, 0], [0.25]],
        [1, 2, [1], [1, -1], [0.25]],
    ]


def test_an_abort_of_what_was_published_has_no_state() -> None:
    played = Played(2)
    played.send(0, 1)
    played.recv(0, 1)
    played.close()
    played.send(0, 1)
    played.abort(0)
    played.recv(1)
    assert told(played.close(), "env", "ends", "action", "state.h") == [
        [0, Ends.ABORTED, [], [0, 0]],
        [1, Ends.OPEN, [1], [1, -1]],
    ]


def test_the_value_of_an_end_stands_with_the_step_that_ended_the_episode() -> None:
    played = Played()
    played.step()
    played.step(ends=Ends.TRUNCATED, final=1.5)
    played.reset(0)
    played.step()
    assert told(played.close(), "final_value") == [[[None, 1.5]], [[None]]]


@pytest.mark.parametrize("order", ["same step", "next step"])
def test_metrics_stand_with_the_chunk_that_ended_the_episode(order: str) -> None:
    """An env resets in the answer that ends its episode, or with its next action."""
    played = Played()
    for number in range(2):
        played.step()
        played.close()
        played.step()
        played.step(ends=Ends.TRUNCATED, score=0.5 + number)
        if order == "same step":
            played.reset(0)
        else:
            played.step(first=True, score=None)
        played.step()
        rows = played.close()
        assert told(rows, "ends", "metric.score") == [[Ends.TRUNCATED, 0.5 + number], [Ends.OPEN, None]]


def test_what_is_measured_of_an_episode_that_its_env_did_not_end_is_not_kept() -> None:
    played = Played(2, cut_steps=2)
    for _ in range(2):
        played.send(0, 1)
        played.recv(0, 1, score=3.0)
    played.abort(1)
    rows = played.close()
    assert told(rows, "env", "ends", "metric.score") == [[0, Ends.CUT, None], [1, Ends.CUT, None]]


def test_an_extra_is_absent_where_the_policy_that_acted_leaves_it_out() -> None:
    played = Played(2)
    played.use(ActingPolicy(2, b"\2" * 32, Exploration.RANDOM, frozenset({"log_prob", "final_value"})))
    played.send(0, 1)
    played.recv(0, final=1.0, ends=Ends.TERMINATED)
    played.close()
    played.use(FIRST)
    played.reset(0)
    played.send(0)
    played.recv(0, 1)
    rows = played.close()
    assert told(rows, "env", "policy_version", "log_prob") == [[0, 1, [-0.5]], [1, 2, [None]]]


def test_a_value_that_a_policy_leaves_out_is_left_out() -> None:
    played = Played()
    played.use(ActingPolicy(2, b"\2" * 32, Exploration.RANDOM, frozenset({"final_value"})))
    played.step(ends=Ends.TERMINATED, final=1.0)
    assert told(played.close(), "log_prob", "final_value") == [[[-0.5], [None]]]


@pytest.mark.parametrize("name", ["action", "logits", "unheard_of"])
def test_a_policy_that_leaves_out_what_must_be_there_is_refused(name: str) -> None:
    fragment = Fragment(recurrent_spec(), 1, 1, 1 << 20, recording_of(recurrent_spec()))
    told = rf"policy version 3: it leaves out \['{name}'\], which the stream 'test' does not say may be absent: declare"
    with pytest.raises(PolicyError, match=told):
        fragment.use(ActingPolicy(3, b"\3" * 32, Exploration.ON, frozenset({name, "log_prob"})))


@pytest.mark.parametrize(
    "extras",
    [
        (),
        (VALUE, Column("log_prob", (), FLOAT)),
        (Column("final_value", (), FLOAT),),
        (Column("final_value", (2,), FLOAT, nullable=True),),
        (Column("final_value", (), np.dtype(np.int64), nullable=True),),
    ],
    ids=["none", "not the last", "never null", "shape", "dtype"],
)
def test_a_final_value_that_cannot_be_recorded_is_refused(extras: tuple[Column, ...]) -> None:
    spec = StreamSpec("test", Box((), FLOAT), Discrete(99), FLOAT, extras)
    recording = Recording(spec.action_columns, lambda values: values, "final_value")
    with pytest.raises(PolicyError, match=r"stream 'test': the values of last observations are recorded as 'final_va"):
        Fragment(spec, 1, 1, 1 << 20, recording)


def test_policies_may_change_within_a_fragment() -> None:
    played = Played(2)
    for version in range(2, 5):
        played.send(0, 1)
        played.recv(0)
        played.use(ActingPolicy(version, bytes([version]) * 32))
        played.recv(1)
    rows = played.close()
    assert told(rows, "env", "policy_version", "action") == [
        [env, version, [version - 1]] for env in (0, 1) for version in (1, 2, 3)
    ]


def test_a_fragment_of_large_states_is_short() -> None:
    """Every step's state is kept until it is known which of them begin a chunk."""
    plain, wide = (
        StreamSpec("test", Box((4,), FLOAT), Discrete(2), FLOAT, states=states)
        for states in ((), (Column("state.h", (1 << 14,), FLOAT),))
    )
    assert _capacity(plain, 64, 1000, 1 << 20) == 1000
    assert 64 * _capacity(wide, 64, 1000, 1 << 20) * (1 << 16) <= 64 << 20


def test_chunks_of_many_image_envs_are_long_for_as_long_as_there_is_room() -> None:
    """A chunk has one observation more than steps: of one step each, every image would be stored twice."""
    frames = StreamSpec("test", Box((84, 84, 4), np.dtype(np.uint8), (0.0,), (255.0,)), Discrete(2), FLOAT)
    capacity = {
        num_envs: _capacity(frames, num_envs, 256, message_room(frames, 1 << 20)) for num_envs in (1, 8, 64, 256, 4096)
    }
    assert capacity == {1: 245, 8: 35, 64: 32, 256: 9, 4096: 1}


def test_messages_of_large_states_stay_under_the_limit() -> None:
    extras = (Column("log_prob", (), FLOAT, nullable=True), VALUE)
    states = (Column("state.h", (2,), FLOAT), Column("state.wide", (900,), FLOAT))
    spec = StreamSpec("test", Box((), FLOAT), Discrete(99), np.dtype(np.float64), extras, (), states, ("score",))
    limit = 32_768
    fragment = Fragment(spec, 20, 100, message_room(spec, limit), recording_of(spec))
    fragment.use(FIRST)
    every, zeros = np.arange(20, dtype=np.int32), np.zeros(20)
    reset = Rows(every, (zeros,), zeros, zeros > 0, zeros > 0, zeros == 0)
    fragment.append(Answer(None, (), reset, every, ()))
    fragment.sent(every, [zeros, zeros, *(np.zeros((20, *state.shape)) for state in states)])
    fragment.append(Answer(reset._replace(first=zeros > 0), (), None, every, ()))
    batches = fragment.close().batches
    fit = message_room(spec, limit) // (spec.row_bytes + spec.step_bytes)
    assert [batch.num_rows for batch in batches] == [fit] * (20 // fit) + [20 % fit] * (20 % fit > 0)
    # A part of the rows is written as that part of their states.
    assert max(encoded_bytes(spec, batch) for batch in batches) <= limit - HEADER_BYTES
    assert fit > 1


def encoded_bytes(spec: StreamSpec, batch: pa.RecordBatch) -> int:
    value = encode_chunks(spec, batch, producer="p", incarnation=0, sequence=0).value
    assert value is not None
    return len(value)


@settings(max_examples=25, deadline=None)
@given(streams(), st.integers(0, 1 << 32))
def test_what_a_message_is_said_to_take_it_takes_at_most(spec: StreamSpec, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = make_rows(generator, envs=int(generator.integers(1, 40)), chunks=int(generator.integers(1, 4)))
    value = encoded_bytes(spec, make_batch(spec, rows, generator=generator))
    texts = sum(len((text or "").encode()) for row in rows for text in (row.reset_options, row.abort_reason))
    room = sum(spec.row_bytes + row.steps * spec.step_bytes for row in rows) + texts
    overhead = -message_room(spec, 0)
    assert value <= room + overhead - HEADER_BYTES
