"""Recurrent policies: what they remember, and modules that do not remember as they must."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from penstock_producers.policy import TorchPolicy, make_policy
from penstock_producers.policy.base import Inputs
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.spaces import Box, Discrete

ZOO = "tests.producers.policy_zoo"
FLOAT32 = np.dtype(np.float32)
OBSERVATION = Box((4,), FLOAT32)


def made(name: str = "recurrent", **settings: Any) -> TorchPolicy:
    policy = make_policy(name, OBSERVATION, Discrete(3), rng=np.random.default_rng(0), **settings)
    assert isinstance(policy, TorchPolicy)
    return policy


def test_states_are_columns_of_their_own() -> None:
    assert made(arguments={"units": 5}).states == (Column("state.hidden", (5,), FLOAT32),)
    counting = made(f"{ZOO}:counting").states
    assert counting == (Column("state.count", (), FLOAT32), Column("state.sum", (4,), FLOAT32))
    assert made("actor-critic").states == ()


def test_an_episode_is_one_run_of_torch_s_gru_over_its_observations() -> None:
    policy = made(arguments={"units": 6, "hidden": []})
    episode = np.random.default_rng(1).standard_normal((7, 3, 4)).astype(np.float32)
    state = (np.zeros((3, 6), np.float32),)
    values = []
    for observation in episode:
        acted = policy.act(Inputs((observation,), (), state))
        state = acted.state  # type: ignore[assignment]  # one state
        values.append(acted.drawn[-1])
    gru = torch.nn.GRU(4, 6)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    gru.load_state_dict({f"{name}_l0": getattr(policy.module.cell, name) for name in names})
    with torch.no_grad():
        hidden, last = gru(torch.from_numpy(episode))
        expected = policy.module.head(hidden.reshape(21, 6))[1].reshape(7, 3)
    np.testing.assert_allclose(state[0], last[0], atol=1e-5)
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_what_was_remembered_outlives_a_new_version() -> None:
    policy = made()
    given = (np.ones((2, 4), np.float32),)
    before = policy.act(Inputs(given, (), (np.zeros((2, 64), np.float32),))).state
    weights = {name: value.numpy() * 2 for name, value in policy.module.state_dict().items()}
    kept = before[0].copy()
    policy.load(PolicyRecord(1, weights))
    assert np.array_equal(before[0], kept)
    after = policy.act(Inputs(given, (), before)).state
    with torch.no_grad():
        expected = policy.module(torch.from_numpy(given[0]), (torch.from_numpy(kept),))[2][0]
    np.testing.assert_allclose(after[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("no states", "module Forgetting: forward must answer (parameters, value, states), two tensors and a tuple of"),
        ("one state", "module Forgetting: forward must answer (parameters, value, states)"),
        ("a list", "module Forgetting: forward must answer (parameters, value, states)"),
        ("no tensor", "module Forgetting: forward must answer (parameters, value, states)"),
        ("wide", "module Forgetting: state 'sum' (2, 1, 4) of torch.float32, not (2, 4) of float32"),
        ("nan", "module Forgetting: states with NaN or infinity for observations of their space"),
    ],
)
def test_a_module_that_remembers_otherwise_than_it_says_is_refused(what: str, told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        made(f"{ZOO}:forgetting", arguments={"what": what})


def test_a_recurrent_module_need_not_value() -> None:
    policy = made(f"{ZOO}:forgetting", arguments={"what": "no value"})
    assert [extra.name for extra in policy.extras] == ["log_prob"]
    state = (np.zeros(5, np.float32), np.zeros((5, 4), np.float32))
    acted = policy.act(Inputs((np.ones((5, 4), np.float32),), (), state))
    assert [part.tolist() for part in acted.state] == [[1.0] * 5, [[1.0] * 4] * 5]


@pytest.mark.parametrize("shapes", [[4], {"count": 4}, {"count": (0,)}, {"count": ("4",)}, {1: (4,)}])
def test_state_shapes_that_are_none_are_refused(shapes: Any) -> None:
    told = f"module Counting: state_shapes {shapes!r}: a mapping from the name of each state to its shape"
    with pytest.raises(PolicyError, match=re.escape(told)):
        made(f"{ZOO}:counting", arguments={"state_shapes": shapes})
