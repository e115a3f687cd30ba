"""Policies: what they draw and record against torch's own distributions, how they load, how they are made."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock_producers.policy import TorchPolicy, make_policy
from penstock_producers.policy.actor_critic import ActorCritic
from penstock_producers.policy.base import Inputs
from penstock_producers.policy.distributions import Categorical, DiagonalGaussian, distribution_for
from penstock_producers.policy.inputs import flat
from penstock_schemas.columns import Column
from penstock_schemas.connectors import Pipeline
from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple, leaves
from tests.producers import policy_zoo

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZOO = "tests.producers.policy_zoo"
OBSERVATION = Box((4,), np.dtype(np.float32))
FLOAT32 = np.dtype(np.float32)
# Quantiles at 1 - 1e-4 of the chi-squared distribution with 4 degrees of freedom, and of Kolmogorov's.
CHI_SQUARED_4 = 23.5
KOLMOGOROV = 2.23


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def made(action: Any = None, name: str = "actor-critic", **arguments: Any) -> TorchPolicy:
    policy = make_policy(name, OBSERVATION, action or Discrete(3), arguments=arguments, rng=rng())
    assert isinstance(policy, TorchPolicy)
    return policy


def weights_of(policy: TorchPolicy) -> dict[str, NDArray[Any]]:
    return {name: value.numpy().copy() for name, value in policy._module.state_dict().items()}


@pytest.mark.parametrize("start", [0, -2, 1000])
def test_categorical_log_probabilities_are_torch_s(start: int) -> None:
    logits = (rng().standard_normal((1000, 7)) * 4).astype(np.float32)
    distribution = Categorical(Discrete(7, start))
    action = distribution.draw(logits, rng(1))
    assert action.shape == (1000,)
    assert set(action.tolist()) == set(range(start, start + 7))
    index = torch.from_numpy(action - start)
    expected = torch.distributions.Categorical(logits=torch.from_numpy(logits)).log_prob(index)  # type: ignore[no-untyped-call]  # torch's
    log_prob = distribution.log_prob(logits, action.astype(Discrete(7, start).wire_dtype))
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, expected, rtol=0, atol=1e-5)
    assert np.array_equal(distribution.send(action), action)
    assert distribution.mapping == "identity"
    assert distribution.columns == ()


WIDE = np.finfo(np.float64).max


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3, start=-7),
        MultiDiscrete((2,), (1 << 62, 3), (1 << 62, 0)),
        MultiBinary((2, 3)),
        Text(5, 2, "ab"),
        Text(3),
        Box((2,), FLOAT32, (-1.0, 0.5), (1.0, 0.75)),
        Box((3,), np.dtype(np.float64), (-np.inf, 0.0, -np.inf), (np.inf, np.inf, 2.0)),
        Box((2,), np.dtype(np.float64), (-WIDE,), (WIDE,)),
        Box((2, 2), np.dtype(np.uint8), (0.0,), (255.0,)),
        Box((4,), np.dtype(np.int64)),
        Box((2,), np.dtype(np.bool_), (0.0,), (1.0,)),
        Dict((("a", Discrete(2)), ("b", Tuple((Text(1), Box((), FLOAT32, (0.0,), (1.0,))))))),
    ],
)
def test_random_actions_are_of_their_space(space: Any) -> None:
    policy = make_policy("random", OBSERVATION, space, rng=rng())
    actions = policy.act(Inputs((np.zeros((300, 4), np.float32),)))
    for leaf, drawn in zip(leaves(space), actions.sent, strict=True):
        assert leaf.space.contains(drawn.astype(leaf.space.dtype)).all()
        assert len(np.unique(drawn.astype(str) if drawn.dtype == object else drawn, axis=0)) > 1
    with pytest.raises(PolicyRejectedError, match="random actions have no weights"):
        policy.load(PolicyRecord(1, {}))


@pytest.mark.parametrize("logits", [[0.0] * 5, [1.0, -2.0, 0.5, 0.0, -0.3], [3.0, 3.0, -4.0, 0.0, 1.0]])
def test_categorical_frequencies_are_the_probabilities(logits: list[float]) -> None:
    n = 200_000
    rows = np.tile(np.array(logits, np.float32), (n, 1))
    counts = np.bincount(Categorical(Discrete(5)).draw(rows, rng(2)), minlength=5)
    expected = n * torch.softmax(torch.tensor(logits), 0).numpy()
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARED_4


def test_extreme_logits_give_legal_actions_with_finite_log_probabilities() -> None:
    rows = np.array(
        [[1e4, -1e4, 0], [-1e4, -1e4, 1e4], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4]], np.float32
    ).repeat(20_000, axis=0)
    distribution = Categorical(Discrete(3, start=5))
    with np.errstate(invalid="raise", divide="raise"):
        action = distribution.draw(rows, rng(3))
        log_prob = distribution.log_prob(rows, action)
    by_row = action.reshape(5, -1)
    assert [sorted(set(drawn.tolist())) for drawn in by_row] == [[5], [7], [5, 6, 7], [5, 6, 7], [5, 6]]
    expected = np.log([1, 1, 1 / 3, 1 / 3, 1 / 2]).repeat(20_000)
    np.testing.assert_allclose(log_prob, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("shape", "dtype"), [((3,), np.float32), ((2, 2), np.float64), ((), np.float32)])
def test_gaussian_log_densities_are_torch_s_of_the_value_as_recorded(shape: tuple[int, ...], dtype: Any) -> None:
    distribution = DiagonalGaussian(Box(shape, np.dtype(dtype), (-1.0,), (1.0,)))
    size = int(np.prod(shape))
    assert distribution.parameters == 2 * size
    parameters = rng().standard_normal((500, 2 * size)).astype(np.float32)
    action = distribution.draw(parameters, rng(1))
    assert (action.shape, action.dtype) == ((500, *shape), dtype)
    mean, log_std = np.split(parameters.astype(np.float64), 2, axis=1)
    normal = torch.distributions.Normal(torch.from_numpy(mean), torch.from_numpy(np.exp(log_std)))
    recorded = torch.from_numpy(action.reshape(500, size).astype(np.float64))
    expected = normal.log_prob(recorded).sum(1)  # type: ignore[no-untyped-call]  # torch's
    log_prob = distribution.log_prob(parameters, action)
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)


def test_gaussian_draws_are_normal() -> None:
    n = 100_000
    parameters = np.tile(np.array([0.5, -3.0, np.log(2.0), np.log(0.1)], np.float32), (n, 1))
    drawn = DiagonalGaussian(Box((2,), FLOAT32)).draw(parameters, rng(4))
    for column, mean, std in ((0, 0.5, 2.0), (1, -3.0, 0.1)):
        ordered = torch.from_numpy(np.sort(drawn[:, column]).astype(np.float64))
        cumulative = torch.distributions.Normal(mean, std).cdf(ordered).numpy()  # type: ignore[no-untyped-call]  # torch's
        distance = np.abs(cumulative - (np.arange(n) + 0.5) / n).max() + 0.5 / n
        assert distance * np.sqrt(n) < KOLMOGOROV
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 5 / np.sqrt(n)


def test_what_is_sent_is_clipped_and_what_was_drawn_is_not() -> None:
    space = Box((2, 2), FLOAT32, (-1.0, -2.0, 0.0, -np.inf), (1.0, 2.0, np.inf, np.inf))
    distribution = DiagonalGaussian(space)
    drawn = distribution.draw(np.tile(np.array([[0, 0, 0, 0, 1, 1, 1, 1]], np.float32), (1000, 1)), rng(5))
    sent = distribution.send(drawn)
    low, high = (np.array(bounds, np.float32).reshape(2, 2) for bounds in (space.low, space.high))
    assert np.array_equal(sent, np.minimum(np.maximum(drawn, low), high))
    assert (drawn < low).any()
    assert (drawn > high).any()
    assert sent.dtype == space.dtype
    assert distribution.mapping == "clip"
    assert distribution.columns == (Column("action_sent", (2, 2), FLOAT32),)


def test_a_gaussian_acts_in_floats_only() -> None:
    with pytest.raises(PolicyError, match=r"action space Box of dtype int32: a Gaussian policy acts in floats only"):
        distribution_for(Box((2,), np.dtype(np.int32)))


@pytest.mark.parametrize("action", [Discrete(3), Box((2,), FLOAT32, (-1.0,), (1.0,))])
@pytest.mark.parametrize("observation", [OBSERVATION, Box((2, 3), np.dtype(np.uint8)), Discrete(7)])
def test_what_is_recorded_follows_from_the_module(action: Any, observation: Any) -> None:
    policy = make_policy("actor-critic", observation, action, rng=rng())
    seen = (rng(1).random((64, *observation.shape)) * 5).astype(observation.dtype)
    actions = policy.act(Inputs((seen,)))
    recording = policy.recording
    recorded = dict(
        zip(("action", *(extra.name for extra in policy.extras)), recording.finish(actions.drawn), strict=True)
    )
    assert [values.shape[1:] for values in actions.drawn] == [column.shape for column in recording.columns]
    with torch.no_grad():
        parameters, value = policy._module(torch.from_numpy(seen))
    distribution = distribution_for(action)
    np.testing.assert_allclose(recorded["value"], value, atol=1e-5)
    expected = distribution.log_prob(parameters.numpy(), recorded["action"])
    np.testing.assert_allclose(recorded["log_prob"], expected, atol=1e-4)
    assert np.array_equal(actions.sent[0], recorded.get("action_sent", recorded["action"]))
    assert np.array_equal(actions.sent[0], distribution.send(recorded["action"]))


def test_equal_generators_draw_equal_actions() -> None:
    seen = rng(1).random((64, 4), np.float32)
    one, two = made(), made()
    assert np.array_equal(one.act(Inputs((seen,))).sent[0], two.act(Inputs((seen,))).sent[0])
    assert not np.array_equal(
        one.act(Inputs((seen,))).sent[0],
        make_policy("actor-critic", OBSERVATION, Discrete(3), rng=rng(9)).act(Inputs((seen,))).sent[0],
    )


def test_a_subclass_of_the_built_in_network_acts_by_its_own_forward() -> None:
    seen = rng(1).random((8, 4), np.float32)
    _, built_in, _ = made().act(Inputs((seen,))).drawn
    _, doubled, _ = made(name=f"{ZOO}:doubling").act(Inputs((seen,))).drawn
    np.testing.assert_allclose(doubled, 2 * built_in, atol=1e-5)


def test_a_factory_s_network_of_the_built_in_class_acts_by_its_own_layers() -> None:
    seen = rng(1).standard_normal((8, 4), np.float32)
    policy = made(name=f"{ZOO}:rectified")
    _, parameters, value = policy.act(Inputs((seen,))).drawn
    with torch.no_grad():
        expected = policy.module(torch.from_numpy(seen))
    np.testing.assert_allclose(parameters, expected[0], atol=1e-6)
    np.testing.assert_allclose(value, expected[1], atol=1e-6)


@pytest.mark.parametrize(
    ("off", "told"), [((0.01, 0), "parameters 0.01"), ((0, 0.01), "value 0.01"), ((np.nan, 0), "")]
)
def test_a_function_that_is_not_the_module_s_forward_is_refused(off: tuple[float, float], told: str) -> None:
    network = ActorCritic((4,), 3)
    own = network.numpy_forward()

    def forward(observation: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        parameters, value = own(observation)
        return parameters + off[0], value + off[1]

    policy = TorchPolicy(
        network,
        flat(OBSERVATION),
        Pipeline(OBSERVATION),
        Discrete(3),
        Categorical(Discrete(3)),
        rng(),
        make_forward=lambda: forward,
    )
    with pytest.raises(PolicyError, match=f"module ActorCritic: the function that acts answers {told}"):
        policy.probe((rng(1).standard_normal((4, 4), np.float32),))


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
    policy = make_policy(f"{ZOO}:remembering", observation, Discrete(3), rng=rng())
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


def test_two_makes_begin_with_equal_weights_whatever_torch_s_generator() -> None:
    one = made()
    torch.manual_seed(123)
    two = made()
    assert one.version == two.version == 0
    assert one.digest == two.digest == digest(weights_of(two), {}) == PolicyRecord(0, weights_of(one)).digest
    assert one.digest != made(hidden=[32]).digest


def test_making_leaves_torch_s_generator_as_it_was() -> None:
    torch.manual_seed(123)
    expected = torch.rand(3).tolist()
    torch.manual_seed(123)
    made()
    assert torch.rand(3).tolist() == expected


def test_policies_made_side_by_side_begin_with_equal_weights() -> None:
    with ThreadPoolExecutor(8) as threads:
        digests = {policy.digest for policy in threads.map(lambda _: made(hidden=[256, 256]), range(32))}
    assert digests == {made(hidden=[256, 256]).digest}


@pytest.mark.parametrize("name", ["actor-critic", f"{ZOO}:doubling"])
def test_a_loaded_version_acts_under_its_own_digest(name: str) -> None:
    policy = made(name=name)
    weights = weights_of(policy)
    weights["head.bias"][:] = [-90, 90, -90, 0.25]
    weights["head.weight"][:] = 0
    record = PolicyRecord(5, weights, {"epsilon": 0.1})
    policy.load(record)
    assert (policy.version, policy.digest) == (5, record.digest)
    actions = policy.act(Inputs((rng().random((100, 4), np.float32),)))
    assert set(actions.sent[0].tolist()) == {1}
    _, _, value = actions.drawn
    assert set(value.tolist()) == {0.25 if name == "actor-critic" else 0.5}
    # What acts is a copy.
    weights["head.bias"][:] = [90, -90, -90, 0.25]
    assert set(policy.act(Inputs((rng().random((100, 4), np.float32),))).sent[0].tolist()) == {1}


def without_bias(weights: dict[str, Any]) -> None:
    del weights["head.bias"]


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


@pytest.mark.parametrize(
    ("spoil", "reason", "told"),
    [
        (without_bias, "names", "weights missing ['head.bias'], unknown []"),
        (with_more, "names", "weights missing [], unknown ['tail.bias']"),
        (of_other_shape, "shapes", "weight 'head.bias' is (5,) of float32, the module's is (4,) of float32"),
        (of_other_dtype, "shapes", "weight 'head.bias' is (4,) of float64, the module's is (4,) of float32"),
        (with_nan, "not_finite", "weight 'trunk.0.weight' is not finite"),
        (with_infinity, "not_finite", "weight 'head.bias' is not finite"),
    ],
)
def test_a_bad_version_is_refused_and_nothing_has_changed(spoil: Any, reason: str, told: str) -> None:
    policy, twin = made(), made()
    good = {name: value + 1 for name, value in weights_of(policy).items()}
    for either in (policy, twin):
        either.load(PolicyRecord(2, good))
    bad = {name: value + 7 for name, value in good.items()}
    spoil(bad)
    for refuse in (policy.check, policy.load):
        with pytest.raises(PolicyRejectedError, match=re.escape(f"{reason}: policy version 3: {told}")) as refused:
            refuse(PolicyRecord(3, bad))
        assert refused.value.reason == reason
    policy.check(PolicyRecord(3, {name: value + 9 for name, value in good.items()}))
    assert (policy.version, policy.digest) == (2, PolicyRecord(2, good).digest)
    assert digest(weights_of(policy), {}) == policy.digest
    seen = rng().random((50, 4), np.float32)
    for one, other in zip(policy.act(Inputs((seen,))).drawn, twin.act(Inputs((seen,))).drawn, strict=True):
        assert np.array_equal(one, other)


def test_a_user_s_own_factory_gets_the_spaces_and_its_arguments() -> None:
    policy = made(name=f"{ZOO}:constant", parameters=[-90.0, -90.0, 90.0])
    assert isinstance(policy._module, policy_zoo.Constant)
    seen = np.arange(12, dtype=np.float32).reshape(3, 4)
    action, parameters, value = policy.act(Inputs((seen,))).drawn
    assert action.tolist() == [2, 2, 2]
    assert parameters.tolist() == [[-90.0, -90.0, 90.0]] * 3
    assert value.tolist() == [6.0, 22.0, 38.0]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("nope", {}, "policy 'nope': neither 'actor-critic' nor 'random' nor of the form module:factory"),
        ("no_such_module:make", {}, "it cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (":make", {}, "policy ':make': it cannot be imported: ValueError"),
        (f"{ZOO}:absent", {}, "it cannot be imported: AttributeError: module 'tests.producers.policy_zoo' has no"),
        (f"{ZOO}:NOT_CALLABLE", {}, "it cannot be made with {}: TypeError: 'str' object is not callable"),
        (f"{ZOO}:constant", {}, "it cannot be made with {}: TypeError: constant() missing 1 required"),
        (f"{ZOO}:raising", {}, "it cannot be made with {}: ValueError: the weights are at home"),
        (f"{ZOO}:no_module", {}, "the factory returned str, not a torch.nn.Module"),
        (f"{ZOO}:halved", {}, "module Halved: weight 'layer.weight' is of torch.bfloat16, which numpy does not have"),
        (f"{ZOO}:stateful", {}, "module Stateful: weight '_extra_state' is of str, which numpy does not have"),
        ("actor-critic", {"depth": 3}, "it cannot be made with {'depth': 3}: TypeError"),
        ("actor-critic", {"hidden": [-1]}, "it cannot be made with {'hidden': [-1]}: RuntimeError"),
        (f"{ZOO}:of_other_width", {}, "module ActorCritic: forward raised for observations (2, 4) of float32: Runtime"),
        (f"{ZOO}:answering", {"what": "no tuple"}, "module Answering: forward must answer (parameters, value)"),
        (f"{ZOO}:answering", {"what": "no tensors"}, "module Answering: forward must answer (parameters, value)"),
        (f"{ZOO}:answering", {"what": "three"}, "module Answering: forward must answer (parameters, value)"),
        (f"{ZOO}:answering", {"what": "narrow"}, "parameters (2, 2) of torch.float32, not (2, 3) of float32"),
        (f"{ZOO}:answering", {"what": "value column"}, "value (2, 1) of torch.float32, not (2,) of float32"),
        (f"{ZOO}:answering", {"what": "double"}, "parameters (2, 3) of torch.float64, not (2, 3) of float32"),
    ],
)
def test_a_policy_that_cannot_be_made_is_told(name: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        made(name=name, **arguments)


def test_the_deviations_of_a_gaussian_are_learned_apart_from_observations() -> None:
    network = ActorCritic((3,), 4, hidden=(8,), free_log_std=2)
    assert network.log_std is not None
    with torch.no_grad():
        network.log_std[:] = torch.tensor([0.5, -0.5])
        parameters, value = network(torch.rand(5, 3))
    assert parameters.shape == (5, 4)
    assert value.shape == (5,)
    assert parameters[:, 2:].tolist() == [[0.5, -0.5]] * 5
