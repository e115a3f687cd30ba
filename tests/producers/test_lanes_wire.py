from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_producers.envs.infos import LeftOut
from penstock_producers.envs.lanes.buffers import Block, Spaces, share
from penstock_producers.envs.lanes.lane import Begin, Order, Result
from penstock_producers.envs.lanes.wire import Channel, read_order, read_result, write_order, write_result
from penstock_schemas.spaces import Box, Discrete, Text

if TYPE_CHECKING:
    from collections.abc import Iterator

N = 6
NUMBERS = Spaces(Box((2,), np.dtype(np.float32)), Discrete(3))
STRINGS = Spaces(Text(5), Text(5))
PLACES = st.lists(st.integers(0, N - 1), unique=True).map(sorted)
BEGINS = st.builds(
    Begin,
    st.none() | st.just('{"level": 1}'),
    st.booleans(),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FAULTS = st.lists(st.tuples(st.integers(0, N - 1), st.just("env_raised"), st.text(max_size=9)), max_size=2)
LEFT_OUT = st.lists(st.builds(LeftOut, st.text(max_size=3), st.integers(1, 9), st.text(max_size=9)), max_size=2)


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)  # noqa: FBT003 - it takes it by position only
    with ours, theirs:
        yield Channel(ours, 0.05), Channel(theirs)


def block(spaces: Spaces) -> Block:
    return Block(spaces, N, check_bounds=True)


@given(PLACES, st.booleans(), st.dictionaries(st.integers(0, N - 1), BEGINS, max_size=3), st.sampled_from([0, 1]))
def test_an_order_is_read_as_it_was_written_and_its_strings_with_it(
    step: list[int], hold: bool, begin: dict[int, Begin], kind: int
) -> None:
    spaces = (NUMBERS, STRINGS)[kind]
    ours, theirs = block(spaces), block(spaces)
    if spaces is STRINGS:
        ours.action[0][:] = [str(place) for place in range(N)]
    order = Order(step, begin, hold)
    described, raw = write_order(order, ours)
    assert bool(described) == bool(begin or spaces is STRINGS)
    assert read_order((described, raw), theirs) == order
    if spaces is STRINGS:
        assert theirs.action[0][step].tolist() == [str(place) for place in step]


@given(st.integers(0, N), st.integers(0, N), FAULTS, LEFT_OUT)
def test_a_result_is_read_as_it_was_written(
    steps: int, resets: int, faults: list[tuple[int, str, str]], unstorable: list[LeftOut]
) -> None:
    result = Result(steps, resets, tuple(faults), tuple(unstorable))
    described, raw = write_result(result, block(NUMBERS))
    assert bool(described) == bool(faults or unstorable)
    assert read_result((described, raw), block(NUMBERS)) == result


def test_strings_of_a_result_are_put_where_its_rows_are() -> None:
    ours, theirs = block(STRINGS), block(STRINGS)
    ours.part(2, 5).steps.observation.leaves[0][:2] = ["a", "b"]
    ours.part(2, 5).resets.observation.leaves[0][:1] = ["c"]
    result = Result(2, 1)
    assert read_result(write_result(result, ours.part(2, 5)), theirs.part(2, 5)) == result
    assert theirs.steps.observation.leaves[0].tolist() == [None, None, "a", "b", None, None]
    assert theirs.resets.observation.leaves[0].tolist() == [None, None, "c", None, None, None]


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 16, 1 << 16, 150_000])
def test_a_message_of_any_length_arrives_whole(channels: tuple[Channel, Channel], size: int) -> None:
    ours, theirs = channels
    raw = np.random.default_rng(0).bytes(size)
    assert ours.receive() is None
    theirs.send({"frame": size}, raw)
    theirs.send({}, b"next")
    assert ours.receive() == ({"frame": size}, raw)
    assert ours.receive() == ({}, b"next")


def test_who_does_not_read_or_answer_is_waited_for_so_long_and_no_longer(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"was not read within 0\.05 s"):
        ours.send({}, bytes(1 << 22))
    with pytest.raises(TimeoutError, match=r"nothing was sent within 0\.05 s"):
        ours.await_message(0.05)
    assert time.monotonic() - began >= 2 * 0.05
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()


def test_lanes_have_their_own_rows_of_one_block_in_shared_memory() -> None:
    memory = os.memfd_create("block")
    try:
        ours, theirs = (share(NUMBERS, N, memory, check_bounds=True) for _ in range(2))
        lane = theirs.part(2, 5)
        observation = np.ones(2, np.float32)
        assert lane.steps.store([0, 2], [(observation, 1.0, False, True, {})] * 2) == []
        assert lane.steps.done() == [0, 2]
        assert ours.steps.who.tolist() == [0, 0, 2, 4, 0, 0]
        assert ours.steps.truncated.tolist() == [False, False, True, True, False, False]
        assert ours.steps.reward.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
        ours.action[0][:] = range(N)
        assert lane.action[0].tolist() == [2, 3, 4]
    finally:
        os.close(memory)
