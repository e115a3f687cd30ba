"""Exploration: how often actions are drawn is what their recorded log-probabilities say, whatever the behaviour."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.distributions import Categorical, Categoricals, distribution_for
from penstock_schemas.chunks import Exploration
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_producers.policy.distributions import Distribution
    from penstock_schemas.spaces import LeafSpace, Leaves, Space

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
ON, OFF, RANDOM, EPSILON = Exploration.ON, Exploration.OFF, Exploration.RANDOM, Exploration.EPSILON
# How often a test with another seed would be red by chance, and Kolmogorov's quantile at one less that.
CHANCE = 1e-4
KOLMOGOROV = 2.23
N = 20_000

MULTI_DISCRETE = MultiDiscrete((2,), (2, 3), (0, -1))
CHOICES = {
    "discrete": Discrete(5, start=-2),
    "multi-discrete": MULTI_DISCRETE,
    "multi-binary": MultiBinary((3,)),
    "nested": Dict((("kind", Discrete(3)), ("flags", Tuple((MultiBinary((1,)),))))),
}
EPSILON_GREEDY = Behaviour(epsilon=0.3)
HOW = {
    "as it is": (Behaviour(), ON),
    "hot": (Behaviour(temperature=3.0), ON),
    "cold": (Behaviour(temperature=0.6), ON),
    "greedy": (Behaviour(epsilon=0.0), ON),
    "epsilon": (EPSILON_GREEDY, ON),
    "told epsilon": (EPSILON_GREEDY, EPSILON),
    "all random": (Behaviour(epsilon=1.0), EPSILON),
    "off": (Behaviour(temperature=3.0), OFF),
    "off epsilon": (EPSILON_GREEDY, OFF),
    "random": (Behaviour(temperature=0.6), RANDOM),
    "random epsilon": (EPSILON_GREEDY, RANDOM),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def values(space: LeafSpace) -> NDArray[Any]:
    """Every value of a space of choices, shape (m, *shape)."""
    if isinstance(space, Discrete):
        return np.arange(space.start, space.start + space.n)
    if isinstance(space, MultiDiscrete):
        ranges = [range(start, start + n) for start, n in zip(space.start, space.nvec, strict=True)]
    else:
        ranges = [range(2)] * int(np.prod(space.shape))
    return np.array(list(product(*ranges)), np.int64).reshape(-1, *space.shape)


def every_action(space: Space) -> Leaves:
    """Every action of a space of choices, an array (m, *shape) for each leaf."""
    own = [values(leaf.space) for leaf in leaves(space)]
    positions = np.array(list(product(*(range(len(each)) for each in own)))).T
    return tuple(each[position] for each, position in zip(own, positions, strict=True))


def sizes(space: Space) -> list[int]:
    found: list[int] = []
    for leaf in leaves(space):
        inner = leaf.space
        if isinstance(inner, Discrete):
            found.append(inner.n)
        else:
            found += inner.nvec if isinstance(inner, MultiDiscrete) else [2] * int(np.prod(inner.shape))
    return found


def some_of(space: Space) -> NDArray[np.bool_]:
    """A mask that forbids the best choice of each component that has more than two, and one of some others."""
    mask = [np.ones(size, np.bool_) for size in sizes(space)]
    for component, part in enumerate(mask):
        part[0] = len(part) == 2 and component % 2 == 0
    return np.concatenate(mask)


def logits_of(space: Space) -> NDArray[np.float32]:
    """A row of logits, the largest of each component first."""
    return np.concatenate([np.linspace(0.5, -0.6, size) for size in sizes(space)]).astype(np.float32)


def expected_probabilities(
    space: Space, logits: NDArray[Any], mask: NDArray[np.bool_], behaviour: Behaviour, exploration: Exploration
) -> NDArray[np.float64]:
    """The probability of every action, told one component at a time, as a reader would."""
    edges = np.cumsum(sizes(space))[:-1]
    components = []
    for own, allowed in zip(np.split(logits.astype(np.float64), edges), np.split(mask, edges), strict=True):
        uniform = allowed / allowed.sum()
        legal = np.where(allowed, own, -np.inf)
        greedy = np.arange(len(own)) == legal.argmax()
        soft = np.exp((legal - legal.max()) / behaviour.temperature)
        if exploration is RANDOM:
            components.append(uniform)
        elif exploration is OFF:
            components.append(greedy)
        elif behaviour.epsilon is not None:
            components.append((1 - behaviour.epsilon) * greedy + behaviour.epsilon * uniform)
        else:
            components.append(soft / soft.sum())
    return np.array([np.prod(each) for each in product(*components)])


def counted(space: Space, action: Leaves) -> NDArray[np.int64]:
    """How often each of `every_action` is among those drawn."""
    rows, known = (
        np.concatenate([leaf.reshape(len(leaf), -1).astype(np.int64) for leaf in given], axis=1)
        for given in (action, every_action(space))
    )
    code = np.array([7 ** np.arange(rows.shape[1])]).T
    order = np.argsort(known @ code, axis=0)[:, 0]
    position = np.searchsorted((known @ code)[order, 0], (rows @ code)[:, 0])
    return np.bincount(order[position], minlength=len(known))


def chance_of(counts: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """How likely counts as far from their expectations as these are, by Pearson's chi-squared test."""
    there = probabilities > 0
    assert not counts[~there].any()
    if there.sum() == 1:
        return 1.0
    expected = counts.sum() * probabilities[there].astype(np.float64)
    assert expected.min() > 5
    statistic = ((counts[there] - expected) ** 2 / expected).sum()
    freedom = float(there.sum() - 1)
    return float(torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(statistic / 2)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("behaviour", "exploration"), HOW.values(), ids=HOW)
