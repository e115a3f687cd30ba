from __future__ import annotations

import copy
import re
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.envs.retrace import Divergence, retrace
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import Box, Dict, Discrete, Leaves, MultiBinary, Space, Text, Tuple, flatten, leaves

FLOATS = np.dtype(np.float32)
NOISY_STEP = 7


class Episode(NamedTuple):
    observation: Leaves
    action: Leaves
    reward: Any


class Arguments(NamedTuple):
    observation_space: Space
    action_space: Space


CARTPOLE = Arguments(Box((4,), FLOATS), Discrete(2))
FROZEN_LAKE = Arguments(Discrete(16), Discrete(4))
NESTED = Arguments(
    Dict((("place", Box((2, 3), FLOATS)), ("more", Tuple((Text(9), MultiBinary((3,)), Box((), np.dtype(np.bool_))))))),
    Dict((("push", Box((2,), FLOATS)), ("say", Text(9)), ("turn", Discrete(5, -2)))),
)


def record(env: gymnasium.Env[Any, Any], arguments: Arguments, steps: int, **reset: Any) -> Episode:
    """Step with random actions, and store what is given as it is stored: narrow."""
    env.action_space.seed(1)
    observations, actions, rewards = [copy.deepcopy(env.reset(**reset)[0])], [], []
    for _ in range(steps):
        action = env.action_space.sample()
        actions.append(copy.deepcopy(action))
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(copy.deepcopy(observation))
        rewards.append(float(reward))
        if terminated or truncated:
            break
    return Episode(
        stacked(arguments.observation_space, observations), stacked(arguments.action_space, actions), np.array(rewards)
    )


def stacked(space: Space, values: list[Any]) -> Leaves:
    columns = zip(leaves(space), zip(*(flatten(space, value) for value in values), strict=True), strict=True)
    return tuple(np.array(column, leaf.space.wire_dtype) for leaf, column in columns)


class NestedEnv(gymnasium.Env[Any, Any]):
    """Observes what it was sent; spoils the action that it was given; gives NaN; ends after `length` steps."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.action_space = spaces.Dict(
            {"push": spaces.Box(-1, 1, (2,)), "say": spaces.Text(9), "turn": spaces.Discrete(5, start=-2)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = np.full((2, 3), (options or {}).pop("begin", np.nan), np.float32)
        self.steps = 0
        return self.observe("", [0, 0, 0]), {}

    def observe(self, said: str, bits: list[int]) -> Any:
        return {"place": self.place, "more": (said, np.array(bits, np.int8), self.steps % 2 == 1)}

    def step(self, action: Any) -> Any:
        assert isinstance(action["say"], str)
        assert action["turn"].dtype == np.int64
        assert action["push"].dtype == np.float32
        self.place[1, :2] = action["push"]
        action["push"][:] = 9
        self.steps += 1
        reward = np.nan if self.steps == 2 else float(action["turn"])
        return self.observe(action["say"], [1, 0, self.steps % 2]), reward, self.steps == self.length, False, {}


class NoisyWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes one thing at one step, each time a little more."""

    def __init__(self, env: gymnasium.Env[Any, Any], what: str) -> None:
        super().__init__(env)
        self.what = what
        self.resets = 0
        self.steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.resets += 1
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps == NOISY_STEP:
            match self.what:
                case "observation":
                    observation = observation + np.array([0, 0, 1e-6 * self.resets, 0], np.float32)
                case "reward":
                    reward = float(reward) + 0.25 * self.resets
                case "ended early":
                    truncated = truncated or self.resets > 1
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_cartpole_does_the_same(seed: int) -> None:
    options = {"low": -0.01, "high": 0.01}
    episode = record(gymnasium.make("CartPole-v1"), CARTPOLE, 500, seed=seed, options=options)
    env = gymnasium.make("CartPole-v1")
    for _ in range(2):
        assert retrace(env, seed=seed, options=options, **episode._asdict(), **CARTPOLE._asdict()) is None
    assert options == {"low": -0.01, "high": 0.01}
    another_seed = retrace(
        env, seed=seed - 1 if seed else 1, options=options, **episode._asdict(), **CARTPOLE._asdict()
    )
    assert another_seed is not None
    assert (another_seed.step, another_seed.what) == (0, "observation")
    no_options = retrace(env, seed=seed, options=None, **episode._asdict(), **CARTPOLE._asdict())
    assert no_options is not None
    assert no_options.step == 0


def test_frozen_lake_does_the_same_though_it_is_stored_narrower() -> None:
    env = gymnasium.make("FrozenLake-v1")
    episode = record(env, FROZEN_LAKE, 100, seed=3)
    assert episode.observation[0].dtype == np.int8
    assert retrace(env, seed=3, options=None, **episode._asdict(), **FROZEN_LAKE._asdict()) is None
    episode.observation[0][-1] += 1
    divergence = retrace(env, seed=3, options=None, **episode._asdict(), **FROZEN_LAKE._asdict())
    assert divergence is not None
    assert divergence.step == len(episode.reward)
    assert str(divergence).endswith(f"expected {divergence.expected}, found {divergence.found}")


