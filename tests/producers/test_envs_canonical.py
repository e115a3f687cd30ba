from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.envs.canonical import CanonicalEnv
from penstock_producers.envs.seeds import Seeds
from penstock_producers.envs.source import EnvSource
from penstock_producers.envs.vectorized import make_vector
from penstock_schemas.errors import EnvError, SpaceError
from tests.producers import env_zoo
from tests.producers.canonical_episodes import Episode, record, zeros
from tests.producers.envs_that_end import AlwaysEnds
from tests.producers.publishing import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_producers.envs.rows import Answer, Rows

    AnyEnv = gymnasium.Env[Any, Any]

ZOO = "tests.producers.env_zoo"
MODES = tuple(AutoresetMode)


def expected(num_envs: int, episodes: int, seed: int, longest: int) -> list[list[Episode]]:
    """What the counting envs do, worked out without an environment."""
    courses = []
    for own in range(seed, seed + num_envs):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(own)))
        course = []
        for e in range(episodes):
            length = int(generator.integers(1, longest + 1))
            observations: list[tuple[Any, ...]] = [([own, e, step],) for step in range(length + 1)]
            course.append(
                Episode(
                    observations=observations,
                    rewards=[1000.0 * e + step for step in range(1, length + 1)],
                    end=(e % 3 != 1, e % 3 != 0),
                    infos=[()] * (length + 1),
                )
            )
        courses.append(course)
    return courses


def unseeded(recorded: list[list[Episode]]) -> list[list[Episode]]:
    for episode in (episode for mine in recorded for episode in mine):
        episode.seed = None
    return recorded


def vectorized(make: Callable[[], AnyEnv], num_envs: int, kind: str, mode: AutoresetMode) -> Any:
    kinds: dict[str, Any] = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
    return kinds[kind]([make] * num_envs, copy=False, autoreset_mode=mode)


def counting(kind: str, mode: AutoresetMode, num_envs: int, longest: int, seed: int = 0) -> CanonicalEnv:
    if kind == "own":
        return CanonicalEnv(env_zoo.CountingVectorEnv(num_envs, mode.name, longest), "counting", seed=seed)
    return CanonicalEnv(vectorized(partial(env_zoo.CountingEnv, longest), num_envs, kind, mode), seed=seed)


def cart_pole(num_envs: int, seed: int | None = None, **kwargs: Any) -> CanonicalEnv:
    made = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", **kwargs)
    return CanonicalEnv(made, seed=seed)


def step(env: CanonicalEnv, action: Any = 0) -> Answer:
    env.send(np.arange(env.num_envs, dtype=np.int32), (np.full(env.num_envs, action),))
    return env.recv()


def steps_of(answer: Answer) -> Rows:
    assert answer.steps is not None
    return answer.steps


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async", "own"])
def test_every_vectorization_and_mode_gives_the_same_episodes(kind: str, mode: AutoresetMode) -> None:
    env = counting(kind, mode, num_envs=4, longest=5, seed=7)
    try:
        assert env.autoreset_mode is mode
        recorded = record(env, 9, zeros)
        seeds = [[episode.seed for episode in mine] for mine in recorded]
        first = [[None if kind == "own" else 7 + i, *[None] * 8] for i in range(4)]
        assert seeds == first
        courses = expected(4, 30, seed=7, longest=5)
        assert unseeded(recorded) == [course[:9] for course in courses]
        # A reset in the middle of episodes begins new ones, unseeded.
        step(env)
        again = record(env, 3, zeros)
        for i, mine in enumerate(again):
            begun = mine[0].observations[0][0][1]
            assert begun >= 9
            assert mine == courses[i][int(begun) : int(begun) + 3]
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
    env = counting(kind, mode, num_envs, longest, seed)
    assert unseeded(record(env, 6, zeros)) == expected(num_envs, 6, seed, longest)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_last_observation_of_an_env_that_reuses_its_buffer_is_kept(kind: str, mode: AutoresetMode) -> None:
    env = CanonicalEnv(vectorized(partial(env_zoo.CountingEnv, one_buffer=True), 3, kind, mode), seed=1)
    try:
        assert unseeded(record(env, 5, zeros)) == expected(3, 5, seed=1, longest=5)
    finally:
        env.close()


