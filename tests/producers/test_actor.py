"""The actor: what a policy acts on of each env, against one env after the other in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.actor import Actor
from penstock_producers.collect import Collector
from penstock_producers.envs.rows import Answer, Rows
from penstock_producers.fragment import Recording
from penstock_producers.policy import RandomPolicy, TorchPolicy, make_policy
from penstock_producers.policy.base import Inputs
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.connectors import Pipeline
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import StreamSpec
from tests.producers.recorder import MODES, Sent, answers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_producers.policy.base import Actions
    from penstock_schemas.connectors import Seen
    from penstock_schemas.spaces import Leaves

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
OBSERVATION, ACTION = Box((2,), FLOAT32), Discrete(5, start=3)
LEVEL = Column("info.level", (), FLOAT64, overlap=True, nullable=True)
SPEC = StreamSpec("test", OBSERVATION, ACTION, FLOAT64, infos=(LEVEL,))
LOOKBACK = 2
# The window, and behind it the age, the action and the reward.
TOLD = 2 * (1 + LOOKBACK) + 3


class ClosingEnv(gymnasium.Env[Any, Any]):
    """Allows actions 0 and 2, and with the fourth step's observation, an episode's last, nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self.observation_space.sample(), {"mask": np.array([1, 0, 1], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == 4
        mask = np.array([0, 0, 0] if over else [1, 0, 1], np.int8)
        return self.observation_space.sample(), 1.0, over, False, {"mask": mask}


class Telling:
    """A connector that answers all that it is told."""

    space = Box((TOLD,), FLOAT32)
    lookback = LOOKBACK
    parameters: dict[str, Any] = {}  # noqa: RUF012 - none is ever added

    def check(self, parameters: Any) -> None:
        assert not parameters

    def __call__(self, seen: Seen) -> Leaves:
        (window,) = seen.observation
        n = len(window)
        context = [seen.age[:, None], seen.action[0][:, None], seen.reward[:, None]]
        return (np.concatenate([window.reshape(n, -1), *context], axis=1, dtype=np.float32, casting="unsafe"),)


class Remembering(RandomPolicy):
    """Remembers how often it acted in an episode and the sum of what it saw, and values by all that it is given."""

    def __init__(self, pipeline: Pipeline, rng: np.random.Generator) -> None:
        super().__init__(pipeline, ACTION, rng=rng)
        self.states = (Column("state.count", (), FLOAT32), Column("state.sum", (TOLD,), FLOAT32))
        self.recording = Recording(self.recording.columns, self.recording.finish, "final_value")
        self.given: Inputs | None = None

    def act(self, inputs: Inputs) -> Actions:
        self.given = inputs
        count, total = inputs.state
        return super().act(inputs)._replace(state=(count + 1, total + inputs.observation[0]))

    def value(self, inputs: Inputs) -> NDArray[Any]:
        ((level, there),) = inputs.infos
        count, total = inputs.state
        value = inputs.observation[0].sum(1) + total.sum(1) + 1000 * count + np.where(there, level, -1)
        return np.asarray(value.astype(np.float32))


@dataclass
class Described:
    """What an actor needs to know of envs."""

    num_envs: int
    infos: tuple[Column, ...] = (LEVEL,)
    observation_space: Any = OBSERVATION
    action_space: Any = ACTION
    reward_dtype: Any = FLOAT64


@dataclass
class Lane:
    """One env's episode."""

    seen: list[list[float]] = field(default_factory=list)
    action: float = 0.0
    reward: float = 0.0
    level: float | None = None
    count: float = 0.0
    total: list[float] = field(default_factory=lambda: [0.0] * TOLD)

    def take(self, rows: Rows, row: int) -> None:
        if rows.first[row]:
            self.__init__()  # type: ignore[misc]  # all of it begins anew
        else:
            self.reward = float(rows.reward[row])
        self.seen.append(rows.observation[0][row].tolist())
        ((values, there),) = rows.infos
        self.level = float(values[row]) if there[row] else None

    def told(self) -> list[float]:
        padded = [self.seen[0]] * LOOKBACK + self.seen
        window = [number for one in padded[-1 - LOOKBACK :] for number in one]
        return [*window, len(self.seen) - 1, self.action, self.reward]

    def acted(self, action: float) -> None:
        self.total = [one + other for one, other in zip(self.total, self.told(), strict=True)]
        self.count += 1
        self.action = action

    def value(self) -> float:
        return sum(self.told()) + sum(self.total) + 1000 * self.count + (-1 if self.level is None else self.level)


def rows_of(answer: Answer) -> Iterator[tuple[Rows, int, int]]:
    for rows in (answer.steps, answer.resets):
        if rows is not None:
            yield from ((rows, row, env) for row, env in enumerate(rows.env.tolist()))


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 4),
    end=st.sampled_from([0.0, 0.2, 0.7]),
    fault=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 1 << 30),
)
def test_each_env_is_acted_on_as_if_alone(mode: str, num_envs: int, end: float, fault: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = Remembering(Pipeline(OBSERVATION, [Telling()]), rng)
    actor = Actor(policy, Described(num_envs))  # type: ignore[arg-type]  # it asks nothing else of envs
    lanes = [Lane() for _ in range(num_envs)]
    recorded: tuple[NDArray[Any], ...] = ()
    copies: list[NDArray[Any]] = []
    for told in islice(answers(SPEC, num_envs, mode, rng, end, fault), 40):
        if isinstance(told, Sent):
            observation = np.array([lanes[env].seen[-1] for env in told.env.tolist()], np.float32)
            acted = actor.act(told.env, (observation,))
            inputs = policy.given
            assert inputs is not None
            own = [lanes[env] for env in told.env.tolist()]
            np.testing.assert_allclose(inputs.observation[0], [lane.told() for lane in own], rtol=1e-6)
            ((level, there),) = inputs.infos
            assert [one if valid else None for one, valid in zip(level, there, strict=True)] == [
                lane.level for lane in own
            ]
            drawn, count, total = acted.drawn
            assert count.tolist() == [lane.count for lane in own]
            np.testing.assert_allclose(total, [lane.total for lane in own], rtol=1e-5)
            for lane, action in zip(own, drawn.tolist(), strict=True):
                lane.acted(action)
            recorded, copies = acted.drawn, [values.copy() for values in acted.drawn]
            continue
        answer = actor.see(told)
        assert all(np.array_equal(one, other) for one, other in zip(recorded, copies, strict=True))
        assert answer._replace(steps=None) == told._replace(steps=None)
        if answer.steps is not None:
            final, ended = answer.steps.final, answer.steps.terminated | answer.steps.truncated
            assert np.array_equal(ended, np.zeros_like(ended) if final is None else ~np.isnan(final))
        for rows, row, env in rows_of(answer):
            lanes[env].take(rows, row)
            if rows is answer.steps and rows.final is not None and not np.isnan(rows.final[row]):
                np.testing.assert_allclose(rows.final[row], lanes[env].value(), rtol=1e-5)
                # What the env is to do with its last observation is nobody's: no info says anything of it.
                lanes[env].level = None


def test_a_value_asked_for_changes_nothing_of_what_comes_next() -> None:
    """An env that is valued at its end looks back at nothing of it once it was reset, nor does it remember."""
    rng = np.random.default_rng(0)
    policy = Remembering(Pipeline(OBSERVATION, [Telling()]), rng)
    actor = Actor(policy, Described(1))  # type: ignore[arg-type]  # it asks nothing else of envs
    env = np.zeros(1, np.int32)

    def rows(number: float, *, over: bool, first: bool) -> Rows:
        yes, no = np.array([over]), np.zeros(1, np.bool_)
        info = (np.array([number]), np.ones(1, np.bool_))
        seen = (np.full((1, 2), number, np.float32),)
        return Rows(env, seen, np.array([number]), yes, no, np.array([first]), infos=(info,))

    begun = rows(1.0, over=False, first=True)
    actor.see(Answer(None, (), begun, env, begun.observation))
    actor.act(env, begun.observation)
    again = rows(5.0, over=False, first=True)
    answer = actor.see(Answer(rows(3.0, over=True, first=False), (), again, env, again.observation))
    assert answer.steps is not None
    assert answer.steps.final is not None
    assert np.isfinite(answer.steps.final).all()
    acted = actor.act(env, again.observation)
    assert policy.given is not None
    assert policy.given.observation[0].tolist() == [[5.0] * 6 + [0.0] * 3]
    assert [part.any() for part in acted.drawn[1:]] == [False, False]


@pytest.mark.parametrize("policy", ["actor-critic", "q-network", "random"])
@pytest.mark.parametrize("mode", [*AutoresetMode, "lanes"])
def test_the_mask_of_a_last_observation_may_allow_nothing(policy: str, mode: Any) -> None:
    envs: Any = [ClosingEnv() for _ in range(3)]
    if mode != "lanes":
        envs = SyncVectorEnv([ClosingEnv] * 3, autoreset_mode=mode)
    with Collector(envs, policy, behaviour={"mask": "mask"}, infos=["mask"], seed=0) as collector:
        episodes = [episode for episode in collector.collect(30).episodes if episode.terminated]
    assert len(episodes) >= 4
    for episode in episodes:
        assert set(episode.action.tolist()) <= {0, 2}
        assert np.ma.filled(episode.infos["mask"], -7).tolist() == [[1, 0, 1]] * 4 + [[0, 0, 0]]


@pytest.mark.parametrize("change", ["nothing", "exploration", "version", "settings", "weights"])
def test_a_last_observation_is_valued_by_the_weights_that_led_to_it(change: str) -> None:
    """Env 0 and 1 act, what acts is changed, env 1 acts again; then the episodes of both are found to have ended."""
    policy = make_policy(
        "actor-critic", OBSERVATION, ACTION, behaviour={"final_value": True}, rng=np.random.default_rng(0)
    )
    assert isinstance(policy, TorchPolicy)
    actor = Actor(policy, Described(2, infos=()))  # type: ignore[arg-type]  # it asks nothing else of envs
    every, seen, no = np.arange(2, dtype=np.int32), (np.ones((2, 2), np.float32),), np.zeros(2, np.bool_)
    actor.act(every, seen)
    weights = {name: value.numpy().copy() for name, value in policy.module.state_dict().items()}
    if change == "exploration":
        policy.exploration = Exploration.OFF
    elif change != "nothing":
        more = float(change == "weights")
        settings = {"temperature": 2.0} if change == "settings" else {}
        number = int(change == "version")
        policy.load(PolicyRecord(number, {name: value + more for name, value in weights.items()}, settings))
    actor.act(every[1:], (seen[0][1:],))
    steps = actor.see(Answer(Rows(every, seen, np.ones(2), ~no, no, no), (), None, every, seen)).steps
    assert steps is not None
    assert steps.final is not None
    changed = change in {"version", "settings", "weights"}
    assert np.isnan(steps.final).tolist() == [changed, False]
    assert steps.final[1] == policy.value(Inputs(seen))[1]


@pytest.mark.parametrize("change", ["nothing", "exploration", "weights"])
def test_a_step_that_is_given_out_later_keeps_the_value_of_its_end(change: str) -> None:
    """Of the fourth steps of three envs, which end their episodes, the last two wait for the next call."""
    envs = SyncVectorEnv([ClosingEnv] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    with Collector(envs, "actor-critic", behaviour={"final_value": True}, seed=0) as collector:
        collector.collect(10)
        if change == "weights":
            policy: Any = collector.policy
            collector.load(policy.module.state_dict())
        episodes = collector.collect(2, explore=change != "exploration").episodes
    values = [np.ma.filled(episode.extras["final_value"], np.nan) for episode in episodes if episode.terminated]
    assert [np.isfinite(value).tolist() for value in values] == [[True]] * 2


def test_what_an_env_remembers_outlives_a_new_version() -> None:
    policy = make_policy("tests.producers.policy_zoo:counting", OBSERVATION, ACTION, rng=np.random.default_rng(0))
    assert isinstance(policy, TorchPolicy)
    actor = Actor(policy, Described(3, infos=()))  # type: ignore[arg-type]  # it asks nothing else of envs
    every, seen = np.arange(3, dtype=np.int32), (np.ones((3, 2), np.float32),)
    actor.act(every, seen)
    policy.load(PolicyRecord(1, {"bias": np.ones(5, np.float32)}))
    actor.act(every[1:], tuple(leaf[1:] for leaf in seen))
    drawn = actor.act(every, seen).drawn
    assert drawn[-2].tolist() == [1.0, 2.0, 2.0]
    assert drawn[-1].tolist() == [[1.0] * 2, [2.0] * 2, [2.0] * 2]


@pytest.mark.parametrize("ready", [[0, 1, 2], [1]])
def test_for_a_policy_of_observations_alone_nothing_is_kept_nor_copied(ready: list[int]) -> None:
    policy = make_policy("tests.producers.policy_zoo:remembering", OBSERVATION, ACTION, rng=np.random.default_rng(0))
    assert isinstance(policy, TorchPolicy)
    actor = Actor(policy, Described(3, infos=()))  # type: ignore[arg-type]  # it asks nothing else of envs
    observation = np.random.default_rng(1).random((len(ready), 2)).astype(np.float32)
    answer = Answer(None, (), None, np.array(ready, np.int32), (observation,))
    assert actor.see(answer) is answer
    acted = actor.act(answer.ready, answer.observation)
    assert np.shares_memory(policy.module.seen[-1].numpy(), observation)
    assert len(acted.drawn) == len(policy.recording.columns)
