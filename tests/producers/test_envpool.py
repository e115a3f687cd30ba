from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_producers.envs.envpool import make_envpool
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import Dict, Discrete, leaves
from tests.producers.canonical_episodes import Episode, Recorder, record, zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.envs.envpool import EnvPoolEnvs
    from penstock_schemas.spaces import Leaves

envpool = pytest.importorskip("envpool")


def make(
    task: str = "CartPole-v1",
    num_envs: int = 5,
    batch_size: int | None = None,
    infos: tuple[str, ...] = ("elapsed_step", "env_id"),
    seed: int = 7,
    **kwargs: Any,
) -> EnvPoolEnvs:
    return make_envpool(task, num_envs, kwargs=kwargs, seed=seed, infos=infos, batch_size=batch_size)


def by_position(ready: NDArray[np.int32], observation: Leaves) -> Leaves:
    """What depends on the observation alone, so that the order of arrival makes no difference."""
    return ((observation[0][:, 2] + 0.3 * observation[0][:, 3] > 0).astype(np.int8),)


def check(env: int, episode: Episode, limit: int) -> None:
    """An episode of CartPole, by its physics and its own count."""
    observations = np.array([observation for (observation,) in episode.observations])
    length = len(episode.rewards)
    assert len(observations) == length + 1
    assert sum(episode.rewards) == length
    assert episode.infos == [(step, env) for step in range(length + 1)]
    moved = observations[:-1, [0, 2]] + 0.02 * observations[:-1, [1, 3]]
    np.testing.assert_allclose(observations[1:, [0, 2]], moved, atol=1e-5)
    beyond = (np.abs(observations[:, 0]) > 2.4) | (np.abs(observations[:, 2]) > np.radians(12))
    assert not beyond[:-1].any()
    # What ends by its limit and by its pole at once is told as truncated only.
    assert episode.end == ((False, True) if length == limit else (True, False))
    assert length == limit or beyond[-1]
    assert episode.seed is None


@pytest.mark.parametrize("batch_size", [None, 1, 2, 4, 5])
def test_cart_pole_episodes_are_whole_in_lockstep_and_out_of_it(batch_size: int | None) -> None:
    env = make(batch_size=batch_size, max_episode_steps=12)
    assert env.action_space == Discrete(2)
    assert env.reward_dtype == np.float32
    assert [(column.name, column.dtype.name) for column in env.infos] == [
        ("info.elapsed_step", "int32"),
        ("info.env_id", "int32"),
    ]
    recorded = record(env, 8, zeros)
    env.close()
    for i, mine in enumerate(recorded):
        for episode in mine:
            check(i, episode, 12)
    ends = {episode.end for mine in recorded for episode in mine}
    assert (True, False) in ends


def test_episodes_are_the_same_in_whatever_order_they_arrive() -> None:
    whole, pieces = make(seed=3, max_episode_steps=40), make(seed=3, batch_size=2, max_episode_steps=40)
    assert record(whole, 4, by_position) == record(pieces, 4, by_position)


def test_seeds_differ_between_envs_and_pools() -> None:
    begun = [make(seed=seed).reset().observation[0] for seed in (1, 1, 2)]
    assert np.array_equal(begun[0], begun[1])
    assert not np.array_equal(begun[0], begun[2])
    assert len(np.unique(begun[0], axis=0)) == 5


def test_a_batch_answers_only_what_was_ready() -> None:
    env = make(num_envs=5, batch_size=2)
    answer = env.reset()
    assert answer.steps is None
    assert answer.resets is not None
    assert len(answer.ready) == 2
    seen = set(answer.ready.tolist())
    while len(seen) < 5:  # nothing is sent: the others come nevertheless, as far as a batch fills
        answer = env.recv()
        if answer.steps is None:
            break
        assert answer.steps.first.all()
        seen |= set(answer.ready.tolist())
    assert len(seen) == 4
    assert env.recv().ready.shape == (0,)
    env.send(np.array([min(seen)], np.int32), (np.zeros(1, np.int64),))
    last = env.recv()
    assert last.steps is not None
    assert sorted([*last.ready.tolist(), *(seen - {min(seen)})]) == [0, 1, 2, 3, 4]
    assert dict(zip(last.ready.tolist(), last.steps.first.tolist(), strict=True))[min(seen)] is False


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_reset_amid_steps_begins_anew_and_drops_what_was_in_flight(batch_size: int | None) -> None:
    env = make(batch_size=batch_size, max_episode_steps=9)
    for _ in range(4):
        answer = env.reset()
        assert answer.resets is not None
        assert len(answer.ready)
        for _ in range(7):
            env.send(answer.ready, zeros(answer.ready, answer.observation))
            answer = env.recv()
        env.send(answer.ready, zeros(answer.ready, answer.observation))
    for i, mine in enumerate(record(env, 3, zeros)):
        for episode in mine:
            check(i, episode, 9)


class LateFlags:
    """A pool whose flags are still up in the reset row that follows a done row."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.before = np.zeros((2, pool.config["num_envs"]), np.bool_)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def recv(self) -> Any:
        observation, reward, terminated, truncated, infos = self.pool.recv()
        flags = np.stack([terminated, truncated])
        late, self.before = flags | self.before, flags
        return observation, reward, *late, infos


def test_flags_of_a_reset_row_are_false_whatever_the_task_says() -> None:
    env = make(max_episode_steps=9)
    env._pool = LateFlags(env._pool)
    for i, mine in enumerate(record(env, 3, zeros)):
        for episode in mine:
            check(i, episode, 9)


class Beyond:
    """A pool whose directions are outside their space."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def recv(self) -> Any:
        observation, *rest = self.pool.recv()
        return {**observation, "direction": observation["direction"] + 256}, *rest


