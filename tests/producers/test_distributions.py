"""Action distributions: their log-probabilities against torch's own, what is sent, and what they refuse."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.distributions import Categorical, Categoricals, DiagonalGaussian, distribution_for
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple, leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.policy.distributions import Distribution
    from penstock_schemas.spaces import Leaves, Space

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
ON, OFF, RANDOM, EPSILON = Exploration.ON, Exploration.OFF, Exploration.RANDOM, Exploration.EPSILON
PLAIN = Behaviour()
NESTED = Dict(
    (
        ("arm", Box((2,), FLOAT32, (-1.0,), (1.0,))),
        ("tool.kind", Discrete(3, start=4)),
        ("rest", Tuple((MultiBinary((2,)), MultiDiscrete((2,), (2, 3), (0, -1))))),
    )
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def recorded(space: Space, action: Leaves) -> Leaves:
    return tuple(leaf.astype(part.space.wire_dtype) for leaf, part in zip(action, leaves(space), strict=True))


def categorical(logits: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    distribution = torch.distributions.Categorical(logits=torch.from_numpy(logits.astype(np.float64)))
    log_prob = distribution.log_prob(torch.from_numpy(index))  # type: ignore[no-untyped-call]  # torch's
    answer: NDArray[Any] = log_prob.numpy()
    return answer


def normal(mean: NDArray[Any], std: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    wide = [torch.from_numpy(array.astype(np.float64)) for array in (mean, std, value)]
    log_prob = torch.distributions.Normal(*wide[:2]).log_prob(wide[2]).sum(1)  # type: ignore[no-untyped-call]  # torch's
    answer: NDArray[Any] = log_prob.numpy()
    return answer


@pytest.mark.parametrize("start", [0, -2, 1000])
def test_categorical_log_probabilities_are_torch_s(start: int) -> None:
    logits = (rng().standard_normal((1000, 7)) * 4).astype(np.float32)
    space = Discrete(7, start)
    distribution = Categorical(space)
    (action,) = distribution.draw(logits, rng(1), ON)
    assert action.shape == (1000,)
    assert set(action.tolist()) == set(range(start, start + 7))
    log_prob = distribution.log_prob(logits, recorded(space, (action,)))
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, categorical(logits, action - start), rtol=0, atol=1e-5)
    assert distribution.send((action,))[0] is action


@pytest.mark.parametrize(
    ("space", "sizes", "starts"),
    [
        (MultiDiscrete((3,), (2, 5, 1), (0, -3, 7)), [2, 5, 1], [0, -3, 7]),
        (MultiDiscrete((2, 2), (3, 3, 3, 3), (0, 0, 0, 1 << 40)), [3] * 4, [0, 0, 0, 1 << 40]),
        (MultiDiscrete((1,), (4,), (2,)), [4], [2]),
        (MultiBinary((2, 3)), [2] * 6, [0] * 6),
    ],
)
def test_log_probabilities_of_arrays_of_choices_are_torch_s(space: Any, sizes: list[int], starts: list[int]) -> None:
    distribution = Categoricals(space)
    assert distribution.parameters == distribution.choices == sum(sizes)
    logits = (rng().standard_normal((500, sum(sizes))) * 3).astype(np.float32)
    (action,) = distribution.draw(logits, rng(1), ON)
    assert action.shape == (500, *space.shape)
    assert action.dtype == space.dtype
    assert space.contains(action).all()
    index = action.reshape(500, -1) - np.array(starts)
    parts = np.split(logits, np.cumsum(sizes)[:-1], axis=1)
    expected = np.sum([categorical(part, index[:, i]) for i, part in enumerate(parts)], axis=0)
    log_prob = distribution.log_prob(logits, recorded(space, (action,)))
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, expected, rtol=0, atol=1e-5)


def test_extreme_logits_give_legal_actions_with_finite_log_probabilities() -> None:
    rows = np.array(
        [[1e4, -1e4, 0], [-1e4, -1e4, 1e4], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4]], np.float32
    ).repeat(2_000, axis=0)
    distribution = Categorical(Discrete(3, start=5))
    with np.errstate(invalid="raise", divide="raise"):
        action = distribution.draw(rows, rng(3), ON)
        log_prob = distribution.log_prob(rows, action)
    by_row = action[0].reshape(5, -1)
    assert [sorted(set(drawn.tolist())) for drawn in by_row] == [[5], [7], [5, 6, 7], [5, 6, 7], [5, 6]]
    expected = np.log([1, 1, 1 / 3, 1 / 3, 1 / 2]).repeat(2_000)
    np.testing.assert_allclose(log_prob, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mapping", ["clip", "rescale", "squash"])
@pytest.mark.parametrize(("shape", "dtype"), [((3,), np.float32), ((2, 2), np.float64), ((), np.float32)])
def test_gaussian_log_densities_are_torch_s_of_the_value_as_recorded(
    shape: tuple[int, ...], dtype: Any, mapping: str
) -> None:
    distribution = DiagonalGaussian(Box(shape, np.dtype(dtype), (-1.0,), (1.0,)), mapping)
    size = int(np.prod(shape))
    assert distribution.parameters == 2 * size
    parameters = rng().standard_normal((500, 2 * size)).astype(np.float32)
    (action,) = distribution.draw(parameters, rng(1), ON)
    assert (action.shape, action.dtype) == ((500, *shape), dtype)
    mean, log_std = np.split(parameters.astype(np.float64), 2, axis=1)
    log_prob = distribution.log_prob(parameters, (action,))
    assert log_prob.dtype == np.float32
    expected = normal(mean, np.exp(log_std), action.reshape(500, size))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)


def test_a_nested_action_has_the_sum_of_its_leaves_log_probabilities() -> None:
    distribution = distribution_for(NESTED, PLAIN)
    parts = [distribution_for(leaf.space, PLAIN) for leaf in leaves(NESTED)]
    assert (distribution.parameters, distribution.choices) == (4 + 3 + 4 + 5, 3 + 4 + 5)
    assert (distribution.discrete, distribution.mapping) == (False, "clip")
    parameters = rng().standard_normal((300, 16)).astype(np.float32)
    assert distribution.behave(parameters, None, PLAIN, ON) is parameters
    action = distribution.draw(parameters, rng(1), ON)
    for leaf, drawn in zip(leaves(NESTED)[1:], action[1:], strict=True):
        assert leaf.space.contains(drawn).all()
    own = np.split(parameters, [4, 7, 11], axis=1)
    expected = sum(
        part.log_prob(mine, (leaf,)) for part, mine, leaf in zip(parts, own, recorded(NESTED, action), strict=True)
    )
    log_prob = distribution.log_prob(parameters, recorded(NESTED, action))
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, expected, rtol=1e-6, atol=1e-5)
    sent = distribution.send(action)
    assert np.array_equal(sent[0], np.clip(action[0], -1, 1))
    assert not np.array_equal(sent[0], action[0])
    assert all(one is other for one, other in zip(sent[1:], action[1:], strict=True))


def test_nested_behaviour_reaches_each_leaf_that_has_use_for_it() -> None:
    behaviour = Behaviour(mask="legal", epsilon=0.25, noise=0.5, mapping="squash")
    distribution = distribution_for(NESTED, behaviour)
    parts = [distribution_for(leaf.space, PLAIN) for leaf in leaves(NESTED)]
    parameters = rng().standard_normal((50, 16)).astype(np.float32)
    mask = rng(1).random((50, 12)) < 0.5
    mask[:, [0, 3, 6, 7, 9]] = True
    own, masks = np.split(parameters, [4, 7, 11], axis=1), [None, mask[:, :3], mask[:, 3:7], mask[:, 7:]]
    for exploration in (ON, OFF, RANDOM):
        behaved = distribution.behave(parameters, mask, behaviour, exploration)
        expected = [
            part.behave(mine, mine_mask, behaviour, exploration)
            for part, mine, mine_mask in zip(parts, own, masks, strict=True)
        ]
        assert np.array_equal(behaved, np.concatenate(expected, axis=1))


def test_what_is_sent_of_a_nested_action_has_a_column_a_leaf_without_dots() -> None:
    assert distribution_for(NESTED, PLAIN).columns == (
        Column("action_sent_0", (2,), FLOAT32),
        Column("action_sent_1", (), np.dtype(np.int8)),
        Column("action_sent_2", (2,), np.dtype(np.int8)),
        Column("action_sent_3", (2,), np.dtype(np.int8)),
    )
    single = distribution_for(Tuple((Box((2,), FLOAT32, (0.0,), (1.0,)),)), Behaviour(mapping="rescale"))
    assert single.mapping == "rescale"
    assert [column.name for column in single.columns] == ["action_sent_0"]
    plain = distribution_for(Box((2, 2), FLOAT64), PLAIN)
    assert plain.columns == (Column("action_sent", (2, 2), FLOAT64),)
    for space in (Discrete(2), MultiBinary((2,)), Tuple((Discrete(2), MultiBinary((2,))))):
        distribution = distribution_for(space, PLAIN)
        assert (distribution.columns, distribution.mapping, distribution.discrete) == ((), "identity", True)


def drawn_wide(space: Box, mapping: str) -> tuple[Distribution, NDArray[Any], NDArray[Any]]:
    distribution = DiagonalGaussian(space, mapping)
    parameters = np.tile(np.array([[0.0, 1.0]], np.float32).repeat(4, axis=1), (1000, 1))
    (drawn,) = distribution.draw(parameters, rng(5), ON)
    (sent,) = distribution.send((drawn,))
    assert (sent.dtype, sent.shape) == (space.dtype, drawn.shape)
    assert space.contains(sent).all()
    assert (distribution.mapping, distribution.columns) == (mapping, (Column("action_sent", space.shape, space.dtype),))
    return distribution, drawn, sent


def test_clipped_actions_are_sent_within_the_bounds_and_recorded_as_drawn() -> None:
    space = Box((2, 2), FLOAT32, (-1.0, -2.0, 0.0, -np.inf), (1.0, 2.0, np.inf, np.inf))
    _, drawn, sent = drawn_wide(space, "clip")
    low, high = (np.array(bounds, np.float32).reshape(2, 2) for bounds in (space.low, space.high))
    assert np.array_equal(sent, np.minimum(np.maximum(drawn, low), high))
    assert (drawn < low).any()
    assert (drawn > high).any()


BOUNDS = [
    ((-1.0, -2.0, 0.0, 5.0), (1.0, 4.0, 1e-3, 5.0)),
    ((-3.4e38, 0.1, -1e30, 16777216.0), (3.4e38, 1e8, 1.0, 16777218.0)),
]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_rescaled_actions_are_clipped_and_scaled_into_the_bounds(low: Any, high: Any, dtype: np.dtype[Any]) -> None:
    distribution, drawn, sent = drawn_wide(Box((4,), dtype, low, high), "rescale")
    least, most = (np.array(bounds, dtype).astype(np.longdouble) for bounds in (low, high))
    expected = least + (np.clip(drawn, -1, 1).astype(np.longdouble) + 1) / 2 * (most - least)
    np.testing.assert_allclose(sent, expected.astype(np.float64), rtol=1e-6, atol=1e-7 * float(max(map(abs, high))))
    edges = distribution.send((np.array([[-1.0] * 4, [1.0] * 4], dtype),))[0]
    np.testing.assert_allclose(edges, [low, high], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_squashed_actions_are_mapped_into_the_bounds_by_tanh(low: Any, high: Any, dtype: np.dtype[Any]) -> None:
    distribution, drawn, sent = drawn_wide(Box((4,), dtype, low, high), "squash")
    least, most = (np.array(bounds, dtype).astype(np.longdouble) for bounds in (low, high))
    expected = least + (np.tanh(drawn.astype(np.longdouble)) + 1) / 2 * (most - least)
    np.testing.assert_allclose(sent, expected.astype(np.float64), rtol=1e-6, atol=1e-7 * float(max(map(abs, high))))
    far = distribution.send((np.array([[-1e30] * 4, [1e30] * 4], dtype),))[0]
    np.testing.assert_allclose(far, [low, high], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("space", "behaviour", "told"),
    [
        (Text(3), PLAIN, "action: no policy draws from Text("),
        (Dict((("a", Discrete(2)), ("b", Text(1)))), PLAIN, "action.b: no policy draws from Text("),
        (Box((2,), np.dtype(np.int32)), PLAIN, "action: Box of dtype int32: a Gaussian policy acts in floats only"),
        (Tuple((Box((2,), np.dtype(np.uint8)),)), PLAIN, "action.0: Box of dtype uint8: a Gaussian policy acts in"),
        (
            Box((2, 2), FLOAT32, (-1.0, -1.0, -np.inf, 0.0), (1.0,)),
            Behaviour(mapping="squash"),
            "action: mapping 'squash' needs finite bounds, those of element 2 are -inf … 1: use 'clip'",
        ),
        (Box((2,), FLOAT32), Behaviour(mapping="rescale"), "action: mapping 'rescale' needs finite bounds"),
        (Discrete(1 << 62), PLAIN, f"action: {1 << 62} choices, a policy has at most 16777216"),
        (MultiDiscrete((2,), (1 << 62, 1 << 63), (0, 0)), PLAIN, "choices, a policy has at most 16777216"),
        (Box((2,), FLOAT32), Behaviour(mask="m"), "mask 'm': the action has floats only, and no choices; leave it"),
        (Box((2,), FLOAT32), Behaviour(epsilon=0.0), "epsilon 0.0: the action has floats only, and no choices"),
        (Discrete(2), Behaviour(noise=0.1), "noise 0.1: the action has choices only, and no floats; leave it"),
        (
            MultiBinary((2,)),
            Behaviour(mapping="squash"),
            "mapping 'squash': the action has choices only, and no floats",
        ),
    ],
)
def test_what_no_distribution_draws_is_refused_by_name(space: Any, behaviour: Behaviour, told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        distribution_for(space, behaviour)


MASKED = Behaviour(mask="legal")


@pytest.mark.parametrize(
    ("space", "mask", "told"),
    [
        (
            Discrete(3),
            [[1, 0, 1], [0, 0, 0]],
            "info 'legal': row 1 of 2 allows no choice of action: allow one",
        ),
        (
            MultiDiscrete((2,), (2, 3), (0, 0)),
            [[1, 0, 0, 1, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
            "info 'legal': row 2 of 3 allows no choice of action for component 1:",
        ),
        (
            Tuple((Discrete(2), MultiBinary((1,)))),
            [[1, 0, 1, 0], [1, 1, 0, 0]],
            "info 'legal': row 1 of 2 allows no choice of action.1:",
        ),
        (Discrete(3), [[1, 0]], "info 'legal': a mask of 2 choices, action has 3"),
        (MultiBinary((2,)), [[1, 0, 1, 1, 1]], "info 'legal': a mask of 5 choices, action has 4"),
        (Tuple((Discrete(2), MultiBinary((1,)))), [[1, 0]], "info 'legal': a mask of 2 choices, action has 4"),
    ],
)
@pytest.mark.parametrize("exploration", [ON, OFF, RANDOM])
def test_a_mask_that_is_none_is_refused_by_row(
    space: Any, mask: list[list[int]], told: str, exploration: Exploration
) -> None:
    distribution = distribution_for(space, MASKED)
    parameters = np.zeros((len(mask), distribution.parameters), np.float32)
    with pytest.raises(PolicyError, match=re.escape(told)):
        distribution.behave(parameters, np.array(mask, np.int8), MASKED, exploration)


def test_epsilon_exploration_without_an_epsilon_is_refused() -> None:
    with pytest.raises(PolicyError, match="action: exploration EPSILON without an epsilon"):
        Categorical(Discrete(3)).behave(np.zeros((2, 3), np.float32), None, PLAIN, EPSILON)


def test_a_mask_may_be_of_any_dtype_and_shaped_as_the_action() -> None:
    distribution = distribution_for(MultiDiscrete((2,), (3, 3), (0, 0)), MASKED)
    parameters = rng().standard_normal((20, 6)).astype(np.float32)
    mask = rng(1).integers(0, 2, (20, 2, 3))
    mask[:, :, 1] = 7
    behaved = distribution.behave(parameters, mask.astype(np.uint8), MASKED, ON)
    assert np.array_equal(behaved, distribution.behave(parameters, mask.reshape(20, 6) > 0, MASKED, ON))
    assert np.array_equal(np.isneginf(behaved), mask.reshape(20, 6) == 0)


@pytest.mark.parametrize("answer", [np.nan, -np.inf, np.inf, 3e38, -3e38])
@pytest.mark.parametrize(
    "behaviour", [MASKED, Behaviour(mask="m", epsilon=0.0), Behaviour(mask="m", temperature=1e-30)]
)
@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2,), (3, 2), (0, 0))])
def test_whatever_a_network_answers_the_mask_is_obeyed(space: Any, behaviour: Behaviour, answer: float) -> None:
    distribution = distribution_for(space, behaviour)
    parameters = np.full((1000, distribution.parameters), 1, np.float32)
    parameters[:, [1, -1]] = answer
    mask = np.ones(parameters.shape, np.bool_)
    mask[:, [0, 2]] = False
    for exploration in (ON, OFF, RANDOM):
        behaved = distribution.behave(parameters, mask, behaviour, exploration)
        action = distribution.draw(behaved, rng(), exploration)
        assert set(action[0].reshape(1000, -1)[:, 0].tolist()) == {1}
        assert np.isfinite(distribution.log_prob(behaved, action)).all()


@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.parametrize(
    "space",
    [
        *(Discrete(1), Discrete(3), MultiDiscrete((1,), (1,), (0,)), MultiDiscrete((2,), (3, 2), (0, 0))),
        *(Box((1,), FLOAT32), Box((2,), FLOAT32), NESTED),
    ],
)
@pytest.mark.parametrize("exploration", [ON, OFF, RANDOM])
def test_what_a_network_answers_is_never_written_to(space: Any, exploration: Exploration, n: int) -> None:
    behaviour = Behaviour(temperature=2.0, noise=0.0)
    distribution = distribution_for(space, behaviour)
    parameters = rng().standard_normal((n, distribution.parameters)).astype(np.float32)
    before = parameters.copy()
    parameters.setflags(write=False)
    mask = np.ones((n, distribution.choices), np.bool_) if distribution.choices else None
    behaved = distribution.behave(parameters, mask, behaviour, exploration)
    behaved.setflags(write=False)
    action = distribution.draw(behaved, rng(), exploration)
    distribution.log_prob(behaved, action)
    distribution.send(action)
    assert not any(np.shares_memory(leaf, parameters) for leaf in action)
    assert np.array_equal(parameters, before)


@pytest.mark.parametrize("space", [Discrete(3), MultiBinary((4,)), Box((2,), FLOAT32)])
def test_where_nothing_is_to_be_done_the_network_s_answer_is_what_is_drawn_from(space: Any) -> None:
    distribution = distribution_for(space, PLAIN)
    parameters = rng().standard_normal((10, distribution.parameters)).astype(np.float32)
    assert distribution.behave(parameters, None, PLAIN, ON) is parameters
