"""Collecting by steps: exactly so many, none lost or twice, episodes going on from call to call."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.collect import Collector, collect
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.policy import make_policy
from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.errors import EnvError, SettingsError
from penstock_schemas.policies import PolicyRecord
from tests.producers.collecting import COUNTING, MODES, SEED, ZOO, assert_equal, collector_of, joined
from tests.producers.env_zoo import CountingEnv, CountingVectorEnv

if TYPE_CHECKING:
    from penstock_producers.collect import Collection


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=8)
@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=6), lookback=st.integers(0, 3))
def test_calls_give_in_sum_what_one_call_gives(mode: str, counts: list[int], lookback: int) -> None:
    """To the last bit: what the policy drew and said of it too."""
    with collector_of(mode, lookback=lookback) as parts, collector_of(mode) as whole:
        collections = [parts.collect(n) for n in counts]
        assert [collection.steps for collection in collections] == counts
        assert [sum(e.length for e in collection.episodes) for collection in collections] == counts
        assert_equal(joined(collections), joined([whole.collect(sum(counts))]))


@pytest.mark.parametrize("mode", MODES)
def test_calls_give_in_sum_what_one_call_gives_when_fragments_close_within_them(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector_of(mode) as whole:
        expected = joined([whole.collect(90)])
    monkeypatch.setattr("penstock_producers.collect.run._FRAGMENT_STEPS", 4)
    with collector_of(mode, lookback=2) as parts:
        assert_equal(joined([parts.collect(n) for n in (40, 1, 49)]), expected)


@pytest.mark.parametrize("fragment_steps", [4, 100])
def test_large_observations_stay_what_they_were_when_collecting_goes_on(
    fragment_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_producers.collect.run._FRAGMENT_STEPS", fragment_steps)
    with Collector(f"{ZOO}:FrameEnv", seed=SEED) as collector:
        collections = [collector.collect(7) for _ in range(6)]
    for rows in joined(collections).values():
        steps = len(rows["reward"])
        assert [set(frame.ravel()) for frame in rows["observation.0"]] == [{step} for step in range(steps + 1)]


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_has_the_steps_before_it_where_it_goes_on(mode: str) -> None:
    """The env's observations say which step is which."""
    with collector_of(mode, longest=40, lookback=3) as collector:
        before: dict[tuple[int, int], int] = {}
        seen = 0
        for collection in (collector.collect(n) for n in (2, 6, 7, 20, 1, 30)):
            for episode in collection.episodes:
                given = before.get((episode.env, episode.episode), 0)
                assert (episode.first_step, episode.lookback) == (given, min(given, 3))
                whole = episode.with_lookback()
                steps = np.arange(given - episode.lookback, given + episode.length + 1)
                np.testing.assert_array_equal(whole.observation[:, 2], steps)
                np.testing.assert_array_equal(episode.observation[:, 2], steps[episode.lookback :])
                np.testing.assert_array_equal(whole.reward % 1000, steps[1:])
                assert (whole.first_step, whole.length) == (steps[0], len(steps) - 1)
                assert len(whole.policy_version) == len(whole.action) == whole.length
                before[episode.env, episode.episode] = given + episode.length
                seen += episode.lookback
        assert seen > 20


def test_what_waits_for_the_next_call_is_no_view_of_what_the_envs_may_overwrite() -> None:
    with collector_of("SAME_STEP") as collector:
        collector.collect(1)
        run: Any = collector._run
        held = run._held[0].steps
        buffers = [*run._rollout.answer.observation, run._rollout.answer.steps.reward]
        assert held.env.tolist() == [1, 2]
        assert not any(
            np.shares_memory(mine, theirs) for mine in (*held.observation, held.reward) for theirs in buffers
        )


def test_an_episode_keeps_its_seed_and_options_where_it_goes_on() -> None:
    with collector_of("lanes", longest=50) as collector:
        collector.collect(3, options={"level": 3})
        later = collector.collect(9).episodes
        seeds = Seeds(SEED, "collector")
        assert [(e.first_step, e.seed, e.options) for e in later] == [
            (1, seeds.episode(env, 0), {"level": 3}) for env in range(3)
        ]