def test_one_batch_of_rows_per_step_with_next_step_and_reset_rows_apart_with_the_others() -> None:
    for mode in MODES:
        env = counting("own", mode, num_envs=2, longest=1)
        begun = env.reset()
        assert begun.steps is None
        assert begun.resets is not None
        assert begun.resets.first.all()
        answer = step(env)
        assert not steps_of(answer).first.any()
        if mode is AutoresetMode.NEXT_STEP:
            assert answer.resets is None
            second = step(env)
            assert steps_of(second).first.all()
            assert second.resets is None
        else:
            assert answer.resets is not None
            assert answer.resets.first.all()


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_answered_to_no_action(mode: AutoresetMode) -> None:
    env = counting("own", mode, num_envs=2, longest=5)
    env.reset()
    step(env)
    for _ in range(2):
        answer = env.recv()
        assert (answer.steps, answer.aborts, answer.resets) == (None, (), None)
        assert answer.ready.shape == (0,)
        assert [leaf.shape for leaf in answer.observation] == [(0, 3)]
    env.send(np.arange(2, dtype=np.int32), (np.zeros(2, np.int64),))
    env.reset()
    assert env.recv().steps is None
    with pytest.raises(ValueError, match="actions of 1 envs, but all 2 step together"):
        env.send(np.zeros(1, np.int32), (np.zeros(1, np.int64),))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_actions_of_any_dtype_arrive_as_the_space_says(dtype: Any) -> None:
    heard: list[Any] = []
    made = env_zoo.ListeningEnv(3, heard)
    stepped = made.step
    seen: list[Any] = []

    def spy(actions: Any) -> Any:
        seen.append(actions)
        return stepped(actions)

    env = CanonicalEnv(made)
    env.reset()
    made.step = spy  # type: ignore[method-assign]  # to see the array itself
    env.send(np.arange(3, dtype=np.int32), (np.array([0, 1, 1], dtype),))
    env.recv()
    assert (seen[0].dtype, seen[0].tolist()) == (np.int64, [0, 1, 1])


def test_flags_of_a_reset_row_are_false_whatever_the_env_says() -> None:
    env = CanonicalEnv(env_zoo.LateFlagsEnv(4), seed=3)
    assert record(env, 6, zeros) == expected(4, 6, seed=3, longest=5)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gymnasiums_own_vectorizers_tell_the_seed_of_each_env_once(kind: str) -> None:
    env = CanonicalEnv(vectorized(env_zoo.CountingEnv, 3, kind, AutoresetMode.NEXT_STEP), seed=11)
    try:
        rows = env.reset().resets
        assert rows is not None
        assert rows.seed is not None
        assert rows.seed.dtype == np.int64
        assert rows.seed.tolist() == rows.observation[0][:, 0].tolist() == [11, 12, 13]
        again = env.reset().resets
        assert again is not None
        assert again.seed is None
        assert again.observation[0][:, 1].tolist() == [1, 1, 1]  # the second episode of the same seed
        assert steps_of(step(env)).seed is None
    finally:
        env.close()


def test_a_ready_made_vector_env_has_no_seed_per_env() -> None:
    rows = cart_pole(2, seed=1).reset().resets
    assert rows is not None
    assert rows.seed is None


