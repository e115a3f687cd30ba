"""Policies: what they record, how they behave and explore, what a version changes, and what is recomputed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock_producers.policy import Behaviour, RandomPolicy, TorchPolicy, make_policy
from penstock_producers.policy.base import Inputs
from penstock_producers.policy.distributions import Categorical, distribution_for
from penstock_producers.policy.inputs import examples, flat
from penstock_producers.policy.networks import ActorCritic, Mlp
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.connectors import Pipeline
from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple, leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaves

ZOO = "tests.producers.policy_zoo"
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
OBSERVATION = Box((4,), FLOAT32)
BOUNDED = Box((2,), FLOAT32, (-1.0,), (1.0,))
ALLOWED = Column("info.allowed", (3,), np.dtype(np.int8), overlap=True, nullable=True)
MASKED: dict[str, Any] = {"behaviour": {"mask": "allowed"}, "infos": (ALLOWED,)}
NORMALIZED: dict[str, Any] = {"connectors": [{"name": "normalize"}]}
WIDE = np.finfo(np.float64).max


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def made(name: str = "actor-critic", action: Any = None, observation: Any = None, **settings: Any) -> TorchPolicy:
    policy = make_policy(name, observation or OBSERVATION, action or Discrete(3), rng=rng(), **settings)
    assert isinstance(policy, TorchPolicy)
    return policy


def weights_of(policy: TorchPolicy) -> dict[str, NDArray[Any]]:
    own = {name: value.numpy().copy() for name, value in policy.module.state_dict().items()}
    return own | {name: value.copy() for name, value in policy.pipeline.weights.items()}


def seen(n: int = 64, seed: int = 1) -> Leaves:
    return (rng(seed).standard_normal((n, 4)).astype(np.float32),)


def masks(allowed: list[list[int]], valid: list[bool] | None = None) -> tuple[Any, ...]:
    there = np.ones(len(allowed), np.bool_) if valid is None else np.array(valid)
    return ((np.array(allowed, np.int8), there),)


def recorded(policy: Any, inputs: Inputs) -> dict[str, NDArray[Any]]:
    """What is stored of one vector step."""
    finished = policy.recording.finish(policy.act(inputs).drawn)
    return dict(zip(("action", *(extra.name for extra in policy.extras)), finished, strict=False))


@pytest.mark.parametrize("action", [Discrete(3), BOUNDED])
@pytest.mark.parametrize("observation", [OBSERVATION, Box((2, 3), np.dtype(np.uint8)), Discrete(7)])
def test_what_is_recorded_follows_from_the_module(action: Any, observation: Any) -> None:
    policy = make_policy("actor-critic", observation, action, rng=rng())
    assert isinstance(policy, TorchPolicy)
    given = (rng(1).random((64, *observation.shape)) * 5).astype(observation.dtype)
    actions = policy.act(Inputs((given,)))
    stored = dict(
        zip(("action", *(extra.name for extra in policy.extras)), policy.recording.finish(actions.drawn), strict=True)
    )
    with torch.no_grad():
        parameters, value = policy.module(torch.from_numpy(given))
    distribution = distribution_for(action, Behaviour())
    np.testing.assert_allclose(stored["value"], value, atol=1e-5)
    expected = distribution.log_prob(parameters.numpy(), (stored["action"],))
    np.testing.assert_allclose(stored["log_prob"], expected, atol=1e-4)
    assert np.array_equal(actions.sent[0], stored.get("action_sent", stored["action"]))
    assert np.array_equal(actions.sent[0], distribution.send((stored["action"],))[0])


def test_a_nested_action_is_recorded_leaf_by_leaf() -> None:
    policy = made(action=Dict((("go", Discrete(2)), ("by", BOUNDED))))
    stored = policy.recording.finish(policy.act(Inputs(seen())).drawn)
    assert [values.shape for values in stored] == [(64,), (64, 2), (64,), (64,), (64,), (64, 2)]
    assert [column.name for column in policy.recording.columns[:2]] == ["action.go", "action.by"]


@pytest.mark.parametrize(
    ("name", "action", "behaviour", "extras"),
    [
        ("actor-critic", Discrete(3), {}, ["log_prob", "value"]),
        ("actor-critic", BOUNDED, {}, ["log_prob?", "value", "action_sent"]),
        (
            "actor-critic",
            BOUNDED,
            {"parameters": True, "final_value": True},
            ["log_prob?", "value", "parameters?", "action_sent", "final_value?"],
        ),
        ("q-network", Discrete(3), {"parameters": True}, ["log_prob", "value", "parameters"]),
        (f"{ZOO}:valueless", Discrete(3), {}, ["log_prob"]),
        (f"{ZOO}:valueless", Discrete(3), {"parameters": True}, ["log_prob", "parameters"]),
    ],
)
def test_what_a_policy_declares_it_records(
    name: str, action: Any, behaviour: dict[str, Any], extras: list[str]
) -> None:
    policy = made(name, action, behaviour=behaviour)
    assert [extra.name + "?" * extra.nullable for extra in policy.extras] == extras
    assert policy.recording.final == ("final_value" if "final_value?" in extras else None)
    stored = recorded(policy, Inputs(seen()))
    declared = [extra for extra in policy.extras if extra.name != "final_value"]
    assert {extra.name: (64, *extra.shape) for extra in declared} == {
        extra.name: stored[extra.name].shape for extra in declared
    }
    if "parameters" in stored:
        assert np.array_equal(stored["parameters"], policy.recompute(Inputs(seen()), policy.exploration).parameters)


def test_equal_generators_draw_equal_actions() -> None:
    one, two = made(), made()
    other = make_policy("actor-critic", OBSERVATION, Discrete(3), rng=rng(9))
    drawn = [policy.act(Inputs(seen())).sent[0].tolist() for policy in (one, two, other)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_subclass_of_the_built_in_network_acts_by_its_own_forward() -> None:
    _, built_in, _ = made().act(Inputs(seen(8))).drawn
    _, doubled, _ = made(f"{ZOO}:doubling").act(Inputs(seen(8))).drawn
    np.testing.assert_allclose(doubled, 2 * built_in, atol=1e-5)


def test_a_factory_s_network_of_the_built_in_class_acts_by_its_own_layers() -> None:
    policy = made(f"{ZOO}:rectified")
    _, parameters, value = policy.act(Inputs(seen(8))).drawn
    with torch.no_grad():
        expected = policy.module(torch.from_numpy(seen(8)[0]))
    np.testing.assert_allclose(parameters, expected[0], atol=1e-6)
    np.testing.assert_allclose(value, expected[1], atol=1e-6)


@pytest.mark.parametrize(("off", "told"), [((0.01, 0), "parameters 0.0"), ((0, 0.01), "value 0.0"), ((np.nan, 0), "")])
def test_a_function_that_is_not_the_module_s_forward_is_refused(off: tuple[float, float], told: str) -> None:
    network = ActorCritic(Mlp(4), 3)
    own = network.numpy_forward()
    assert own is not None

    def forward(given: Leaves, state: Leaves) -> Any:
        parameters, value, _ = own(given, state)
        assert value is not None
        return parameters + off[0], value + off[1], state

    settings: dict[str, Any] = {"rng": rng(), "numpy_forward": lambda: forward}
    with pytest.raises(PolicyError, match=f"module ActorCritic: the function that acts answers {told}"):
        TorchPolicy(
            network, flat(OBSERVATION), Pipeline(OBSERVATION), Discrete(3), Categorical(Discrete(3)), **settings
        )


def test_what_a_module_answers_may_lie_in_the_observation() -> None:
    policy = made(f"{ZOO}:looking")
    (observation,) = seen(5)
    expected = observation[:, -1].tolist()
    acted = policy.act(Inputs((observation,)))
    observation[:] = 0
    assert acted.drawn[-1].tolist() == expected


@pytest.mark.parametrize(
    ("exploration", "least", "most"),
    [(Exploration.ON, 40, 160), (Exploration.OFF, 0, 0), (Exploration.RANDOM, 120, 280)],
)
def test_exploration_can_be_set(exploration: Exploration, least: int, most: int) -> None:
    """Of 300 actions, those that are not the best of three; the best has a probability of about two thirds."""
    policy = made(f"{ZOO}:constant", arguments={"parameters": [0.0, 1.4, 0.0]})
    assert policy.exploration is Exploration.ON
    policy.exploration = exploration
    assert policy.exploration is exploration
    stored = recorded(policy, Inputs(seen(300)))
    assert least <= (stored["action"] != 1).sum() <= most
    assert policy.absent == frozenset()
    if exploration is Exploration.OFF:
        assert stored["log_prob"].tolist() == [0.0] * 300
    if exploration is Exploration.RANDOM:
        np.testing.assert_allclose(stored["log_prob"], -np.log(3), atol=1e-6)


def test_a_density_is_absent_where_none_was_drawn_from() -> None:
    policy = made(action=BOUNDED, behaviour={"parameters": True})
    assert policy.absent == frozenset()
    (mean,) = policy.act(Inputs(seen())).sent
    policy.exploration = Exploration.OFF
    assert policy.absent == {"log_prob"}
    stored = recorded(policy, Inputs(seen()))
    np.testing.assert_array_equal(stored["action"], stored["parameters"][:, :2])
    assert not np.array_equal(mean, stored["action_sent"])
    policy.exploration = Exploration.RANDOM
    assert policy.absent == {"log_prob", "parameters"}
    policy.exploration = Exploration.ON
    assert policy.absent == frozenset()


def test_on_is_epsilon_for_a_q_network_and_epsilon_is_nothing_for_others() -> None:
    policy = made("q-network")
    for wanted, found in ((Exploration.OFF, Exploration.OFF), (Exploration.ON, Exploration.EPSILON)):
        policy.exploration = wanted
        assert policy.exploration is found
    policy.exploration = Exploration.EPSILON
    with pytest.raises(PolicyError, match="exploration EPSILON: this policy's parameters are not what actions are"):
        made().exploration = Exploration.EPSILON


def test_a_q_network_takes_the_best_action_but_for_epsilon_and_says_how_likely_that_was() -> None:
    policy = made("q-network", behaviour={"epsilon": 0.3})
    stored = recorded(policy, Inputs(seen(2000)))
    with torch.no_grad():
        worth = policy.module(torch.from_numpy(seen(2000)[0]))[0].numpy()
    best = worth.argmax(axis=1) == stored["action"]
    np.testing.assert_allclose(stored["value"], worth.max(axis=1), atol=1e-5)
    np.testing.assert_allclose(np.exp(stored["log_prob"]), np.where(best, 0.8, 0.1), rtol=1e-5)
    assert abs(best.mean() - 0.8) < 0.04


def test_a_mask_is_obeyed_and_a_missing_one_allows_all() -> None:
    allowed = [[0, 1, 0], [1, 0, 1], [0, 0, 0]] * 100
    infos = masks(allowed, [True, True, False] * 100)
    for name in ("actor-critic", "q-network"):
        policy = made(name, **MASKED)
        for exploration in (Exploration.ON, Exploration.RANDOM, Exploration.OFF):
            policy.exploration = exploration
            stored = recorded(policy, Inputs(seen(300), infos))
            action = stored["action"].reshape(100, 3)
            assert set(action[:, 0]) == {1}
            assert 1 not in action[:, 1]
            assert np.array_equal(stored["log_prob"].reshape(100, 3)[:, 0], np.zeros(100))
            if exploration is not Exploration.OFF:
                assert set(action[:, 2]) == {0, 1, 2}


def test_a_mask_stands_where_its_info_does() -> None:
    other = Column("info.other", (), FLOAT64, overlap=True, nullable=True)
    policy = made(behaviour={"mask": "allowed"}, infos=(other, ALLOWED))
    infos = ((np.zeros(4), np.ones(4, np.bool_)), *masks([[0, 0, 1]] * 4))
    assert policy.act(Inputs(seen(4), infos)).sent[0].tolist() == [2] * 4


def test_a_q_network_values_by_the_best_action_that_is_allowed() -> None:
    policy = made("q-network", **MASKED)
    infos = masks([[0, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]], [True, True, True, False])
    with torch.no_grad():
        worth = policy.module(torch.from_numpy(seen(4)[0]))[0].numpy()
    expected = [worth[0, 1], worth[1, [0, 2]].max(), worth[2].max(), worth[3].max()]
    np.testing.assert_allclose(recorded(policy, Inputs(seen(4), infos))["value"], expected, atol=1e-6)
    np.testing.assert_allclose(policy.value(Inputs(seen(4), infos)), expected, atol=1e-6)
    # An env allows nothing where an episode is over: then there is no value.
    over = masks([[0, 1, 0], [0, 0, 0]])
    assert np.isnan(policy.value(Inputs(seen(2), over))).tolist() == [False, True]


def test_observations_are_valued_by_the_network() -> None:
    policy = made()
    with torch.no_grad():
        expected = policy.module(torch.from_numpy(seen()[0]))[1]
    np.testing.assert_allclose(policy.value(Inputs(seen())), expected, atol=1e-5)
    with pytest.raises(PolicyError, match="module Valueless: it answers no values"):
        made(f"{ZOO}:valueless").value(Inputs(seen()))


@pytest.mark.parametrize("name", ["actor-critic", "q-network", "recurrent", f"{ZOO}:doubling"])
@pytest.mark.parametrize("exploration", [Exploration.ON, Exploration.OFF, Exploration.RANDOM])
def test_what_was_drawn_from_is_recomputed_by_another_policy_of_the_same_version(
    name: str, exploration: Exploration
) -> None:
    behaviour = {"mask": "allowed", "epsilon": 0.25} if name == "q-network" else {"mask": "allowed"}
    settings: dict[str, Any] = {"behaviour": behaviour, "infos": (ALLOWED,), **NORMALIZED}
    acting, again = made(name, **settings), made(name, **settings)
    given = {key: value + np.float32(0.1) for key, value in weights_of(acting).items()}
    record = PolicyRecord(3, given, {"epsilon": 0.4} if name == "q-network" else {"temperature": 0.7})
    acting.load(record)
    acting.exploration = exploration
    state = tuple(rng(2).standard_normal((64, *column.shape)).astype(np.float32) for column in acting.states)
    infos = masks((rng(3).integers(0, 2, (64, 3)) | np.array([0, 1, 0])).tolist())
    inputs = Inputs(seen(), infos, state)
    acted = acting.act(inputs)
    stored = dict(
        zip(("action", *(extra.name for extra in acting.extras)), acting.recording.finish(acted.drawn), strict=True)
    )
    again.load(record)
    assert again.digest == acting.digest == record.digest
    parameters, value, after = again.recompute(inputs, acting.exploration)
    np.testing.assert_allclose(again.log_prob(parameters, (stored["action"],)), stored["log_prob"], atol=1e-5)
    assert value is not None
    np.testing.assert_allclose(value, stored["value"], atol=1e-5)
    for one, other in zip(after, acted.state, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", ["actor-critic", f"{ZOO}:doubling"])
def test_a_loaded_version_acts_under_its_own_digest(name: str) -> None:
    policy = made(name)
    weights = weights_of(policy)
    weights["head.bias"][:] = [-90, 90, -90, 0.25]
    weights["head.weight"][:] = 0
    record = PolicyRecord(5, weights, {"temperature": 0.5})
    policy.load(record)
    assert (policy.version, policy.digest) == (5, record.digest)
    actions = policy.act(Inputs(seen(100)))
    assert set(actions.sent[0].tolist()) == {1}
    assert set(actions.drawn[-1].tolist()) == {0.25 if name == "actor-critic" else 0.5}
    # What acts is a copy.
    weights["head.bias"][:] = [90, -90, -90, 0.25]
    assert set(policy.act(Inputs(seen(100))).sent[0].tolist()) == {1}


def test_a_version_brings_the_parameters_of_connectors() -> None:
    policy = made(**NORMALIZED)
    weights = weights_of(policy)
    assert {"connectors.0.mean", "connectors.0.variance"} <= weights.keys()
    weights["connectors.0.mean"] += 3
    record = PolicyRecord(1, weights)
    policy.load(record)
    assert policy.digest == record.digest != PolicyRecord(1, weights_of(made(**NORMALIZED))).digest
    weights["connectors.0.mean"] += 5
    np.testing.assert_array_equal(policy.pipeline.weights["connectors.0.mean"], np.full(4, 3, FLOAT32))


def test_a_version_s_settings_act_and_those_it_leaves_out_are_the_user_s() -> None:
    policy = made("q-network", behaviour={"epsilon": 0.3})
    weights = weights_of(policy)
    for version, settings, epsilon in ((1, {"epsilon": 0.6}, 0.6), (2, {"lr": 0.1}, 0.3), (3, {"epsilon": 0}, 0.0)):
        record = PolicyRecord(version, weights, settings)
        policy.load(record)
        assert (policy.behaviour.epsilon, policy.digest) == (epsilon, record.digest)
        likely = np.unique(np.exp(recorded(policy, Inputs(seen(500)))["log_prob"]))
        expected = sorted({epsilon / 3, 1 - epsilon * 2 / 3} - {0.0})
        np.testing.assert_allclose(likely, expected, rtol=1e-5)


def without_bias(weights: dict[str, Any]) -> None:
    del weights["head.bias"]


def without_mean(weights: dict[str, Any]) -> None:
    del weights["connectors.0.mean"]


def with_more(weights: dict[str, Any]) -> None:
    weights["tail.bias"] = np.zeros(1, np.float32)


def of_other_shape(weights: dict[str, Any]) -> None:
    weights["head.bias"] = np.zeros(5, np.float32)


def of_other_dtype(weights: dict[str, Any]) -> None:
    weights["head.bias"] = weights["head.bias"].astype(np.float64)


def with_nan(weights: dict[str, Any]) -> None:
    weights["trunk.0.weight"][3, 2] = np.nan


def with_infinity(weights: dict[str, Any]) -> None:
    weights["head.bias"][0] = -np.inf


def with_infinite_mean(weights: dict[str, Any]) -> None:
    weights["connectors.0.mean"][0] = np.inf


def with_negative_variance(weights: dict[str, Any]) -> None:
    weights["connectors.0.variance"][:] = -1


@pytest.mark.parametrize(
    ("spoil", "reason", "told"),
    [
        (without_bias, "names", "policy version 3: weights missing ['head.bias'], unknown []"),
        (without_mean, "names", "policy version 3: weights missing ['connectors.0.mean'], unknown []"),
        (with_more, "names", "policy version 3: weights missing [], unknown ['tail.bias']"),
        (of_other_shape, "shapes", "weight 'head.bias' is (5,) of float32, the policy's is (4,) of float32"),
        (of_other_dtype, "shapes", "weight 'head.bias' is (4,) of float64, the policy's is (4,) of float32"),
        (with_nan, "not_finite", "policy version 3: weight 'trunk.0.weight' is not finite"),
        (with_infinity, "not_finite", "policy version 3: weight 'head.bias' is not finite"),
        (with_infinite_mean, "not_finite", "policy version 3: weight 'connectors.0.mean' is not finite"),
        (with_negative_variance, "connectors", "parameters of connector 0: "),
    ],
)
def test_a_bad_version_is_refused_and_nothing_has_changed(spoil: Any, reason: str, told: str) -> None:
    policy, twin = made(**NORMALIZED), made(**NORMALIZED)
    good = {name: value + 1 for name, value in weights_of(policy).items()}
    for either in (policy, twin):
        either.load(PolicyRecord(2, good))
    bad = {name: value + 7 for name, value in good.items()}
    spoil(bad)
    refused_as_before(policy, twin, PolicyRecord(3, bad), reason, told)
    policy.check(PolicyRecord(3, {name: value + 9 for name, value in good.items()}))
    assert (policy.version, policy.digest) == (2, PolicyRecord(2, good).digest)


def test_a_module_that_writes_to_its_weights_while_it_answers_takes_versions() -> None:
    policy = made(f"{ZOO}:noting")
    policy.load(PolicyRecord(1, {name: np.asarray(weight + 1) for name, weight in weights_of(policy).items()}))
    assert policy.version == 1


def test_weights_that_are_one_are_not_two() -> None:
    policy, twin = made(f"{ZOO}:tied"), made(f"{ZOO}:tied")
    good = {name: weight + 1 for name, weight in weights_of(policy).items()}
    for either in (policy, twin):
        either.load(PolicyRecord(2, good))
    with pytest.raises(PolicyRejectedError, match=r"version 3: module .*'trunk\.2\.bias' is one with another of"):
        policy.load(PolicyRecord(3, {**good, "trunk.2.bias": good["trunk.2.bias"] + 1}))
    acts_as(policy, twin)
    assert (policy.version, policy.digest) == (2, PolicyRecord(2, good).digest)


@pytest.mark.parametrize(
    ("name", "value", "reason", "told"),
    [
        (f"{ZOO}:bounded", 101, "load", "policy version 3: module Bounded: ValueError: a bias above 100"),
        (f"{ZOO}:bounded", -101, "not_finite", "policy version 3: module Bounded: value with NaN or infinity for obs"),
        ("actor-critic", 3e38, "not_finite", "policy version 3: module ActorCritic: parameters with NaN or infinity"),
        ("q-network", 3e38, "not_finite", "policy version 3: module QNetwork: parameters with NaN or infinity"),
    ],
)
def test_a_version_with_which_the_module_fails_is_refused_and_nothing_has_changed(
    name: str, value: float, reason: str, told: str
) -> None:
    policy, twin = made(name, **NORMALIZED), made(name, **NORMALIZED)
    good = {name: weight + 1 for name, weight in weights_of(policy).items()}
    for either in (policy, twin):
        either.load(PolicyRecord(2, good))
    own = policy.module.state_dict().keys()
    bad = {name: np.full_like(weight, value) if name in own else weight + 1 for name, weight in good.items()}
    policy.check(PolicyRecord(3, bad))
    with pytest.raises(PolicyRejectedError, match=re.escape(told)) as refused:
        policy.load(PolicyRecord(3, bad))
    assert refused.value.reason == reason
    acts_as(policy, twin)
    assert (policy.version, policy.digest) == (2, PolicyRecord(2, good).digest)


@pytest.mark.parametrize(
    ("name", "action", "settings", "told"),
    [
        ("actor-critic", Discrete(3), {"epsilon": 0.5, "temperature": 2.0}, "temperature 2.0: with an epsilon no choi"),
        ("q-network", Discrete(3), {"temperature": 2.0}, "temperature 2.0: with an epsilon no choice is drawn by its"),
        ("actor-critic", Discrete(3), {"epsilon": 2}, "epsilon 2"),
        ("actor-critic", Discrete(3), {"temperature": "hot"}, "temperature 'hot'"),
        ("actor-critic", Discrete(3), {"noise": 0.5}, "noise 0.5: the action has choices only"),
        ("actor-critic", BOUNDED, {"epsilon": 0.5}, "epsilon 0.5: the action has floats only"),
        ("q-network", Discrete(3), {"epsilon": None}, "epsilon None: what actions are worth is explored by one"),
    ],
)
def test_settings_that_cannot_act_are_refused_and_nothing_has_changed(
    name: str, action: Any, settings: dict[str, Any], told: str
) -> None:
    policy, twin = made(name, action), made(name, action)
    bad = {key: value + 1 for key, value in weights_of(policy).items()}
    refused_as_before(policy, twin, PolicyRecord(3, bad, settings), "settings", told)


def refused_as_before(policy: TorchPolicy, twin: TorchPolicy, record: PolicyRecord, reason: str, told: str) -> None:
    """Refuse a version, and act on as a twin that was never shown it."""
    for refuse in (policy.check, policy.load):
        with pytest.raises(PolicyRejectedError, match=re.escape(told)) as refused:
            refuse(record)
        assert refused.value.reason == reason
    acts_as(policy, twin)


def acts_as(policy: TorchPolicy, twin: TorchPolicy) -> None:
    assert (policy.version, policy.digest, policy.behaviour) == (twin.version, twin.digest, twin.behaviour)
    assert digest(weights_of(policy), {}) == policy.digest
    inputs = Inputs(seen(), (), tuple(np.zeros((64, *column.shape), column.dtype) for column in policy.states))
    for one, other in zip(policy.act(inputs).drawn, twin.act(inputs).drawn, strict=True):
        assert np.array_equal(one, other)


def test_weights_are_not_named_as_connectors_parameters_are() -> None:
    network = ActorCritic(Mlp(4), 3)
    network.register_buffer("x", torch.zeros(1))
    policy = made(**NORMALIZED)
    network.connectors = torch.nn.ModuleList([torch.nn.Module()])
    network.connectors[0].register_buffer("mean", torch.zeros(4))
    with pytest.raises(PolicyError, match=re.escape("weights ['connectors.0.mean'] are named as connectors' param")):
        TorchPolicy(network, flat(OBSERVATION), policy.pipeline, Discrete(3), Categorical(Discrete(3)), rng=rng())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["actor-critic", "recurrent", "convolutional", "q-network"])
def test_a_policy_on_a_gpu_answers_what_it_does_on_the_cpu(name: str) -> None:
    image = Box((36, 36, 3), np.dtype(np.uint8), (0.0,), (255.0,))
    observation = image if name == "convolutional" else OBSERVATION
    here, there = (made(name, observation=observation, device=device) for device in ("cpu", "cuda"))
    given = examples(observation, 50)
    state = tuple(rng(2).standard_normal((50, *column.shape)).astype(np.float32) for column in here.states)
    there.load(PolicyRecord(1, weights_of(here)))
    assert there.digest == PolicyRecord(1, weights_of(here)).digest
    one, other = (policy.recompute(Inputs(given, (), state), policy.exploration) for policy in (here, there))
    np.testing.assert_allclose(one.parameters, other.parameters, atol=1e-5)
    np.testing.assert_allclose(one.value, other.value, atol=1e-5)  # type: ignore[arg-type]  # all of these have one
    for before, after in zip(one.state, other.state, strict=True):
        np.testing.assert_allclose(before, after, atol=1e-5)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3, start=-7),
        MultiDiscrete((2,), (1 << 62, 3), (1 << 62, 0)),
        MultiBinary((2, 3)),
        Text(5, 2, "ab"),
        Text(3),
        Box((2,), FLOAT32, (-1.0, 0.5), (1.0, 0.75)),
        Box((3,), FLOAT64, (-np.inf, 0.0, -np.inf), (np.inf, np.inf, 2.0)),
        Box((2,), FLOAT64, (-WIDE,), (WIDE,)),
        Box((2, 2), np.dtype(np.uint8), (0.0,), (255.0,)),
        Box((4,), np.dtype(np.int64)),
        Box((2,), np.dtype(np.bool_), (0.0,), (1.0,)),
        Dict((("a", Discrete(2)), ("b", Tuple((Text(1), Box((), FLOAT32, (0.0,), (1.0,))))))),
    ],
)
def test_random_actions_are_of_their_space(space: Any) -> None:
    policy = make_policy("random", OBSERVATION, space, rng=rng())
    actions = policy.act(Inputs(seen(300)))
    for leaf, drawn in zip(leaves(space), actions.sent, strict=True):
        assert leaf.space.contains(drawn.astype(leaf.space.dtype)).all()
        assert len(np.unique(drawn.astype(str) if drawn.dtype == object else drawn, axis=0)) > 1
    with pytest.raises(PolicyRejectedError, match="random actions have no weights"):
        policy.load(PolicyRecord(1, {}))


@pytest.mark.parametrize(
    ("space", "likely"),
    [
        (Discrete(4), 1 / 4),
        (MultiDiscrete((2,), (2, 3), (0, 0)), 1 / 6),
        (MultiBinary((3,)), 1 / 8),
        (Tuple((Discrete(4), MultiBinary((2,)))), 1 / 16),
        (BOUNDED, None),
        (Tuple((Discrete(4), BOUNDED)), None),
    ],
)
def test_random_choices_are_recorded_with_their_probability(space: Any, likely: float | None) -> None:
    policy = make_policy("random", OBSERVATION, space, rng=rng())
    finished = policy.recording.finish(policy.act(Inputs(seen())).drawn)
    if likely is None:
        assert policy.extras == ()
        with pytest.raises(PolicyError, match="not choices only"):
            policy.log_prob(np.zeros((1, 0), np.float32), (np.zeros(1),))
    else:
        assert [extra.name for extra in policy.extras] == ["log_prob"]
        np.testing.assert_allclose(finished[-1], np.full(64, np.log(likely)), rtol=1e-6)


def test_random_actions_are_drawn_among_what_a_mask_allows() -> None:
    policy = make_policy("random", OBSERVATION, Discrete(3), rng=rng(), **MASKED)
    inputs = Inputs(seen(300), masks([[0, 1, 0], [1, 0, 1], [0, 0, 0]] * 100, [True, True, False] * 100))
    stored = recorded(policy, inputs)
    action, log_prob = stored["action"].reshape(100, 3), stored["log_prob"].reshape(100, 3)
    assert [set(column) for column in action.T] == [{1}, {0, 2}, {0, 1, 2}]
    np.testing.assert_allclose(np.exp(log_prob), np.tile([1, 1 / 2, 1 / 3], (100, 1)), rtol=1e-6)
    again = policy.recompute(inputs, policy.exploration)
    np.testing.assert_allclose(policy.log_prob(again.parameters, (stored["action"],)), stored["log_prob"])


def test_random_actions_explore_in_one_way() -> None:
    policy = make_policy("random", OBSERVATION, Discrete(3), rng=rng())
    assert isinstance(policy, RandomPolicy)
    for wanted in (Exploration.ON, Exploration.RANDOM):
        policy.exploration = wanted
        assert policy.exploration is Exploration.RANDOM
    with pytest.raises(PolicyError, match="policy 'random': exploration OFF: it has no best action"):
        policy.exploration = Exploration.OFF