def test_nested_spaces_text_and_nan_do_the_same() -> None:
    episode = record(NestedEnv(), NESTED, 20, seed=3)
    assert np.isnan(episode.observation[0]).any()
    assert np.isnan(episode.reward).any()
    assert retrace(NestedEnv(), seed=3, options=None, **episode._asdict(), **NESTED._asdict()) is None
    assert retrace(NestedEnv(), seed=3, options={}, **episode._asdict(), **NESTED._asdict()) is None
    options = {"begin": 0}
    divergence = retrace(NestedEnv(), seed=3, options=options, **episode._asdict(), **NESTED._asdict())
    assert str(divergence) == (
        "step 0: observation.place differs in 6 of 6 elements, first at [0, 0]: expected nan, found 0.0"
    )
    assert options == {"begin": 0}


@pytest.mark.parametrize(
    ("leaf", "value", "text"),
    [
        (0, 5.0, r"step 4: observation.place differs in 6 of 6 elements, first at \[0, 0\]: expected 5.0, found nan"),
        (1, "other", r"step 4: observation.more.0 differs: expected 'other', found '\w*'"),
        (2, [1, 1, 0], r"step 4: observation.more.1 differs at \[1\]: expected 1, found 0"),
        (3, 1, r"step 4: observation.more.2 differs: expected True, found False"),
    ],
)
def test_the_leaf_that_differs_is_named(leaf: int, value: Any, text: str) -> None:
    episode = record(NestedEnv(), NESTED, 20, seed=3)
    episode.observation[leaf][4] = value
    divergence = retrace(NestedEnv(), seed=3, options=None, **episode._asdict(), **NESTED._asdict())
    assert divergence is not None
    assert divergence.what == "observation"
    assert re.fullmatch(text, str(divergence))


def test_the_sign_of_zero_counts() -> None:
    episode = record(gymnasium.make("FrozenLake-v1"), FROZEN_LAKE, 2, seed=3)
    episode.reward[1] = -0.0
    env = gymnasium.make("FrozenLake-v1")
    divergence = retrace(env, seed=3, options=None, **episode._asdict(), **FROZEN_LAKE._asdict())
    assert divergence == Divergence(2, "reward", "reward", -0.0, 0)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("observation", rf"step {NOISY_STEP}: observation differs at \[2\]: expected .*, found .*"),
        ("reward", rf"step {NOISY_STEP}: reward differs: expected 1.25, found 1.5"),
        ("ended early", rf"step {NOISY_STEP}: the env ended the episode \(truncated\), but more steps were recorded"),
    ],
)
def test_an_env_that_is_not_deterministic_is_caught_at_its_step(what: str, text: str) -> None:
    env = NoisyWrapper(gymnasium.make("CartPole-v1"), what)
    episode = record(env, CARTPOLE, 12, seed=1)
    assert len(episode.reward) > NOISY_STEP
    divergence = retrace(env, seed=1, options=None, **episode._asdict(), **CARTPOLE._asdict())
    assert divergence is not None
    assert (divergence.step, divergence.what) == (NOISY_STEP, what)
    assert re.fullmatch(text, str(divergence))


def test_the_joined_parts_of_a_cut_episode_do_the_same() -> None:
    whole = record(gymnasium.make("CartPole-v1"), CARTPOLE, 12, seed=1)
    first, second = whole.observation[0][:6], whole.observation[0][5:]
    joined = whole._replace(observation=(np.concatenate([first, second[1:]]),))
    env = gymnasium.make("CartPole-v1")
    assert retrace(env, seed=1, options=None, **joined._asdict(), **CARTPOLE._asdict()) is None
    badly_joined = whole._replace(observation=(np.concatenate([first, second]),))
    with pytest.raises(ValueError, match=r"12 rewards with \[14\] observations, \[12\] actions: .* T \+ 1"):
        retrace(env, seed=1, options=None, **badly_joined._asdict(), **CARTPOLE._asdict())
    one_more = whole._replace(action=(np.append(whole.action[0], 0),))
    with pytest.raises(ValueError, match=r"12 rewards with \[13\] observations, \[13\] actions: "):
        retrace(env, seed=1, options=None, **one_more._asdict(), **CARTPOLE._asdict())


