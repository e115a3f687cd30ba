from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.envs import CanonicalEnv, Rows, make_env
from penstock_schemas.errors import EnvError, SpaceError
from tests.producers.envs_that_end import ALWAYS_ENDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gymnasium.vector import AsyncVectorEnv

ZOO = "tests.producers.env_zoo"
MODES = tuple(AutoresetMode)


@dataclass
class Episode:
    observations: list[list[float]]
    rewards: list[float] = field(default_factory=list)
    end: tuple[bool, bool] | None = None


def record(env: CanonicalEnv, episodes: int, seed: int, action: Any = None) -> list[list[Episode]]:
    """Each env's episodes until each has ended `episodes`, told from the canonical rows alone."""
    recorded: list[list[Episode]] = [[] for _ in range(env.num_envs)]
    current = np.empty((env.num_envs, *(env.observation_space.shape or ())))
    answer: tuple[Rows, ...] = (env.reset(seed),)
    for _ in range(1000):
        for rows in answer:
            assert np.all(np.diff(rows.env) > 0)
            assert rows.env.dtype == np.int32
            assert rows.reward.dtype == env.reward_dtype
            assert rows.observation.dtype == env.observation_space.dtype
            assert {len(column) for column in rows if column is not None} == {len(rows.env)}
            current[rows.env] = rows.observation
            for i, observation, reward, terminated, truncated, first in zip(
                rows.env.tolist(),
                rows.observation.tolist(),
                rows.reward.tolist(),
                rows.terminated.tolist(),
                rows.truncated.tolist(),
                rows.first.tolist(),
                strict=True,
            ):
                mine = recorded[i]
                if first:
                    assert not mine or mine[-1].end is not None
                    assert not terminated
                    assert not truncated
                    mine.append(Episode([observation]))
                else:
                    assert mine[-1].end is None
                    mine[-1].observations.append(observation)
                    mine[-1].rewards.append(reward)
                    if terminated or truncated:
                        mine[-1].end = (terminated, truncated)
        assert np.array_equal(env.observation, current)
        if all(sum(episode.end is not None for episode in mine) >= episodes for mine in recorded):
            return [mine[:episodes] for mine in recorded]
        answer = env.step(np.zeros(env.num_envs, np.int64) if action is None else action())
    pytest.fail(f"after 1000 steps not every env has ended {episodes} episodes")


def expected(num_envs: int, episodes: int, seed: int, longest: int) -> list[list[Episode]]:
    """What the counting envs do, worked out without an environment."""
    courses = []
    for own in range(seed, seed + num_envs):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(own)))
        course = []
        for e in range(episodes):
            length = int(generator.integers(1, longest + 1))
            course.append(
                Episode(
                    observations=[[own, e, step] for step in range(length + 1)],
                    rewards=[1000.0 * e + step for step in range(1, length + 1)],
                    end=(e % 3 != 1, e % 3 != 0),
                )
            )
        courses.append(course)
    return courses


def make(kind: str, mode: AutoresetMode, num_envs: int, longest: int) -> CanonicalEnv:
    if kind == "own":
        kwargs = {"mode": mode.name, "longest": longest}
        return make_env(f"{ZOO}:CountingVectorEnv", num_envs, kwargs=kwargs)
    vectorization: Any = kind
    return make_env(
        f"{ZOO}:CountingEnv",
        num_envs,
        kwargs={"longest": longest},
        vectorization=vectorization,
        autoreset=mode,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async", "own"])
def test_every_vectorization_and_mode_gives_the_same_episodes(kind: str, mode: AutoresetMode) -> None:
    env = make(kind, mode, num_envs=4, longest=5)
    try:
        assert env.autoreset_mode is mode
        assert record(env, 9, seed=7) == expected(4, 9, seed=7, longest=5)
        # A reset in the middle of episodes starts anew.
        env.step(np.zeros(4, np.int64))
        assert record(env, 3, seed=40) == expected(4, 3, seed=40, longest=5)
    finally:
        env.close()


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["sync", "own"]),
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 6),
    longest=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_any_lengths_give_the_same_episodes(
    kind: str, mode: AutoresetMode, num_envs: int, longest: int, seed: int
) -> None:
    env = make(kind, mode, num_envs, longest)
    assert record(env, 6, seed) == expected(num_envs, 6, seed, longest)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_default_mode_keeps_the_last_observation_of_an_env_that_reuses_its_buffer(vectorization: Any) -> None:
    env = make_env(f"{ZOO}:CountingEnv", 3, kwargs={"one_buffer": True}, vectorization=vectorization)
    try:
        assert record(env, 5, seed=1) == expected(3, 5, seed=1, longest=5)
    finally:
        env.close()