def test_reward_dtype_is_known_before_the_first_step() -> None:
    assert cart_pole(2).reward_dtype == np.float32
    assert CanonicalEnv(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")).reward_dtype == np.float64


def test_unseeded_resets_differ_between_two_envs() -> None:
    first, second = cart_pole(2), cart_pole(2)
    assert not np.array_equal(first.reset().observation, second.reset().observation)


def test_the_trial_step_takes_the_same_actions_each_time() -> None:
    heard: list[Any] = []
    for _ in range(2):
        CanonicalEnv(env_zoo.ListeningEnv(32, heard))
    assert heard[0] == heard[1]
    assert len(heard) == 2


def test_seeded_resets_are_the_same_although_steps_were_tried_before() -> None:
    first = cart_pole(2, seed=5)
    made = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    made.reset()
    made.step(np.zeros(2, np.int64))
    second = CanonicalEnv(made, seed=5)
    assert np.array_equal(first.reset().observation, second.reset().observation)


def test_cart_pole_episodes_follow_its_physics_to_their_last_observation() -> None:
    env = cart_pole(16, seed=2, max_episode_steps=30)
    generator = np.random.default_rng(0)
    recorded = record(env, 20, lambda ready, _: (generator.integers(0, 2, len(ready)),))
    episodes = [episode for mine in recorded for episode in mine]
    assert {episode.end for episode in episodes} >= {(True, False), (False, True)}
    for episode in episodes:
        observations = np.array([observation for (observation,) in episode.observations])
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
    env = CanonicalEnv(env_zoo.MaskIgnoringEnv(4, "DISABLED", 9), "MaskIgnoringEnv", seed=0)
    with pytest.raises(EnvError, match=r"MaskIgnoringEnv.*DISABLED.*ignores options\['reset_mask'\]: env \d changed"):
        record(env, 3, zeros)


def test_a_reset_mask_is_not_believed_for_ever_after_a_reset_that_looks_the_same() -> None:
    env = CanonicalEnv(env_zoo.CorridorEnv(3), "CorridorEnv")
    env.reset()
    env.send(np.arange(3, dtype=np.int32), (np.array([1, 0, 0]),))
    assert env.recv().resets is not None
    env.send(np.arange(3, dtype=np.int32), (np.array([0, 1, 1]),))
    assert env.recv().resets is None
    with pytest.raises(EnvError, match=r"CorridorEnv.*ignores options\['reset_mask'\]: env 2 changed"):
        env.recv()


def always_ending() -> tuple[CanonicalEnv, SyncVectorEnv]:
    made = vectorized(partial(AlwaysEnds, resets=1), 2, "sync", AutoresetMode.DISABLED)
    return CanonicalEnv(made, "AlwaysEnds"), made


def test_a_reset_that_raises_costs_no_step_where_it_is_asked_for() -> None:
    env, _ = always_ending()
    env.reset()
    answer = step(env)
    rows = steps_of(answer)
    assert answer.resets is None
    assert (rows.reward.tolist(), rows.terminated.tolist(), rows.first.tolist()) == ([1, 1], [True] * 2, [False] * 2)
    assert np.array_equal(rows.observation[0], np.ones((2, 1), np.float32))
    for _ in range(2):
        with pytest.raises(EnvError, match=r"AlwaysEnds.*reset\(\) raised RuntimeError: no more resets"):
            step(env)
    env.close()


def test_a_later_reset_forgets_one_that_raised() -> None:
    env, made = always_ending()
    env.reset()
    step(env)
    made.set_attr("resets", 3)
    assert env.reset().resets is not None
    assert step(env).resets is not None
    env.close()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (env_zoo.ForgetfulEnv, r"SAME_STEP, but envs \[.*\] are done without an infos\['final_obs'\]"),
        (env_zoo.NarrowFinalEnv, r"final_obs must be an array of shape \(\d, 3\) .* but is shape \(\d, 2\)"),
    ],
)
def test_a_last_observation_that_is_lost_is_an_error(factory: Any, message: str) -> None:
    env = CanonicalEnv(factory(3, "SAME_STEP"))
    with pytest.raises(EnvError, match=message):
        record(env, 3, zeros)


@pytest.mark.parametrize(("mode", "declared"), [("absent", "none"), (None, "none"), ("NextStep", "'NextStep'")])
def test_an_env_without_a_known_autoreset_mode_is_refused(mode: Any, declared: str) -> None:
    with pytest.raises(EnvError, match=rf"moded.*autoreset_mode.*but is {declared}: .*declare the mode"):
        CanonicalEnv(env_zoo.moded(2, mode), "moded")


def test_what_another_env_wrote_into_the_metadata_of_all_is_no_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VectorEnv.metadata, "autoreset_mode", AutoresetMode.NEXT_STEP)
    made = env_zoo.CountingVectorEnv(2, "SAME_STEP")
    made.metadata = VectorEnv.metadata
    with pytest.raises(EnvError, match="but is none"):
        CanonicalEnv(made)
    made.autoreset_mode = AutoresetMode.SAME_STEP  # type: ignore[attr-defined]  # as some envs have it
    assert CanonicalEnv(made).autoreset_mode is AutoresetMode.SAME_STEP


def test_a_space_that_is_not_mapped_is_refused() -> None:
    made = env_zoo.CountingVectorEnv(2)
    made.single_action_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))
    with pytest.raises(SpaceError, match=r"environment special: action space: .*Sequence is not mapped.*TransformAc"):
        CanonicalEnv(made, "special")


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
        env = CanonicalEnv(env_zoo.MisfitEnv(2, what))
        env.reset()
        step(env)

    with pytest.raises(EnvError, match=message):
        run()