def test_an_observation_of_another_structure_is_a_divergence() -> None:
    episode = record(gymnasium.make("CartPole-v1"), CARTPOLE, 3, seed=1)
    divergence = retrace(NestedEnv(), seed=1, options=None, **episode._asdict(), **CARTPOLE._asdict())
    assert divergence is not None
    assert str(divergence).startswith("step 0: observation differs: expected shape (4,) and dtype float32, found {")
    nested = record(NestedEnv(), NESTED, 3, seed=1)
    cartpole = gymnasium.make("CartPole-v1")
    divergence = retrace(cartpole, seed=1, options=None, **nested._asdict(), **NESTED._asdict())
    assert divergence is not None
    assert str(divergence).endswith("found an array of shape (4,) and dtype float32")


class Wide(gymnasium.Env[Any, Any]):
    """Observes a number that a byte does not hold."""

    observation_space = spaces.Box(0, 255, (1,), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.seen, {}


@pytest.mark.parametrize(("seen", "stored"), [(np.array([263]), 7), ([-1], 255), ([1.7], 1)])
def test_what_only_a_cast_would_make_the_same_is_a_divergence(seen: Any, stored: int) -> None:
    arguments = Arguments(Box((1,), np.dtype(np.uint8)), Discrete(2))
    episode = Episode((np.full((1, 1), stored, np.uint8),), (np.zeros(0, np.int64),), np.zeros(0))
    found = [
        retrace(Wide(given), seed=1, options=None, **episode._asdict(), **arguments._asdict())
        for given in (np.array([stored]), seen)
    ]
    assert found[0] is None
    assert isinstance(found[1], Divergence)
    assert found[1].step == 0


def test_a_number_is_not_the_text_that_it_is_written_as() -> None:
    arguments = Arguments(Text(9), Discrete(2))
    episode = Episode((np.array(["5"], object),), (np.zeros(0, np.int64),), np.zeros(0))
    found = [
        retrace(Wide(given), seed=1, options=None, **episode._asdict(), **arguments._asdict()) for given in ("5", 5)
    ]
    assert (found[0], str(found[1])) == (None, "step 0: observation differs: expected '5', found 5")


def test_an_episode_without_a_seed_is_refused() -> None:
    episode = record(gymnasium.make("CartPole-v1"), CARTPOLE, 3, seed=1)
    with pytest.raises(EnvError, match=r"no seed, .*a ready-made vector environment cannot be seeded by episode"):
        retrace(gymnasium.make("CartPole-v1"), seed=None, options=None, **episode._asdict(), **CARTPOLE._asdict())


def test_an_env_that_raises_is_named_with_its_step() -> None:
    class RaisingEnv(NestedEnv):
        def step(self, action: Any) -> Any:
            if self.steps == 2:
                raise RuntimeError("the pole is missing")
            return super().step(action)

    episode = record(NestedEnv(), NESTED, 5, seed=3)
    with pytest.raises(EnvError, match=r"step\(\) raised RuntimeError: the pole is missing at step 3"):
        retrace(RaisingEnv(), seed=3, options=None, **episode._asdict(), **NESTED._asdict())


@pytest.mark.parametrize("workers", [0, 2])
def test_what_lanes_recorded_comes_out_the_same_whatever_was_ready_first(workers: int) -> None:
    source = EnvSource("CartPole-v1")
    envs = make_envs(
        source, 4, vectorization="lanes", workers=workers, seeds=Seeds(5, "producer"), clock=time.monotonic
    )
    generator = np.random.default_rng(0)
    episodes: list[tuple[int, Episode]] = []
    open_: dict[int, tuple[int, list[Any], list[Any], list[Any]]] = {}
    deadline = time.monotonic() + 60
    try:
        answer = envs.reset()
        while len(episodes) < 20:
            assert time.monotonic() < deadline
            assert not answer.aborts
            if (steps := answer.steps) is not None:
                for row, env in enumerate(steps.env.tolist()):
                    seed, observations, actions, rewards = open_[env]
                    observations.append(steps.observation[0][row].copy())
                    rewards.append(steps.reward[row])
                    if steps.terminated[row] or steps.truncated[row]:
                        episode = Episode((np.array(observations),), (np.array(actions),), np.array(rewards))
                        episodes.append((seed, episode))
            if (resets := answer.resets) is not None:
                assert resets.seed is not None
                for row, env in enumerate(resets.env.tolist()):
                    open_[env] = (int(resets.seed[row]), [resets.observation[0][row].copy()], [], [])
            action = generator.integers(2, size=len(answer.ready))
            for env, one in zip(answer.ready.tolist(), action, strict=True):
                open_[env][2].append(one)
            envs.send(answer.ready, (action,))
            answer = envs.recv()
    finally:
        envs.close()
    assert len({seed for seed, _ in episodes}) == len(episodes)
    env = source.single(0)
    for seed, episode in episodes:
        assert retrace(env, seed=seed, options=None, **episode._asdict(), **CARTPOLE._asdict()) is None