def test_one_answer_per_step_with_next_step_and_reset_rows_apart_with_the_others() -> None:
    for mode in MODES:
        env = make("own", mode, num_envs=2, longest=1)
        assert env.reset(seed=0).first.all()
        answer = env.step(np.zeros(2, np.int64))
        assert not answer[0].first.any()
        if mode is AutoresetMode.NEXT_STEP:
            assert len(answer) == 1
            (second,) = env.step(np.zeros(2, np.int64))
            assert second.first.all()
        else:
            assert len(answer) == 2
            assert answer[1].first.all()


def test_flags_of_a_reset_row_are_false_whatever_the_env_says() -> None:
    env = make_env(f"{ZOO}:LateFlagsEnv", 4)
    assert record(env, 6, seed=3) == expected(4, 6, seed=3, longest=5)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_gymnasiums_own_vectorizers_tell_the_seed_of_each_env(vectorization: Any) -> None:
    env = make_env(f"{ZOO}:CountingEnv", 3, vectorization=vectorization)
    try:
        rows = env.reset(seed=11)
        assert rows.seed is not None
        assert rows.seed.dtype == np.int64
        assert rows.seed.tolist() == rows.observation[:, 0].tolist() == [11, 12, 13]
        assert env.reset().seed is None
        assert all(rows.seed is None for rows in env.step(np.zeros(3, np.int64)))
    finally:
        env.close()


def test_a_ready_made_vector_env_has_no_seed_per_env() -> None:
    assert make_env("CartPole-v1", 2).reset(seed=1).seed is None


def test_reward_dtype_is_known_before_the_first_step() -> None:
    assert make_env("CartPole-v1", 2).reward_dtype == np.float32
    assert make_env("CartPole-v1", 2, vectorization="sync").reward_dtype == np.float64


def test_unseeded_resets_differ_between_two_envs() -> None:
    first, second = make_env("CartPole-v1", 2), make_env("CartPole-v1", 2)
    assert not np.array_equal(first.reset().observation, second.reset().observation)


def test_the_trial_step_takes_the_same_actions_each_time() -> None:
    heard: list[Any] = []
    for _ in range(2):
        make_env(f"{ZOO}:ListeningEnv", 32, kwargs={"heard": heard})
    assert heard[0] == heard[1]
    assert len(heard) == 2


def test_seeded_resets_are_the_same_although_a_step_was_tried_before() -> None:
    first, second = make_env("CartPole-v1", 2), make_env("CartPole-v1", 2)
    second.reset()
    second.step(np.zeros(2, np.int64))
    assert np.array_equal(first.reset(seed=5).observation, second.reset(seed=5).observation)