def test_an_observation_outside_its_space_is_an_error() -> None:
    env = make("MiniGrid-Unlock-v0", 3, infos=())
    env._pool = Beyond(env._pool)
    with pytest.raises(EnvError, match=r"'envpool:MiniGrid-Unlock-v0': observation\.direction has .*25[6-9]"):
        env.reset()


def test_part_of_the_envs_can_be_stepped_in_lockstep_too() -> None:
    env = make()
    recorder = Recorder(env)
    recorder.take(env.reset())
    env.send(np.array([1, 3], np.int32), (np.array([0, 1]),))
    answer = env.recv()
    recorder.take(answer)
    assert answer.ready.tolist() == [1, 3]
    assert env.recv().steps is None


def test_rows_are_in_the_order_of_the_envs_whatever_the_order_of_the_actions() -> None:
    one, other = make(), make()
    assert np.array_equal(one.reset().observation[0], other.reset().observation[0])
    actions = np.array([0, 1, 1, 0, 1])
    one.send(np.arange(5, dtype=np.int32), (actions,))
    other.send(np.arange(5, dtype=np.int32)[::-1].copy(), (actions[::-1].copy(),))
    mine, theirs = one.recv(), other.recv()
    assert theirs.ready.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(mine.observation[0], theirs.observation[0])
    assert theirs.steps is not None
    assert [values.tolist() for values, _ in theirs.steps.infos] == [[1] * 5, [0, 1, 2, 3, 4]]


def test_box_actions_of_a_wider_dtype() -> None:
    env = make("Pendulum-v1", 3, max_episode_steps=6)
    generator = np.random.default_rng(0)
    drawn: list[NDArray[np.float64]] = []

    def act(ready: NDArray[np.int32], observation: Leaves) -> Leaves:
        drawn.append(generator.uniform(-2, 2, (len(ready), 1)))
        return (drawn[-1],)

    for i, mine in enumerate(record(env, 3, act)):
        for number, episode in enumerate(mine):
            assert episode.end == (False, True)
            assert len(episode.rewards) == 6
            # The reward tells the action: it costs its square, where the step begins.
            for step, reward in enumerate(episode.rewards):
                cosine, sine, velocity = episode.observations[step][0]
                torque = drawn[7 * number + step][i, 0]
                cost = np.arctan2(sine, cosine) ** 2 + 0.1 * velocity**2 + 0.001 * torque**2
                assert reward == pytest.approx(-cost, rel=1e-3, abs=1e-3)


def test_frames_of_an_atari_game() -> None:
    env = make("Pong-v5", 2, infos=("lives", "ram"), max_episode_steps=20)
    assert [(column.name, column.shape) for column in env.infos] == [("info.lives", ()), ("info.ram", (128,))]
    for mine in record(env, 2, zeros):
        for episode in mine:
            assert len(episode.observations) == len(episode.rewards) + 1 == 21
            frames = np.array([frame for (frame,) in episode.observations], np.uint8)
            assert frames.shape == (21, 4, 84, 84)
            # Each stack holds the one before, moved by one frame: no reset hides between two steps.
            assert np.array_equal(frames[1:, :3], frames[:-1, 1:])


@pytest.mark.parametrize("batch_size", [None, 2])
def test_nested_observations_are_of_their_spaces_dtypes(batch_size: int | None) -> None:
    env = make("MiniGrid-Unlock-v0", 3, batch_size, infos=("agent_pos",), max_episode_steps=8)
    assert isinstance(env.observation_space, Dict)
    assert [leaf.path for leaf in leaves(env.observation_space)] == [("direction",), ("image",), ("mission",)]
    assert env.infos[0].shape == (2,)
    turns = record(env, 2, lambda ready, _: (np.ones(len(ready), np.int64),))  # 1 turns right
    for mine in turns:
        for episode in mine:
            directions = [observation[0] for observation in episode.observations]
            assert directions == [(directions[0] + step) % 4 for step in range(9)]


def test_binaries_come_as_their_space_says() -> None:
    env = make("Jumanji/TSP-v1", 2, infos=())
    assert [leaf.dtype.name for leaf in env.reset().observation] == ["float32", "int64", "int32", "int8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "Nowhere-v0"}, r"environment 'envpool:Nowhere-v0' cannot be made with kwargs \{\}: .*Nowhere-v0"),
        ({"num_pigs": 3}, r"'envpool:CartPole-v1' cannot be made with kwargs \{'num_pigs': 3\}: .*num_pigs"),
        ({"batch_size": 6}, r"batch_size is 6, but must be 1 to num_envs, 5"),
        ({"batch_size": 0}, r"batch_size is 0, but must be 1 to num_envs, 5"),
        ({"batch_size": -1}, r"batch_size is -1, but must be 1 to num_envs, 5"),
        ({"task": "KuhnPoker-v1"}, r"'envpool:KuhnPoker-v1': it has 2 players"),
        ({"infos": ("lives",)}, r"no info 'lives'.*'elapsed_step'"),
        ({"infos": ("players",)}, r"info 'players' .*dict"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make(**arguments)


def test_kwargs_that_have_settings_of_their_own_are_refused() -> None:
    with pytest.raises(EnvError, match=r"kwargs \['batch_size', 'num_envs', 'seed'\] have settings of their own"):
        make_envpool(
            "CartPole-v1", 2, kwargs={"seed": 1, "num_envs": 3, "batch_size": 1}, seed=0, infos=(), batch_size=None
        )


def test_an_action_that_the_pool_refuses_is_an_error() -> None:
    env = make("Pendulum-v1", 3)
    env.reset()
    with pytest.raises(EnvError, match=r"'envpool:Pendulum-v1': send\(\) raised RuntimeError: Expected shape"):
        env.send(np.arange(3, dtype=np.int32), (np.zeros((3, 2), np.float32),))