def test_infos_that_are_no_dict_are_an_error() -> None:
    made = env_zoo.CountingVectorEnv(2)
    env = CanonicalEnv(made)
    env.reset()
    answer = made.step(np.zeros(2))
    made.step = lambda actions: (*answer[:4], None)  # type: ignore[method-assign]  # broken on purpose
    with pytest.raises(EnvError, match="infos must be a dict, but is a NoneType"):
        step(env)


@pytest.fixture
def children() -> Iterator[list[Any]]:
    """Async workers to end if a test fails before its env is closed."""
    processes: list[Any] = []
    yield processes
    for process in processes:
        process.kill()


def sourced(factory: str, num_envs: int, kind: Any, seeds: int = 0, **kwargs: Any) -> CanonicalEnv:
    source = EnvSource(f"{ZOO}:{factory}", kwargs)
    return make_vector(source, num_envs, kind, autoreset=None, seeds=Seeds(seeds, "producer"), infos=())


def workers(env: CanonicalEnv) -> list[Any]:
    base: AsyncVectorEnv = env._env.unwrapped  # type: ignore[assignment]  # made so above
    return base.processes


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_env_that_raises_is_named_with_its_error(kind: str, children: list[Any]) -> None:
    env = sourced("FailingEnv", 2, kind)
    children += workers(env) if kind == "async" else []
    env.reset()
    step(env)
    step(env)
    with pytest.raises(EnvError, match=r"FailingEnv'.*step\(\) raised ValueError: the pole is missing") as raised:
        step(env)
    assert isinstance(raised.value.__cause__, ValueError)
    env.close()
    assert not any(process.is_alive() for process in children)


@pytest.mark.parametrize("dying", [0, 1])
def test_a_worker_that_dies_is_an_error_and_close_ends_the_others(
    dying: int, children: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_producers.envs.closing._ANSWER_TIMEOUT_S", 0.2)
    made = vectorized(partial(env_zoo.FailingEnv, dying), 2, "async", AutoresetMode.NEXT_STEP)
    env = CanonicalEnv(made, "FailingEnv", seed=0)
    children += workers(env)
    env.reset()
    step(env)
    step(env)
    with pytest.raises(EnvError, match=r"FailingEnv.*step\(\) raised"):
        step(env)
    assert children[1 - dying].is_alive()
    env.close()
    env.close()
    assert not any(process.is_alive() for process in children)


def test_close_ends_a_worker_in_which_an_env_left_a_thread(
    children: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_producers.envs.closing._END_TIMEOUT_S", 0.2)
    parent = os.getpid()

    def leaves_a_thread() -> AnyEnv:
        if os.getpid() != parent:
            threading.Thread(target=threading.Event().wait).start()
        return env_zoo.CountingEnv(3)

    env = CanonicalEnv(vectorized(leaves_a_thread, 2, "async", AutoresetMode.NEXT_STEP), "leaves_a_thread", seed=0)
    children += workers(env)
    env.reset()
    closing = threading.Thread(target=env.close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert not any(process.is_alive() for process in children)


def test_close_ends_every_worker(children: list[Any]) -> None:
    env = sourced("CountingEnv", 3, "async")
    children += workers(env)
    env.reset()
    assert all(process.is_alive() for process in children)
    env.close()
    env.close()
    assert [process.exitcode for process in children] == [0, 0, 0]


def test_workers_leave_interrupts_to_their_parent_and_can_be_terminated(children: list[Any]) -> None:
    def handler(*_: object) -> None: ...

    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(which, handler) for which in signals]
    try:
        env = sourced("SignalledEnv", 2, "async")
        children += workers(env)
        assert [signal.getsignal(which) for which in signals] == [handler, handler]
        (observation,) = env.reset().observation
        assert observation[:, 0].tolist() == [process.pid for process in children]
        assert observation[:, 1].tolist() == [1.0, 1.0]
        step(env)
        env.close()
    finally:
        for which, its in zip(signals, before, strict=True):
            signal.signal(which, its)


def test_a_wrapped_vector_env_keeps_its_seeds_and_ends_its_workers(children: list[Any]) -> None:
    env = CanonicalEnv(env_zoo.wrapped(2), seed=8)
    children += workers(env)
    rows = env.reset().resets
    assert rows is not None
    assert rows.seed is not None
    assert rows.seed.tolist() == rows.observation[0][:, 0].tolist() == [8, 9]
    assert steps_of(step(env)).reward.tolist() == [1.0, 1.0]
    env.close()
    assert [process.exitcode for process in children] == [0, 0]