@pytest.mark.parametrize("space", CHOICES.values(), ids=CHOICES)
def test_choices_are_drawn_as_often_as_their_log_probabilities_say(
    space: Space, behaviour: Behaviour, exploration: Exploration, masked: bool
) -> None:
    distribution = distribution_for(space, behaviour)
    logits = logits_of(space)
    mask = some_of(space) if masked else np.ones(len(logits), np.bool_)
    rows = np.tile(logits, (N, 1))
    behaved = distribution.behave(rows, np.tile(mask, (N, 1)) if masked else None, behaviour, exploration)
    drawn = distribution.draw(behaved, rng(1), exploration)
    every = every_action(space)
    of_every = distribution.log_prob(behaved[: len(every[0])], every)
    # What is recorded says the same of each action wherever it was drawn.
    recorded = distribution.log_prob(behaved, drawn)
    counts = counted(space, drawn)
    np.testing.assert_allclose(counts @ np.where(counts, of_every, 0), recorded.sum(dtype=np.float64), rtol=1e-5)
    probabilities = np.exp(of_every.astype(np.float64))
    expected = expected_probabilities(space, logits, mask, behaviour, exploration)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5, atol=1e-7)
    assert chance_of(counts, probabilities) > CHANCE
    if exploration is OFF:
        assert not recorded.any()


def distance(sample: NDArray[Any], cumulative: Callable[[NDArray[Any]], NDArray[Any]]) -> float:
    """The Kolmogorov-Smirnov distance of a sample (n,) from a distribution, times the root of n."""
    n = len(sample)
    at = cumulative(np.sort(sample.astype(np.float64)))
    return float((np.abs(at - (np.arange(n) + 0.5) / n).max() + 0.5 / n) * np.sqrt(n))


