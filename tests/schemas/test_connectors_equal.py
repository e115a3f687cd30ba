"""What a policy sees while it acts and what is read back are the same bits, for any connectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_schemas.connectors import Context, Pipeline, Trajectories, make_pipeline, observed
from penstock_schemas.connectors.make import BUILT_IN
from penstock_schemas.errors import PolicyError, SpaceError
from penstock_schemas.spaces import Box, Dict, Discrete, LeafSpace, MultiBinary, MultiDiscrete, Space, Tuple, leaves
from tests.schemas.random_spaces import same_bits

ZOO = "tests.schemas.connector_zoo"
FLOAT32 = np.dtype(np.float32)
IMAGE = Box((2, 3, 1), np.dtype(np.uint8), (0.0,), (255.0,))
VECTOR = Box((3,), FLOAT32, (-1.0, -np.inf, 0.0), (1.0, np.inf, 9.0))
MODES = MultiDiscrete((2,), (2, 3), (-1, 4))
NESTED = Dict((("camera", IMAGE), ("rest", Tuple((Discrete(4, -2), MODES, VECTOR, MultiBinary((2,)))))))
OBSERVATIONS = [VECTOR, IMAGE, Discrete(5, 3), MODES, Box((2, 2), np.dtype(np.float64)), NESTED]
ACTIONS = [Discrete(3, -1), MODES, Box((2,), FLOAT32, (-1.0,), (1.0,)), Tuple((Discrete(2), MultiBinary((2,))))]

CONNECTORS: dict[str, Any] = {
    "cast": st.sampled_from(["float32", "float16", "float64", "int32"]).map(lambda dtype: {"dtype": dtype}),
    "flatten": st.just({}),
    "normalize": st.fixed_dictionaries({"clip": st.sampled_from([None, 0.5, 10.0])}),
    "one_hot": st.just({}),
    "previous_action": st.just({}),
    "previous_reward": st.just({}),
    "scale": st.booleans().map(lambda first: {"channel_first": first}),
    "stack": st.fixed_dictionaries({"frames": st.integers(1, 4), "axis": st.sampled_from([None, 0, -1])}),
    f"{ZOO}:Speed": st.just({}),
    f"{ZOO}:Reckoning": st.just({}),
}


def values_of(space: LeafSpace, n: int, rng: np.random.Generator) -> Any:
    """Some values of a leaf, in the dtype of the env; of floats the extreme ones too."""
    shape = (n, *space.shape)
    if isinstance(space, Box) and space.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 5, shape)).astype(space.dtype)
        return np.where(
            rng.random(shape) < 0.05, np.array([np.inf, -0.0, np.nan])[rng.integers(0, 3, shape)], values
        ).astype(space.dtype)
    if isinstance(space, Box):
        return rng.integers(0, 256, shape).astype(space.dtype)
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, shape).astype(space.dtype)
    if isinstance(space, MultiDiscrete):
        drawn = np.asarray(space.start) + rng.integers(0, np.array(space.nvec), (n, len(space.nvec)))
        return drawn.reshape(shape).astype(space.dtype)
    return rng.integers(0, 2, shape).astype(space.dtype)


class Driven:
    """Some envs, each as it is ready, with a policy whose parameters change; all that it saw, by episode."""

    def __init__(self, pipeline: Pipeline, action: Space, envs: int, rng: np.random.Generator) -> None:
        self.pipeline, self.rng, self.envs = pipeline, rng, envs
        self.acting = pipeline.acting(envs)
        self.actions = [leaf.space for leaf in leaves(action)]
        self.versions = [dict(pipeline.weights)]
        self.done: list[dict[str, list[Any]]] = []
        self.open = [self._begun() for _ in range(envs)]
        self.age = np.zeros(envs, np.int64)
        self.reward = np.zeros(envs, np.float64)
        self.action = [np.zeros((envs, *space.shape), space.dtype) for space in self.actions]

    def _observation(self) -> list[Any]:
        return [values_of(leaf.space, 1, self.rng)[0] for leaf in leaves(self.pipeline.observation)]

    def _begun(self) -> dict[str, list[Any]]:
        return {"observation": [self._observation()], "action": [], "reward": [], "acted": [], "seen": []}

    def look(self, env: Any, *, keep: bool) -> list[Any]:
        newest = zip(*(self.open[at]["observation"][-1] for at in env.tolist()), strict=True)
        context = Context(self.age[env], tuple(leaf[env] for leaf in self.action), self.reward[env])
        seen = self.acting(env.astype(np.int32), tuple(np.array(leaf) for leaf in newest), context, keep=keep)
        return [[values[row] for values in seen] for row in range(len(env))]

    def tick(self) -> None:
        rng = self.rng
        if rng.random() < 0.2:
            factor = rng.random()
            self.versions.append(
                {
                    name: np.asarray(1 + factor * rng.random(value.shape), value.dtype)
                    for name, value in self.versions[0].items()
                }
            )
            self.pipeline.check(self.versions[-1])
            self.pipeline.load(self.versions[-1])
        ready = np.flatnonzero(rng.random(self.envs) < 0.7)
        if not len(ready):
            return
        if rng.random() < 0.3:
            self.look(ready, keep=False)
        for env, seen in zip(ready.tolist(), self.look(ready, keep=True), strict=True):
            episode = self.open[env]
            action = [values_of(space, 1, rng)[0] for space in self.actions]
            reward = rng.standard_normal()
            episode["seen"].append(seen)
            episode["action"].append(action)
            episode["reward"].append(reward)
            episode["acted"].append(len(self.versions) - 1)
            episode["observation"].append(self._observation())
            self.age[env] += 1
            self.reward[env] = reward
            for kept, value in zip(self.action, action, strict=True):
                kept[env] = value
        ended = ready[rng.random(len(ready)) < 0.2]
        if len(ended):
            for env, seen in zip(ended.tolist(), self.look(ended, keep=False), strict=True):
                self.open[env]["seen"].append(seen)
                self.done.append(self.open[env])
                self.open[env] = self._begun()
                self.age[env] = self.reward[env] = 0
                for kept in self.action:
                    kept[env] = 0

    def trajectories(self) -> tuple[Trajectories, list[list[Any]]]:
        """All episodes, and what was seen of each."""
        episodes = [*self.done, *(episode for episode in self.open if episode["action"])]
        observation, action, reward, acted = (
            [value for episode in episodes for value in episode[name]]
            for name in ("observation", "action", "reward", "acted")
        )
        return Trajectories(
            np.array([len(episode["action"]) for episode in episodes]),
            np.zeros(len(episodes), np.int64),
            tuple(np.array(leaf) for leaf in zip(*observation, strict=True)),
            tuple(np.array(leaf) for leaf in zip(*action, strict=True)),
            np.array(reward),
            np.array(acted),
        ), [episode["seen"] for episode in episodes]


def check(pipeline: Pipeline, action: Space, envs: int, ticks: int, seed: int) -> None:
    driven = Driven(pipeline, action, envs, np.random.default_rng(seed))
    for _ in range(ticks):
        driven.tick()
    trajectories, seen = driven.trajectories()
    if not seen:
        return
    read = observed(pipeline, trajectories, driven.versions)
    expected = leaves(pipeline.space)
    assert [(values.shape[1:], values.dtype) for values in read] == [
        (leaf.space.shape, leaf.space.dtype) for leaf in expected
    ]
    later = within(trajectories, pipeline.reach, driven.rng)
    if later is not None:
        begin, some = later
        for values, whole in zip(observed(pipeline, some, driven.versions), read, strict=True):
            window = whole[begin : begin + len(values)]
            assert same_bits(values[pipeline.reach :], window[pipeline.reach :])
    first = 0
    for length, of_episode in zip(trajectories.length.tolist(), seen, strict=True):
        for at, values in enumerate(zip(*of_episode, strict=True)):
            # An open episode's last observation was not looked at yet.
            assert same_bits(read[at][first : first + len(of_episode)], np.array(values, read[at].dtype))
        first += length + 1


def within(whole: Trajectories, reach: int, rng: np.random.Generator) -> tuple[int, Trajectories] | None:
    """A piece of an episode that begins later than it, and the row with which it begins."""
    at = int(whole.length.argmax())
    length = int(whole.length[at])
    if length < reach + 2:
        return None
    age = int(rng.integers(1, length - reach))
    step = int(whole.length[:at].sum()) + age
    rest = slice(step, step + length - age)
    observations = slice(step + at, step + at + length - age + 1)
    return observations.start, Trajectories(
        np.array([length - age]),
        np.array([age]),
        tuple(leaf[observations] for leaf in whole.observation),
        tuple(leaf[rest] for leaf in whole.action),
        whole.reward[rest],
        whole.acted[rest],
    )


@st.composite
def descriptions(draw: st.DrawFn) -> tuple[list[dict[str, Any]], Space, Space]:
    """Some connectors, each of which takes what comes out of the one before; observations and actions."""
    space, action = draw(st.sampled_from(OBSERVATIONS)), draw(st.sampled_from(ACTIONS))
    described: list[dict[str, Any]] = []
    for name in draw(st.lists(st.sampled_from(sorted(CONNECTORS)), max_size=6)):
        if name.startswith(ZOO) and not _flat(make_pipeline(described, space, action).space):
            continue
        one = {"name": name, "arguments": draw(CONNECTORS[name])}
        try:
            make_pipeline([*described, one], space, action)
        except SpaceError:
            continue
        described.append(one)
    return described, space, action


def pipelines() -> st.SearchStrategy[tuple[Pipeline, Space]]:
    return descriptions().map(lambda made: (make_pipeline(*made), made[2]))


def _flat(space: Space) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.integers(1, 4), st.integers(0, 1 << 32))
def test_any_connectors_read_what_they_showed(made: tuple[Pipeline, Space], envs: int, seed: int) -> None:
    check(*made, envs, 25, seed)


@pytest.mark.parametrize("name", sorted(CONNECTORS))
def test_each_connector_reads_what_it_showed(name: str) -> None:
    space = {"scale": IMAGE, "one_hot": MODES}.get(name, VECTOR)
    for action in ACTIONS:
        check(make_pipeline([{"name": name}], space, action), action, 3, 60, 0)


def test_every_built_in_connector_is_among_them() -> None:
    assert BUILT_IN.keys() <= CONNECTORS.keys()


def test_rows_are_mapped_a_few_at_a_time_with_the_same_result() -> None:
    """Longer than what is mapped at a time, and all of one version."""
    pipeline = make_pipeline(
        [{"name": "stack", "arguments": {"frames": 3}}, {"name": "normalize"}], VECTOR, Discrete(2)
    )
    rng = np.random.default_rng(0)
    steps = 10_000
    trajectories = Trajectories(
        np.array([steps]),
        np.array([0]),
        (values_of(VECTOR, steps + 1, rng),),
        (np.zeros(steps, np.int8),),
        np.zeros(steps),
        np.zeros(steps, np.intp),
    )
    (read,) = observed(pipeline, trajectories, [pipeline.weights])
    (raw,) = trajectories.observation
    for at in (0, 1, 2, 4094, 4095, 4096, 4097, 8191, 8192, steps):
        window = raw[np.maximum([at - 2, at - 1, at], 0)]
        with np.errstate(all="ignore"):
            expected = np.clip(window / np.sqrt(np.float64(1 + 1e-8)), -10, 10).astype(np.float32)
        assert same_bits(read[at], expected)


def test_a_version_without_a_connector_s_parameters_is_no_version_of_it() -> None:
    pipeline = make_pipeline([{"name": "normalize"}], VECTOR, Discrete(2))
    trajectories = Trajectories(
        np.array([1]),
        np.array([0]),
        (np.zeros((2, 3), np.float32),),
        (np.zeros(1, np.int8),),
        np.zeros(1),
        np.zeros(1, np.intp),
    )
    with pytest.raises(KeyError, match=r"connectors\.0\.mean"):
        observed(pipeline, trajectories, [{}])
    with pytest.raises(PolicyError, match="stack"):
        make_pipeline([{"name": "stack", "arguments": {"frames": 0}}], VECTOR, Discrete(2))