def test_cart_pole_episodes_follow_its_physics_to_their_last_observation() -> None:
    env = make_env("CartPole-v1", 16, kwargs={"max_episode_steps": 30})
    generator = np.random.default_rng(0)
    recorded = record(env, 20, seed=2, action=lambda: generator.integers(0, 2, 16))
    episodes = [episode for mine in recorded for episode in mine]
    assert {episode.end for episode in episodes} >= {(True, False), (False, True)}
    for episode in episodes:
        observations = np.array(episode.observations)
        assert len(observations) == len(episode.rewards) + 1
        assert episode.rewards == [1.0] * len(episode.rewards)
        # No reset hides between two steps: positions move by the velocities.
        moved = observations[:-1, [0, 2]] + 0.02 * observations[:-1, [1, 3]]
        np.testing.assert_allclose(observations[1:, [0, 2]], moved, atol=1e-5)
        assert np.abs(observations[0]).max() <= 0.05
        beyond = (np.abs(observations[:, 0]) > 2.4) | (np.abs(observations[:, 2]) > np.radians(12))
        assert not beyond[:-1].any()
        assert episode.end is not None
        assert beyond[-1] == episode.end[0]


def test_an_env_that_ignores_the_reset_mask_is_refused_at_its_first_partial_reset() -> None:
    env = make_env(f"{ZOO}:MaskIgnoringEnv", 4, kwargs={"mode": "DISABLED", "longest": 9})
    with pytest.raises(EnvError, match=r"MaskIgnoringEnv.*DISABLED.*ignores options\['reset_mask'\]: envs \[.*\]"):
        record(env, 3, seed=0)


def test_a_reset_that_raises_costs_no_step_where_it_is_asked_for() -> None:
    env = make_env(ALWAYS_ENDS, 2, kwargs={"resets": 1}, autoreset=AutoresetMode.DISABLED)
    env.reset()
    (rows,) = env.step(np.zeros(2, np.int64))
    assert (rows.reward.tolist(), rows.terminated.tolist(), rows.first.tolist()) == ([1, 1], [True] * 2, [False] * 2)
    assert np.array_equal(rows.observation, np.ones((2, 1), np.float32))
    for _ in range(2):
        with pytest.raises(EnvError, match=r"AlwaysEnds'.*reset\(\) raised RuntimeError: no more resets"):
            env.step(np.zeros(2, np.int64))
    env.close()


def test_a_later_reset_forgets_one_that_raised() -> None:
    env = make_env(ALWAYS_ENDS, 2, kwargs={"resets": 1}, autoreset=AutoresetMode.DISABLED)
    env.reset()
    env.step(np.zeros(2, np.int64))
    mend = env._env.unwrapped
    assert isinstance(mend, SyncVectorEnv)
    mend.set_attr("resets", 3)
    assert env.reset().first.all()
    assert len(env.step(np.zeros(2, np.int64))) == 2
    env.close()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("ForgetfulEnv", r"SAME_STEP, but envs \[.*\] are done without an infos\['final_obs'\]"),
        ("NarrowFinalEnv", r"final_obs must be an array of shape \(\d, 3\) .* but is shape \(\d, 2\)"),
    ],
)
def test_a_last_observation_that_is_lost_is_an_error(factory: str, message: str) -> None:
    env = make_env(f"{ZOO}:{factory}", 3, kwargs={"mode": "SAME_STEP"})
    with pytest.raises(EnvError, match=message):
        record(env, 3, seed=0)


@pytest.mark.parametrize(("mode", "declared"), [("absent", "none"), (None, "none"), ("NextStep", "'NextStep'")])
def test_an_env_without_a_known_autoreset_mode_is_refused(mode: Any, declared: str) -> None:
    with pytest.raises(EnvError, match=rf"moded'.*autoreset_mode.*but is {declared}: .*declare the mode"):
        make_env(f"{ZOO}:moded", 2, kwargs={"mode": mode})