def cumulative_of(distribution: Distribution, row: NDArray[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The distribution function that the log-densities of a single float add up to."""
    grid = np.linspace(-60, 60, 60_001)
    density = np.exp(distribution.log_prob(np.tile(row, (len(grid), 1)), (grid[:, None],)).astype(np.float64))
    total = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    assert abs(total[-1] - 1) < 1e-4
    return lambda at: np.interp(at, grid, total)


@pytest.mark.parametrize("mapping", ["clip", "rescale", "squash"])
@pytest.mark.parametrize(
    "behaviour",
    [{}, {"noise": 1.5}, {"temperature": 4.0}, {"temperature": 0.25, "noise": 0.1}],
    ids=["plain", "noise", "hot", "both"],
)
def test_floats_are_drawn_as_often_as_their_log_densities_say(behaviour: dict[str, float], mapping: str) -> None:
    folded = Behaviour(mapping=mapping, **behaviour)
    distribution = distribution_for(Box((1,), FLOAT32, (-1.0,), (3.0,)), folded)
    behaved = distribution.behave(np.tile(np.array([0.5, np.log(0.8)], np.float32), (N, 1)), None, folded, ON)
    (drawn,) = distribution.draw(behaved, rng(2), ON)
    assert distance(drawn[:, 0], cumulative_of(distribution, behaved[0])) < KOLMOGOROV
    # And these are the ones that were asked for.
    std = np.sqrt(0.8**2 * folded.temperature + folded.noise**2)
    np.testing.assert_allclose(behaved[0], [0.5, np.log(std)], rtol=1e-5)
    normal = torch.distributions.Normal(0.5, float(std))
    assert distance(drawn[:, 0], lambda at: normal.cdf(torch.from_numpy(at)).numpy()) < KOLMOGOROV  # type: ignore[no-untyped-call]  # torch's


def test_the_elements_of_a_box_are_drawn_independently() -> None:
    parameters = np.tile(np.array([0.5, -3.0, np.log(2.0), np.log(0.1)], np.float32), (N, 1))
    (drawn,) = distribution_for(Box((2,), FLOAT32), Behaviour()).draw(parameters, rng(4), ON)
    for column, mean, std in ((0, 0.5, 2.0), (1, -3.0, 0.1)):
        normal = torch.distributions.Normal(mean, std)
        assert distance(drawn[:, column], lambda at, of=normal: of.cdf(torch.from_numpy(at)).numpy()) < KOLMOGOROV  # type: ignore[misc]  # a default cannot be typed
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 5 / np.sqrt(N)


@pytest.mark.parametrize("mapping", ["clip", "rescale", "squash"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_random_floats_are_uniform_where_they_are_sent(mapping: str, dtype: np.dtype[Any]) -> None:
    behaviour = Behaviour(mapping=mapping, noise=3.0)
    space = Box((2,), dtype, (-1.0, 2.0), (0.5, 10.0))
    distribution = distribution_for(space, behaviour)
    behaved = distribution.behave(np.full((N, 4), 7, np.float32), None, behaviour, RANDOM)
    drawn = distribution.draw(behaved, rng(3), RANDOM)
    (sent,) = distribution.send(drawn)
    assert drawn[0].dtype == dtype
    assert np.isfinite(drawn[0]).all()
    assert space.contains(sent).all()
    for column, low, high in ((0, -1.0, 0.5), (1, 2.0, 10.0)):
        assert distance((sent[:, column] - low) / (high - low), lambda at: at) < KOLMOGOROV
    assert abs(np.corrcoef(sent.T)[0, 1]) < 5 / np.sqrt(N)


def test_random_floats_without_bounds_are_drawn_as_gymnasium_s_are() -> None:
    behaviour = Behaviour()
    space = Box((3,), FLOAT64, (-np.inf, 2.0, -np.inf), (np.inf, np.inf, -1.0))
    distribution = distribution_for(space, behaviour)
    drawn = distribution.draw(np.zeros((N, 6), np.float32), rng(3), RANDOM)
    (sent,) = distribution.send(drawn)
    assert np.array_equal(sent, drawn[0])
    normal = torch.distributions.Normal(0.0, 1.0)
    assert distance(sent[:, 0], lambda at: normal.cdf(torch.from_numpy(at)).numpy()) < KOLMOGOROV  # type: ignore[no-untyped-call]  # torch's
    assert distance(sent[:, 1], lambda at: -np.expm1(2.0 - at)) < KOLMOGOROV
    assert distance(sent[:, 2], lambda at: np.exp(at + 1.0)) < KOLMOGOROV


@pytest.mark.parametrize("mapping", ["clip", "rescale", "squash"])
def test_without_exploration_floats_are_the_means(mapping: str) -> None:
    behaviour = Behaviour(mapping=mapping, noise=3.0, temperature=5.0)
    distribution = distribution_for(Box((2, 2), FLOAT32, (-1.0,), (1.0,)), behaviour)
    parameters = rng().standard_normal((50, 8)).astype(np.float32)
    behaved = distribution.behave(parameters, None, behaviour, OFF)
    (drawn,) = distribution.draw(behaved, rng(1), OFF)
    assert np.array_equal(drawn.reshape(50, 4), parameters[:, :4])


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((2,), (4, 3), (0, 0))])
def test_the_first_of_equally_good_choices_is_the_best_one(space: Any) -> None:
    behaviour = Behaviour(mask="legal", epsilon=0.0)
    distribution = distribution_for(space, behaviour)
    parameters = np.zeros((100, distribution.parameters), np.float32)
    mask = np.ones(parameters.shape, np.bool_)
    mask[:, 0] = False
    for exploration in (ON, OFF, EPSILON):
        behaved = distribution.behave(parameters, mask, behaviour, exploration)
        (action,) = distribution.draw(behaved, rng(), exploration)
        assert set(action.reshape(100, -1)[:, 0].tolist()) == {1}


@st.composite
def folded(draw: st.DrawFn) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_] | None, Behaviour, Exploration]:
    """Spaces, rows of parameters, masks that allow something, behaviours, and ways to explore."""
    nvec = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    space = Discrete(nvec[0]) if len(nvec) == 1 else MultiDiscrete((len(nvec),), nvec, (0,) * len(nvec))
    size, rows = sum(nvec), draw(st.integers(1, 5))
    floats = st.floats(-1e6, 1e6, width=32) | st.floats(-3, 3, width=32) | st.just(0.0)
    row = st.lists(floats, min_size=size, max_size=size)
    parameters = np.array(draw(st.lists(row, min_size=rows, max_size=rows)), np.float32)
    mask = None
    if draw(st.booleans()):
        bits = st.lists(st.booleans(), min_size=size, max_size=size)
        mask = np.array(draw(st.lists(bits, min_size=rows, max_size=rows)))
        for start, n in zip(np.cumsum([0, *nvec]), nvec, strict=False):
            mask[:, start + draw(st.integers(0, n - 1))] = True
    settings: dict[str, float] = {"epsilon": draw(st.floats(0, 1))}
    if draw(st.booleans()):
        settings = {"temperature": draw(st.just(1.0) | st.floats(1e-3, 1e3) | st.sampled_from([1e-30, 1e30]))}
    behaviour = Behaviour(mask=None if mask is None else "legal", **settings)
    exploration = draw(st.sampled_from([ON, OFF, RANDOM] if behaviour.epsilon is None else list(Exploration)))
    return space, parameters, mask, behaviour, exploration


@given(folded())
@settings(max_examples=60, deadline=None)
def test_probabilities_sum_to_one_and_nothing_that_is_masked_is_drawn(case: Any) -> None:
    space, parameters, mask, behaviour, exploration = case
    distribution = distribution_for(space, behaviour)
    assert isinstance(distribution, Categorical | Categoricals)
    with np.errstate(all="raise", under="ignore"):
        behaved = distribution.behave(parameters, mask, behaviour, exploration)
        action = distribution.draw(behaved, rng(), exploration)
        assert np.isfinite(distribution.log_prob(behaved, action)).all()
    every = every_action(space)
    m = len(every[0])
    for i in range(len(parameters)):
        logs = distribution.log_prob(np.tile(behaved[i], (m, 1)), every).astype(np.float64)
        assert abs(np.exp(logs).sum() - 1) < 1e-5
    if mask is not None:
        starts = np.cumsum([0, *sizes(space)[:-1]])
        positions = action[0].reshape(len(parameters), -1) + starts
        assert np.take_along_axis(mask, positions, axis=1).all()
    # A row's parameters do not depend on the rows beside it.
    for i in range(len(parameters)):
        alone = distribution.behave(
            parameters[i : i + 1], None if mask is None else mask[i : i + 1], behaviour, exploration
        )
        assert np.array_equal(alone[0], behaved[i])
