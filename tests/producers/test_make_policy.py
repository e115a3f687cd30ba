"""Making policies by name: the built-in ones and a user's own, the same wherever they are made, and what is refused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock_producers.policy import RandomPolicy, TorchPolicy, make_policy
from penstock_producers.policy.base import Inputs
from penstock_producers.policy.inputs import examples
from penstock_producers.policy.networks import Convolutions, Mlp, QNetwork, Recurrent
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError, SpaceError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from tests.producers import policy_zoo

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZOO = "tests.producers.policy_zoo"
FLOAT32 = np.dtype(np.float32)
OBSERVATION = Box((4,), FLOAT32)
IMAGE = Box((12, 12, 2), np.dtype(np.uint8), (0.0,), (255.0,))
BOUNDED = Box((2,), FLOAT32, (-1.0,), (1.0,))
ALLOWED = Column("info.allowed", (3,), np.dtype(np.int8), overlap=True, nullable=True)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def made(name: str = "actor-critic", action: Any = None, observation: Any = None, **settings: Any) -> TorchPolicy:
    policy = make_policy(name, observation or OBSERVATION, action or Discrete(3), rng=rng(), **settings)
    assert isinstance(policy, TorchPolicy)
    return policy


def weights_of(policy: TorchPolicy) -> dict[str, NDArray[Any]]:
    return {name: value.numpy().copy() for name, value in policy.module.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "observation", "actions", "arguments"),
    [
        ("actor-critic", OBSERVATION, "all", {"hidden": [8]}),
        ("actor-critic", Dict((("a", Discrete(3)), ("b", Tuple((IMAGE, OBSERVATION))))), "all", {"hidden": [8]}),
        ("recurrent", OBSERVATION, "all", {"units": 8}),
        ("recurrent", IMAGE, "all", {"trunk": "convolutional", "units": 8, "hidden": [8]}),
        ("convolutional", IMAGE, "all", {"hidden": [8]}),
        ("q-network", OBSERVATION, "discrete", {"hidden": [8]}),
        ("q-network", IMAGE, "discrete", {"hidden": [8]}),
        ("random", OBSERVATION, "all", {}),
    ],
)
def test_every_built_in_policy_acts_within_the_action_space(
    name: str, observation: Any, actions: str, arguments: dict[str, Any]
) -> None:
    nested = Tuple((Discrete(2), BOUNDED))
    spaces = [Discrete(3, start=-1), MultiDiscrete((2,), (2, 3), (0, 5)), MultiBinary((3,)), BOUNDED, nested]
    for action in spaces if actions == "all" else spaces[:1]:
        policy = make_policy(name, observation, action, arguments=arguments, rng=rng())
        state = tuple(np.zeros((6, *column.shape), column.dtype) for column in policy.states)
        acted = policy.act(Inputs(examples(observation, 6), (), state))
        assert [values.shape for values in acted.drawn] == [(6, *column.shape) for column in policy.recording.columns]
        finished = policy.recording.finish(acted.drawn)
        extras = policy.extras
        assert [values.shape[1:] for values in finished[len(acted.sent) :]] == [extra.shape for extra in extras]
        assert [part.shape for part in acted.state] == [part.shape for part in state]
        assert "log_prob" in {extra.name for extra in extras} or name == "random"
        inner = action.spaces if isinstance(action, Tuple) else (action,)
        for space, sent in zip(inner, acted.sent, strict=True):
            assert space.contains(sent).all()


def test_the_names_make_what_they_say() -> None:
    def trunk_of(name: str, observation: Any, **arguments: Any) -> Any:
        return made(name, observation=observation, arguments=arguments).module.trunk

    assert isinstance(trunk_of("actor-critic", IMAGE), Mlp)
    assert isinstance(trunk_of("convolutional", IMAGE), Convolutions)
    assert isinstance(trunk_of("q-network", OBSERVATION), Mlp)
    assert isinstance(trunk_of("q-network", IMAGE), Convolutions)
    assert isinstance(trunk_of("q-network", IMAGE, trunk="mlp"), Mlp)
    assert isinstance(trunk_of("recurrent", IMAGE, trunk="convolutional"), Convolutions)
    assert isinstance(made("recurrent").module, Recurrent)
    assert isinstance(made("q-network").module, QNetwork)
    assert isinstance(make_policy("random", OBSERVATION, Discrete(2), rng=rng()), RandomPolicy)


def test_the_deviations_of_a_gaussian_are_learned_apart_from_observations_unless_said_otherwise() -> None:
    module = made(action=BOUNDED).module
    with torch.no_grad():
        module.head.log_std[:] = torch.tensor([0.5, -0.5])
        assert module(torch.rand(5, 4))[0][:, 2:].tolist() == [[0.5, -0.5]] * 5
    dependent = made(action=BOUNDED, arguments={"free_log_std": 0}).module
    assert dependent.head.log_std is None
    assert len(np.unique(dependent(torch.rand(5, 4))[0][:, 2].detach())) == 5


def test_a_network_takes_what_leaves_the_connectors() -> None:
    policy = made("actor-critic", observation=Discrete(5), connectors=[{"name": "one_hot"}], arguments={"hidden": []})
    assert policy.module.head.in_features == 5
    assert policy.pipeline.observation == Discrete(5)


def test_two_makes_begin_with_equal_weights_whatever_torch_s_generator() -> None:
    for name in ("actor-critic", "recurrent", "q-network", f"{ZOO}:doubling"):
        one = made(name)
        torch.manual_seed(123)
        two = made(name)
        assert one.version == two.version == 0
        assert one.digest == two.digest == digest(weights_of(two), {}) == PolicyRecord(0, weights_of(one)).digest
    assert made().digest != made(arguments={"hidden": [32]}).digest


def test_making_leaves_torch_s_generator_as_it_was() -> None:
    torch.manual_seed(123)
    expected = torch.rand(3).tolist()
    torch.manual_seed(123)
    made()
    assert torch.rand(3).tolist() == expected


def test_policies_made_side_by_side_begin_with_equal_weights() -> None:
    def policy(_: int) -> TorchPolicy:
        return made(arguments={"hidden": [256, 256]})

    with ThreadPoolExecutor(8) as threads:
        digests = {policy.digest for policy in threads.map(policy, range(32))}
    assert digests == {policy(0).digest}


@pytest.mark.parametrize(
    "observation",
    [
        Box((2,), FLOAT32, (100.0, -np.inf), (101.0, np.inf)),
        Box((2, 3), np.dtype(np.uint8), (0.0,), (255.0,)),
        Box((), FLOAT32),
        Discrete(5, start=-2),
    ],
)
def test_a_policy_is_tried_on_observations_that_its_space_holds(observation: Any) -> None:
    policy = made(f"{ZOO}:remembering", observation=observation)
    assert isinstance(policy.module, policy_zoo.Remembering)
    (seen,) = (tensor.numpy() for tensor in policy.module.seen)
    assert (seen.dtype, seen.shape) == (observation.dtype, (2, *observation.shape))
    assert seen.any()
    if isinstance(observation, Box):
        flat = seen.reshape(2, -1)
        assert (flat >= np.array(observation.low)).all()
        assert (flat <= np.array(observation.high)).all()
    else:
        assert observation.outside(seen) is None


def test_a_user_s_own_factory_gets_the_spaces_and_its_arguments() -> None:
    policy = made(f"{ZOO}:constant", arguments={"parameters": [-90.0, -90.0, 90.0]})
    assert isinstance(policy.module, policy_zoo.Constant)
    action, parameters, value = policy.act(Inputs((np.arange(12, dtype=np.float32).reshape(3, 4),))).drawn
    assert action.tolist() == [2, 2, 2]
    assert parameters.tolist() == [[-90.0, -90.0, 90.0]] * 3
    assert value.tolist() == [6.0, 22.0, 38.0]


def test_a_user_s_own_factory_gets_what_it_names_of_the_setting() -> None:
    policy = made(f"{ZOO}:on_device", infos=(ALLOWED,))
    assert isinstance(policy.module, policy_zoo.Constant)


def test_a_user_s_own_policy_is_taken_as_it_is() -> None:
    settings: dict[str, Any] = {"connectors": [{"name": "flatten"}], "behaviour": {"mask": "allowed"}}
    settings |= {"infos": (ALLOWED,), "rng": rng()}
    policy = make_policy(f"{ZOO}:own_policy", OBSERVATION, Discrete(3), **settings)
    assert isinstance(policy, RandomPolicy)
    assert policy.pipeline.observation == OBSERVATION
    mask = np.array([[0, 1, 0]] * 5, np.int8)
    acted = policy.act(Inputs(examples(OBSERVATION, 5), ((mask, np.ones(5, np.bool_)),)))
    assert acted.sent[0].tolist() == [1] * 5


BUILT_IN = "'actor-critic', 'recurrent', 'convolutional', 'q-network', 'random'"


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("nope", {}, f"policy 'nope': there are {BUILT_IN}, and a user's own of the form module:factory"),
        ("no_such_module:make", {}, "it cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (":make", {}, "policy ':make': it cannot be imported: ValueError"),
        (f"{ZOO}:absent", {}, "it cannot be imported: AttributeError: module 'tests.producers.policy_zoo' has no"),
        (f"{ZOO}:NOT_CALLABLE", {}, "it cannot be made with {}: TypeError: 'str' object is not callable"),
        (f"{ZOO}:constant", {}, "it cannot be made with {}: TypeError: constant() missing 1 required"),
        (f"{ZOO}:raising", {}, "it cannot be made with {}: ValueError: the weights are at home"),
        (f"{ZOO}:no_module", {}, "the factory returned str: no torch.nn.Module, nor a policy, which has act, check"),
        (f"{ZOO}:half_a_policy", {}, "returned Half: no torch.nn.Module, nor a policy, which has check, log_prob,"),
        (f"{ZOO}:halved", {}, "module Halved: weight 'layer.weight' is of torch.bfloat16, which numpy does not have"),
        (f"{ZOO}:stateful", {}, "module Stateful: weight '_extra_state' is of str, which numpy does not have"),
        ("actor-critic", {"arguments": {"depth": 3}}, "it cannot be made with {'depth': 3}: TypeError"),
        ("actor-critic", {"arguments": {"hidden": [-1]}}, "it cannot be made with {'hidden': [-1]}: ValueError"),
        ("recurrent", {"arguments": {"trunk": "deep"}}, "policy 'recurrent': trunk 'deep': there are 'mlp' and 'conv"),
        ("recurrent", {"arguments": {"units": 0}}, "policy 'recurrent': it cannot be made with {'units': 0}: ValueErr"),
        ("convolutional", {}, "policy 'convolutional': observations Box("),
        (
            "q-network",
            {"action": BOUNDED},
            "policy 'q-network': it values the actions of a Discrete space, not of Box(",
        ),
        (
            "random",
            {"arguments": {"hidden": []}},
            "policy 'random': it takes no arguments, but was given {'hidden': []}",
        ),
        (
            "actor-critic",
            {"behaviour": {"epsilon": 0.5, "temperature": 2.0}},
            "temperature 2.0: with an epsilon no choice is drawn by its logits; leave it, or the epsilon",
        ),
        ("q-network", {"behaviour": {"temperature": 5.0}}, "behaviour: temperature 5.0: with an epsilon"),
        ("random", {"behaviour": {"epsilon": 0.5}}, "policy 'random': of a behaviour it has the mask only, not {"),
        ("actor-critic", {"observation": Text(3)}, "observation is text, which no network takes"),
        (f"{ZOO}:constant", {"action": Text(3), "arguments": {"parameters": [0.0]}}, "no policy draws from Text"),
        (
            "actor-critic",
            {"behaviour": {"mask": "allowed"}},
            "mask 'allowed': no such info is recorded, none is: name it",
        ),
        ("actor-critic", {"behaviour": {"mask": "legal"}, "infos": (ALLOWED,)}, "'allowed' is: name it in --infos"),
        (
            "actor-critic",
            {"behaviour": {"mask": "allowed"}, "infos": (ALLOWED,), "action": Discrete(4)},
            "mask 'allowed': the info is of shape (3,), the action has 4 choices",
        ),
        ("actor-critic", {"device": "abacus"}, "device 'abacus': torch cannot compute there"),
        (f"{ZOO}:of_other_width", {}, "module ActorCritic: forward raised for observations (2, 4) of float32: Runtime"),
        (f"{ZOO}:answering", {"arguments": {"what": "no tuple"}}, "module Answering: forward must answer (parameters,"),
        (
            f"{ZOO}:answering",
            {"arguments": {"what": "no tensors"}},
            "Answering: forward must answer (parameters, value)",
        ),
        (f"{ZOO}:answering", {"arguments": {"what": "three"}}, "module Answering: forward must answer (parameters,"),
        (f"{ZOO}:answering", {"arguments": {"what": "narrow"}}, "parameters (2, 2) of torch.float32, not (2, 3) of"),
        (f"{ZOO}:answering", {"arguments": {"what": "value column"}}, "value (2, 1) of torch.float32, not (2,) of"),
        (f"{ZOO}:answering", {"arguments": {"what": "double"}}, "parameters (2, 3) of torch.float64, not (2, 3) of"),
        (
            f"{ZOO}:answering",
            {"arguments": {"what": "nan"}},
            "module Answering: parameters with NaN or infinity for observations",
        ),
        (
            f"{ZOO}:answering",
            {"arguments": {"what": "nan value"}},
            "module Answering: value with NaN or infinity for observations",
        ),
        (
            f"{ZOO}:valueless",
            {"behaviour": {"final_value": True}},
            "final_value: module Valueless answers None for val",
        ),
        (
            f"{ZOO}:policy_of_its_own_pipeline",
            {"connectors": [{"name": "flatten"}]},
            "it acts without the connectors that are set: have the factory take `pipeline`",
        ),
        (
            f"{ZOO}:policy_without_setting",
            {"behaviour": {"epsilon": 0.5}},
            "it acts without the behaviour that is set: have the factory take `behaviour`",
        ),
    ],
)
def test_a_policy_that_cannot_be_made_is_told(name: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        made(name, **settings)


def test_a_connector_that_takes_no_such_observation_is_told() -> None:
    with pytest.raises(SpaceError, match="connector 0 'previous_reward'"):
        made(observation=IMAGE, connectors=[{"name": "previous_reward"}])


def test_a_q_network_explores_by_an_epsilon_of_its_own_where_none_is_set() -> None:
    for behaviour, epsilon in (({}, 0.1), ({"epsilon": 0.5}, 0.5), ({"epsilon": 0}, 0.0)):
        policy = made("q-network", behaviour=behaviour)
        assert policy.behaviour.epsilon == epsilon
        assert policy.exploration is Exploration.EPSILON