def test_a_space_that_is_not_one_array_is_refused() -> None:
    with pytest.raises(
        SpaceError, match=r"dict_space'.*observation space Dict: .*only Box and Discrete.*FlattenObservation"
    ):
        make_env(f"{ZOO}:dict_space", 2)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("observation dtype", r"observation must be .*\(2, 3\) and dtype float32, but is .* dtype float64"),
        ("observation list", r"observation must be .*\(2, 3\) and dtype float32, but is a list"),
        ("observation shape", r"observation must be .*\(2, 3\) and dtype float32, but is shape \(2, 2\)"),
        ("reward", r"reward must be .*a float or integer, but is shape \(2,\) and dtype object"),
        ("later reward", r"reward must be .*dtype float32, but is .* dtype float64"),
        ("flags", r"terminated must be .*dtype bool, but is .* dtype int8"),
    ],
)
def test_arrays_that_are_not_what_the_spaces_say_are_an_error(what: str, message: str) -> None:
    def run() -> None:
        env = make_env(f"{ZOO}:MisfitEnv", 2, kwargs={"what": what})
        env.reset()
        env.step(np.zeros(2, np.int64))

    with pytest.raises(EnvError, match=message):
        run()


@pytest.fixture
def children() -> Iterator[list[Any]]:
    """Async workers to end if a test fails before its env is closed."""
    processes: list[Any] = []
    yield processes
    for process in processes:
        process.kill()


def workers(env: CanonicalEnv) -> list[Any]:
    base: AsyncVectorEnv = env._env.unwrapped  # type: ignore[assignment]  # made so above
    return base.processes


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_env_that_raises_is_named_with_its_error(vectorization: Any, children: list[Any]) -> None:
    env = make_env(f"{ZOO}:FailingEnv", 2, vectorization=vectorization)
    children += workers(env) if vectorization == "async" else []
    env.reset()
    env.step(np.zeros(2, np.int64))
    env.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"FailingEnv'.*step\(\) raised ValueError: the pole is missing") as raised:
        env.step(np.zeros(2, np.int64))
    assert isinstance(raised.value.__cause__, ValueError)
    env.close()
    assert not any(process.is_alive() for process in children)


@pytest.mark.parametrize("dying", [0, 1])
def test_a_worker_that_dies_is_an_error_and_close_ends_the_others(
    dying: int, children: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_producers.envs.closing._ANSWER_TIMEOUT_S", 0.2)
    env = make_env(f"{ZOO}:FailingEnv", 2, kwargs={"dying": dying}, vectorization="async")
    children += workers(env)
    env.reset(seed=0)
    env.step(np.zeros(2, np.int64))
    env.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"FailingEnv'.*step\(\) raised"):
        env.step(np.zeros(2, np.int64))
    assert children[1 - dying].is_alive()
    env.close()
    env.close()
    assert not any(process.is_alive() for process in children)


def test_close_ends_every_worker(children: list[Any]) -> None:
    env = make_env(f"{ZOO}:CountingEnv", 3, vectorization="async")
    children += workers(env)
    env.reset()
    assert all(process.is_alive() for process in children)
    env.close()
    env.close()
    assert [process.exitcode for process in children] == [0, 0, 0]


def test_workers_leave_interrupts_to_their_parent_and_can_be_terminated(children: list[Any]) -> None:
    def handler(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        env = make_env(f"{ZOO}:SignalledEnv", 2, vectorization="async")
        children += workers(env)
        assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        rows = env.reset()
        assert rows.observation[:, 0].tolist() == [process.pid for process in children]
        assert rows.observation[:, 1].tolist() == [1.0, 1.0]
        env.step(np.zeros(2, np.int64))
        env.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_wrapped_vector_env_keeps_its_seeds_and_ends_its_workers(children: list[Any]) -> None:
    env = make_env(f"{ZOO}:wrapped", 2)
    children += workers(env)
    rows = env.reset(seed=8)
    assert rows.seed is not None
    assert rows.seed.tolist() == rows.observation[:, 0].tolist() == [8, 9]
    (rows,) = env.step(np.zeros(2, np.int64))
    assert rows.reward.tolist() == [1.0, 1.0]
    env.close()
    assert [process.exitcode for process in children] == [0, 0]