@pytest.mark.parametrize("mode", MODES)
def test_a_forced_reset_ends_what_is_open_and_what_was_held_with_it(mode: str) -> None:
    with collector_of(mode, longest=50) as collector:
        begun = {e.env: e.length for e in collector.collect(7).episodes if not e.ends}
        collection = collector.collect(6, reset=True)
        aborted = [e for e in collection.episodes if e.ends == Ends.ABORTED]
        assert {e.env: e.first_step for e in aborted} == begun
        assert {(e.length, e.abort_reason) for e in aborted} == {(0, "reset")}
        fresh = [e for e in collection.episodes if e.ends != Ends.ABORTED]
        assert [(e.env, e.first_step, e.length, e.observation[0, 2]) for e in fresh] == [(i, 0, 2, 0) for i in range(3)]
        assert collection.statistics.aborts == len(begun)


def test_reset_options_reach_the_envs_and_are_recorded() -> None:
    heard: list[Any] = []

    class Listening(CountingEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            heard.append(options)
            return super().reset(seed=seed)

    collector = Collector([Listening(50)], seed=SEED)
    assert collector.collect(2, options={"level": 1}).episodes[0].options == {"level": 1}
    assert collector.collect(2).episodes[0].options == {"level": 1}
    collection = collector.collect(2, options={"level": 2})
    assert [(e.ends, e.options) for e in collection.episodes] == [
        (Ends.ABORTED, {"level": 1}),
        (Ends.OPEN, {"level": 2}),
    ]
    assert heard == [{"level": 1}, {"level": 2}]


def test_a_step_has_the_version_that_chose_it_though_it_is_given_in_a_later_call() -> None:
    with collector_of("SAME_STEP", longest=100) as collector:
        module: Any = collector.policy
        weights = {name: value.numpy() * 2 for name, value in module.module.state_dict().items()}
        collector.collect(4)
        collector.load(weights)
        later = joined([collector.collect(5)])
        # Two envs had stepped already when the weights came.
        assert {env: rows["version"].tolist() for (env, _), rows in later.items()} == {0: [1], 1: [0, 1], 2: [0, 1]}
        assert module.digest == PolicyRecord(1, weights).digest


def test_weights_may_be_tensors_and_versions_count_up() -> None:
    with collector_of("lanes") as collector:
        module: Any = collector.policy
        collector.load(module.module.state_dict())
        collector.load({name: value * 2 for name, value in module.module.state_dict().items()})
        assert collector.policy.version == 2
        collector.load(PolicyRecord(7, {name: v.numpy() for name, v in module.module.state_dict().items()}))
        assert set(collector.collect(3).episodes[0].policy_version) == {7}


@pytest.mark.parametrize(
    ("how", "expected"),
    [({}, Exploration.ON), ({"random": True}, Exploration.RANDOM), ({"explore": False}, Exploration.OFF)],
)
def test_how_actions_are_chosen_is_a_call_s_own_affair(how: dict[str, Any], expected: Exploration) -> None:
    with collector_of("lanes", longest=100) as collector:
        collection = collector.collect(30, **how)
        assert {value for e in collection.episodes for value in e.exploration} == {expected}
        assert {value for e in collector.collect(30).episodes for value in e.exploration} == {Exploration.ON}


def test_random_actions_are_uniform_and_those_without_exploration_always_the_same() -> None:
    with Collector("CartPole-v1", num_envs=4, seed=SEED, vectorization="lanes") as collector:
        drawn = np.concatenate([e.action for e in collector.collect(400, random=True).episodes])
        assert 150 < drawn.sum() < 250
        for episode in collector.collect(100, explore=False).episodes:
            np.testing.assert_array_equal(episode.extras["log_prob"], 0.0)


def test_collecting_for_ever_gives_what_call_after_call_gives() -> None:
    with collector_of("lanes") as one, collector_of("lanes") as other:
        assert_equal(joined(islice(one.forever(7), 4)), joined(other.collect(7) for _ in range(4)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EnvSource(COUNTING),
        CountingEnv,
        lambda: [CountingEnv(), CountingEnv()],
        lambda: CountingVectorEnv(2),
        lambda: SyncVectorEnv([CountingEnv, CountingEnv]),
        lambda: make_envs(EnvSource(COUNTING), 2, seeds=Seeds(1, "x"), clock=time.monotonic),
    ],
)
def test_an_env_of_any_kind_is_collected_from(make: Any) -> None:
    assert collect(make(), "random", n_steps=9, seed=SEED).steps == 9


def test_gymnasiums_own_vector_env_that_is_handed_over_is_seeded_as_one_that_is_made() -> None:
    with (
        Collector(SyncVectorEnv([CountingEnv] * 2), "random", seed=SEED) as given,
        Collector(COUNTING, "random", num_envs=2, seed=SEED, vectorization="sync") as made,
    ):
        seeds = [[episode.seed for episode in each.collect(2).episodes] for each in (given, made)]
    assert seeds[0] == seeds[1]
    assert seeds[0][1] == seeds[0][0] + 1


def test_envs_that_were_handed_over_stay_open() -> None:
    env = gymnasium.make("CartPole-v1")
    with Collector(env, seed=SEED) as collector:
        collector.collect(3)
    with Collector(env, seed=SEED) as collector:
        assert collector.collect(3).steps == 3


def test_a_policy_that_exists_is_taken_as_it_is() -> None:
    envs = make_envs(EnvSource("CartPole-v1"), 2, seeds=Seeds(1, "x"), clock=time.monotonic)
    policy = make_policy("actor-critic", envs.observation_space, envs.action_space, rng=np.random.default_rng(3))
    assert Collector(envs, policy).collect(4).episodes[0].extras.keys() == {"log_prob", "value"}


def test_workers_give_what_this_process_gives() -> None:
    with collector_of("lanes", workers=2) as there, collector_of("lanes") as here:
        assert_equal(joined([there.collect(10), there.collect(21)]), joined([here.collect(31)]))


def test_what_a_call_had_collected_when_the_envs_broke_is_lost_and_the_next_one_begins_anew() -> None:
    class Fragile(CountingEnv):
        broken = False

        def step(self, action: Any) -> Any:
            if self.broken:
                raise KeyboardInterrupt
            return super().step(action)

    env = Fragile(50)
    collector = Collector(env, seed=SEED, lookback=2)
    assert collector.collect(3).steps == 3
    env.broken = True
    with pytest.raises(KeyboardInterrupt):
        collector.collect(3)
    env.broken = False
    (episode,) = collector.collect(3).episodes
    assert (episode.episode, episode.first_step, episode.lookback, episode.observation[0, 2]) == (1, 0, 0, 0)
    assert collector.lifetime.steps == 6


def test_an_episode_that_is_cut_goes_on_as_another() -> None:
    with collector_of("lanes", num_envs=1, longest=10**6, cut_steps=4) as collector:
        collections: list[Collection] = [collector.collect(6), collector.collect(3)]
    parts = [(e.episode, e.first_step, e.length, e.ends, e.continues) for c in collections for e in c.episodes]
    assert parts == [
        (0, 0, 4, Ends.CUT, None),
        (1, 0, 2, Ends.OPEN, 0),
        (1, 2, 2, Ends.CUT, 0),
        (2, 0, 1, Ends.OPEN, 1),
    ]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "give one of them"),
        ({"n_steps": 1, "n_episodes": 1}, "give one of them"),
        ({"n_steps": 0}, "n_steps 0: use 1 or more"),
        ({"n_episodes": -1}, "n_episodes -1: use 1 or more"),
        ({"n_steps": 1, "random": True, "explore": False}, "random actions explore"),
    ],
)
def test_what_cannot_be_collected_is_refused(asked: dict[str, Any], message: str) -> None:
    with collector_of("lanes") as collector, pytest.raises(SettingsError, match=message):
        collector.collect(**asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lookback": -1}, "lookback -1"),
        ({"window": 0}, "window 0"),
        ({"cut_steps": 0}, "cut_steps 0"),
        ({"env": CountingEnv(), "env_arguments": {"longest": 3}}, "environment that is named, not for a CountingEnv"),
        ({"env": CountingVectorEnv(2), "num_envs": 3}, "2 envs were handed over"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Collector(**{"env": COUNTING, **settings})


def test_arguments_for_a_policy_that_exists_are_refused() -> None:
    env = CountingEnv()
    policy = Collector(env).policy
    with pytest.raises(SettingsError, match="policy that is named, not for a"):
        Collector(env, policy, policy_arguments={"hidden": [3]})


def test_an_env_that_breaks_as_a_whole_says_so() -> None:
    with pytest.raises(EnvError, match="the pole is missing"):
        collect(f"{ZOO}:FailingEnv", n_steps=10, vectorization="sync")
