"""A policy behind forwards of one size, in which each row has its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock_producers.evaluate.placed import Placed
from penstock_producers.evaluate.run import Evaluator
from penstock_producers.policy.base import Actions, Inputs
from penstock_schemas.chunks import Exploration
from penstock_schemas.policies import PolicyRecord
from tests.producers.evaluation_zoo import NAME

if TYPE_CHECKING:
    from penstock_producers.policy import Policy


class Forwards:
    """Notes what it is given; answers each row with its value, and with its place in the batch."""

    def __init__(self) -> None:
        self.seen: list[Inputs] = []

    def act(self, inputs: Inputs) -> Actions:
        self.seen.append(inputs)
        (values,) = inputs.observation
        return Actions((values, np.arange(len(values))), (3 * values,), (inputs.state[0] + 1,))


@given(st.integers(1, 8), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20, unique=True))
def test_each_row_is_computed_at_its_place_and_answered_in_its_order(batch: int, keys: list[int]) -> None:
    forwards = Forwards()
    placed = Placed(cast("Policy", forwards), batch)
    values = np.arange(len(keys), dtype=np.float32) + 1
    there = np.arange(len(keys)) % 2 == 0
    placed.place(np.array(keys, np.int64))
    drawn, sent, state = placed.act(Inputs((values,), ((10 * values, there),), (values[:, None],)))
    assert drawn[0].tolist() == values.tolist()
    assert drawn[1].tolist() == [key % batch for key in keys]
    assert sent[0].tolist() == (3 * values).tolist()
    assert state[0].tolist() == (values[:, None] + 1).tolist()
    for inputs in forwards.seen:
        (observed,) = inputs.observation
        assert len(observed) == batch
        # What fills it up are rows that there are, and the parts of a row stay together.
        rows = observed.astype(int) - 1
        np.testing.assert_array_equal(observed, values[rows])
        np.testing.assert_array_equal(inputs.infos[0][0], 10 * observed)
        np.testing.assert_array_equal(inputs.infos[0][1], there[rows])
        np.testing.assert_array_equal(inputs.state[0], observed[:, None])
    # No more forwards than the fullest place asks for.
    assert len(forwards.seen) == np.bincount([key % batch for key in keys]).max()


def test_all_else_is_the_policys_own() -> None:
    made: Any = Evaluator(NAME, [0]).describe("test", "actor-critic")[1]
    placed = Placed(made, 4)
    assert (placed.recording, placed.extras, placed.states) == (made.recording, made.extras, made.states)
    assert (placed.pipeline, placed.mapping, placed.absent) == (made.pipeline, made.mapping, made.absent)
    made.exploration = Exploration.OFF
    assert placed.exploration is Exploration.OFF
    weights = {name: value.numpy() * 2 for name, value in made.module.state_dict().items()}
    placed.check(PolicyRecord(5, weights))
    placed.load(PolicyRecord(5, weights))
    assert (made.version, placed.version, placed.digest) == (5, 5, made.digest)
