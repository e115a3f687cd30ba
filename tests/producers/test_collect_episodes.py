"""Collecting by episodes: so many whole ones of each env, whatever they take."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_producers.collect import Collector, collect
from penstock_producers.envs import Containment
from penstock_schemas.errors import EnvError, SettingsError
from tests.producers.collect_zoo import LONG, LOTTERY, SHORT, Breaking, Fixed, Lottery, lotteries
from tests.producers.collecting import COUNTING, MODES, SEED, assert_equal, collector_of, joined

if TYPE_CHECKING:
    import gymnasium

    from penstock_producers.collect import Episode

LOTTERIES = f"{lotteries.__module__}:lotteries"
CONTAINED = Containment(backoff=1e-9)


def lottery(mode: str, num_envs: int) -> Collector:
    if mode == "lanes":
        return Collector(LOTTERY, "random", num_envs=num_envs, seed=SEED)
    return Collector(LOTTERIES, "random", num_envs=num_envs, seed=SEED, env_arguments={"mode": mode})


@pytest.mark.parametrize("mode", MODES)
def test_the_mean_return_is_the_true_one_where_taking_what_is_done_first_is_biased(mode: str) -> None:
    true, spread = (LONG + SHORT) / 2, (LONG - SHORT) / 2
    n = num_envs = 120
    with lottery(mode, num_envs) as collector:
        returns = [episode.return_ for episode in collector.collect(n_episodes=n).episodes]
    assert len(returns) == n
    assert abs(np.mean(returns) - true) < 3 * spread / np.sqrt(n)
    with lottery(mode, num_envs) as collector:
        done: list[Episode] = []
        while len(done) < n:
            done += [episode for episode in collector.collect(num_envs).episodes if episode.ends]
    # Each is whole once its parts are added up: what was done first is mostly what is short.
    lengths = [episode.first_step + episode.length for episode in done[:n]]
    assert np.mean(lengths) < true - 6 * spread / np.sqrt(n)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_each_env_gives_its_share_of_whole_episodes(mode: str, n: int) -> None:
    with collector_of(mode) as collector:
        for _ in range(2):
            collection = collector.collect(n_episodes=n)
            of = [episode.env for episode in collection.episodes]
            assert [of.count(env) for env in range(3)] == [n // 3 + (env < n % 3) for env in range(3)]
            assert all(episode.is_whole and episode.lookback == 0 for episode in collection.episodes)
            for episode in collection.episodes:
                np.testing.assert_array_equal(episode.observation[:, 2], np.arange(episode.length + 1))
            assert collection.statistics.returns.count == collection.statistics.durations.count == n
            assert collection.statistics.lengths.mean * n == pytest.approx(collection.steps)


@pytest.mark.parametrize("mode", MODES)
def test_steps_and_episodes_may_follow_each_other(mode: str) -> None:
    with collector_of(mode, lookback=2) as collector:
        assert collector.collect(10).steps == 10
        assert all(episode.is_whole for episode in collector.collect(n_episodes=4).episodes)
        begun = {episode.env: episode for episode in reversed(collector.collect(10).episodes) if episode.length}
        assert [(e.env, e.first_step, e.observation[0, 2]) for _, e in sorted(begun.items())] == [
            (env, 0, 0) for env in range(3)
        ]


def test_an_env_that_has_given_its_share_is_stepped_no_more_where_it_can_wait() -> None:
    steps = [0, 0]

    class Counted(Lottery):
        def __init__(self, env: int, length: int) -> None:
            self.env, self.length = env, length

        def reset(self, **given: Any) -> Any:
            observation, info = super().reset(**given)
            self.left = self.length
            return observation, info

        def step(self, action: Any) -> Any:
            steps[self.env] += 1
            return super().step(action)

    Collector([Counted(0, 3), Counted(1, 20)], "random", seed=SEED).collect(n_episodes=3)
    assert steps == [6, 20]


def test_an_episode_that_breaks_is_made_up_for_by_the_next_one() -> None:
    collector = Collector([Breaking(), Breaking()], "random", seed=SEED, containment=CONTAINED)
    collection = collector.collect(n_episodes=6)
    assert [(e.env, e.episode, e.is_whole) for e in collection.episodes] == [
        (env, episode, True) for env in range(2) for episode in (0, 2, 3)
    ]
    assert collection.statistics.aborts == 2
    assert collection.statistics.returns.count == 6


def test_workers_give_what_this_process_gives() -> None:
    with collector_of("lanes", workers=2, lockstep=False) as there, collector_of("lanes") as here:
        # The policy draws in another order where envs answer in another one: what the envs do is the same.
        of = [
            {key: (rows["observation.0"].tolist(), rows["reward"].tolist()) for key, rows in joined([made]).items()}
            for made in (there.collect(n_episodes=7), here.collect(n_episodes=7))
        ]
    assert of[0] == of[1]


def test_an_env_that_is_parked_for_good_is_not_waited_for() -> None:
    class Broken(Lottery):
        def step(self, action: Any) -> Any:
            raise ValueError("the pole is missing")

    broken: list[gymnasium.Env[Any, Any]] = [Lottery(), Broken()]
    collector = Collector(broken, "random", seed=SEED, containment=Containment(max_rebuilds=1, backoff=1e-9))
    with pytest.raises(EnvError, match=r"envs \[1\] owe \[2\] more episodes, but are parked for good"):
        collector.collect(n_episodes=4)


def test_a_named_env_that_breaks_again_and_again_ends_the_call() -> None:
    containment = Containment(max_rebuilds=1, backoff=1e-9)
    with pytest.raises(EnvError, match="the pole is missing"):
        collect("tests.producers.env_zoo:FailingEnv", "random", n_episodes=1, containment=containment)


def test_equal_seeds_give_equal_episodes() -> None:
    first, second, other = (
        joined([collect(COUNTING, n_episodes=5, num_envs=2, seed=seed)]) for seed in (SEED, SEED, 12)
    )
    assert_equal(first, second)
    assert first[0, 0]["seed"] != other[0, 0]["seed"]


def test_cut_episodes_are_no_whole_ones() -> None:
    with collector_of("lanes", cut_steps=3) as collector, pytest.raises(SettingsError, match="cut is no whole episode"):
        collector.collect(n_episodes=2)


def test_the_bar_counts_episodes_and_steps(capfd: pytest.CaptureFixture[str]) -> None:
    with collector_of("lanes") as collector:
        collector.collect(n_episodes=4, progress=True)
        assert "4/4" in capfd.readouterr().err
        collector.collect(7, progress=True)
        assert "7/7" in capfd.readouterr().err
        collector.collect(7)
        assert capfd.readouterr().err == ""


def test_durations_are_from_reset_to_last_step() -> None:
    """The clock ticks when an answer comes: once at the start of the call, at the reset, and at each vector step."""
    ticks = count()

    collector = Collector(Fixed(4), "random", seed=SEED, clock=lambda: float(next(ticks)))
    statistics = collector.collect(n_episodes=2).statistics
    assert (statistics.durations.min, statistics.durations.max) == (4.0, 4.0)
