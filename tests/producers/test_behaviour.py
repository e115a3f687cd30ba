"""Behaviours: read, written, and replaced by what a version brings."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.policy.behaviour import MAPPINGS, Behaviour
from penstock_schemas.errors import PolicyError, PolicyRejectedError

BEHAVIOURS = st.builds(
    Behaviour,
    mask=st.none() | st.text(min_size=1),
    mapping=st.sampled_from(MAPPINGS),
    epsilon=st.none() | st.floats(0, 1) | st.sampled_from([0, 1]),
    temperature=st.floats(1e-30, 1e30) | st.integers(1, 100),
    noise=st.floats(0, 1e30) | st.integers(0, 100),
    parameters=st.booleans(),
    final_value=st.booleans(),
)


@given(BEHAVIOURS)
@settings(max_examples=50, deadline=None)
def test_a_behaviour_comes_back_from_json(behaviour: Behaviour) -> None:
    assert Behaviour.from_json(json.loads(json.dumps(behaviour.to_json()))) == behaviour


def test_what_is_not_told_is_as_it_always_is() -> None:
    expected = {"mask": None, "mapping": "clip", "epsilon": None, "temperature": 1.0, "noise": 0.0}
    assert Behaviour.from_json({}).to_json() == {**expected, "parameters": False, "final_value": False}
    assert Behaviour.from_json({"noise": 0.5}) == Behaviour(noise=0.5)


def test_equal_behaviours_are_equal_texts() -> None:
    one, other = Behaviour(epsilon=0, temperature=2, noise=1), Behaviour(epsilon=0.0, temperature=2.0, noise=1.0)
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


@pytest.mark.parametrize(
    ("described", "told"),
    [
        ({"epsilom": 0.1, "noise": 0.1}, "unknown 'epsilom': use some of mask, mapping, epsilon, temperature, noise"),
        ({3: 0.1}, "unknown 3: use some of"),
        ([], "behaviour []: use a mapping with some of mask, mapping"),
        ({"mask": 3}, "mask 3: use the name of an info, or null"),
        ({"mask": ""}, "mask '': use the name of an info, or null"),
        ({"mapping": "tanh"}, "mapping 'tanh': use one of clip, rescale, squash"),
        ({"mapping": ["clip"]}, "mapping ['clip']: use one of clip, rescale, squash"),
        ({"epsilon": 1.5}, "epsilon 1.5: use a number from 0 to 1"),
        ({"epsilon": -0.1}, "epsilon -0.1: use a number from 0 to 1"),
        ({"epsilon": float("nan")}, "epsilon nan: use a number from 0 to 1"),
        ({"epsilon": "0.1"}, "epsilon '0.1': use a number from 0 to 1"),
        ({"epsilon": True}, "epsilon True: use a number from 0 to 1"),
        ({"temperature": 0}, "temperature 0: use a number from 1e-30 to 1e+30"),
        ({"temperature": None}, "temperature None: use a number from 1e-30 to 1e+30"),
        ({"temperature": float("inf")}, "temperature inf: use a number from 1e-30 to 1e+30"),
        ({"noise": -1}, "noise -1: use a number from 0 to 1e+30"),
        ({"noise": float("nan")}, "noise nan: use a number from 0 to 1e+30"),
        ({"parameters": 1}, "parameters 1: use true or false"),
        ({"final_value": "yes"}, "final_value 'yes': use true or false"),
    ],
)
def test_what_is_no_behaviour_is_refused_by_name(described: Any, told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        Behaviour.from_json(described)


def test_a_version_s_settings_replace_those_that_acted_before() -> None:
    before = Behaviour(mask="action_mask", epsilon=1.0, noise=0.5, parameters=True)
    acting = before.with_settings({"epsilon": 0.25, "temperature": 2, "learner": "mine", "mask": 7})
    assert acting == Behaviour(mask="action_mask", epsilon=0.25, temperature=2.0, noise=0.5, parameters=True)
    assert before.with_settings({"epsilon": None}).epsilon is None
    assert before.with_settings({}) == before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epsilon": 2}, "settings: behaviour: epsilon 2: use a number from 0 to 1"),
        ({"temperature": -1.0}, "settings: behaviour: temperature -1.0: use a number"),
        ({"noise": float("inf")}, "settings: behaviour: noise inf: use a number"),
        ({"noise": [0.1]}, "settings: behaviour: noise [0.1]: use a number"),
    ],
)
def test_a_version_with_settings_out_of_range_is_rejected(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyRejectedError, match=re.escape(told)) as rejected:
        Behaviour().with_settings(settings)
    assert rejected.value.reason == "settings"
