"""Figures of calls: those of one, of the last ones, of all."""

from __future__ import annotations

import dataclasses
import json
from itertools import count
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock_producers.collect import Collector
from penstock_producers.collect.statistics import Figures, Lifetime, Measured, Window, statistics_of
from tests.producers.collect_zoo import Fixed
from tests.producers.collecting import MODES, SEED, collector_of

NUMBERS = arrays(np.float64, st.integers(0, 6), elements=st.floats(-1e6, 1e6))
CALLS = st.lists(NUMBERS, min_size=1, max_size=5)


def measured(numbers: Any) -> Measured:
    return Measured(3, 1, {"returns": numbers, "metric.goals": numbers / 2})


def close(one: Figures, other: Figures) -> bool:
    return dataclasses.astuple(one) == pytest.approx(dataclasses.astuple(other), rel=1e-9, abs=1e-6, nan_ok=True)


@given(CALLS)
def test_the_lifetime_is_of_all_numbers(calls: list[Any]) -> None:
    lifetime = Lifetime()
    for numbers in calls:
        lifetime.add(measured(numbers))
    together = np.concatenate(calls)
    assert close(lifetime.statistics.returns, Figures.of(together))
    assert close(lifetime.statistics.metrics["goals"], Figures.of(together / 2))
    assert (lifetime.steps, lifetime.aborts, lifetime.calls) == (3 * len(calls), len(calls), len(calls))


@given(CALLS, CALLS)
def test_a_lifetime_that_was_saved_goes_on(before: list[Any], after: list[Any]) -> None:
    one = Lifetime()
    for numbers in before:
        one.add(measured(numbers))
    other = Lifetime.from_json(json.loads(json.dumps(one.to_json(), allow_nan=False)))
    for numbers in after:
        one.add(measured(numbers))
        other.add(measured(numbers))
    assert repr(one.statistics) == repr(other.statistics)


@given(CALLS, st.integers(1, 8))
def test_the_window_is_of_the_last_numbers_and_calls(calls: list[Any], size: int) -> None:
    window = Window(size)
    for numbers in calls:
        window.add(measured(numbers))
    statistics = window.statistics
    assert close(statistics.returns, Figures.of(np.concatenate(calls)[-size:]))
    assert statistics.steps == 3 * min(size, len(calls))


def test_of_nothing_there_is_a_count_only() -> None:
    statistics = statistics_of(measured(np.zeros(0)))
    assert statistics.returns.count == statistics.speed.count == 0
    assert np.isnan(statistics.returns.mean)


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_counts_in_the_call_that_has_its_last_step_with_all_its_steps(mode: str) -> None:
    with collector_of(mode) as collector:
        lengths: dict[tuple[int, int], int] = {}
        for n in (4, 1, 9, 30):
            collection = collector.collect(n)
            ended = []
            for episode in collection.episodes:
                key = episode.env, episode.episode
                lengths[key] = lengths.get(key, 0) + episode.length
                if episode.ends:
                    ended.append(lengths[key])
            assert collection.statistics.lengths == Figures.of(np.array(ended, np.float64))
            assert collection.statistics.durations.count == len(ended)
        # The return of episode e of n steps is 1000 e n + n (n + 1) / 2, and every mode has its own e.
        assert collector.lifetime.steps == 44
        assert collector.window.lengths.count == collector.lifetime.lengths.count > 0


def test_speed_and_pauses_are_told_by_the_clock() -> None:
    ticks = count(0, 0.5)
    with collector_of("lanes", num_envs=2, longest=50, clock=lambda: next(ticks)) as collector:
        first, second = collector.collect(8).statistics, collector.collect(8).statistics
        assert first.pauses.count == 0
        assert second.pauses.mean == 0.5
        assert second.speed.mean == 8 / second.seconds.mean
        # One tick at its start, one at each of the four vector steps, one at its end.
        assert second.seconds.mean == 2.5
        assert collector.lifetime.speed.count == 2
        collector.reset_statistics()
        assert (collector.lifetime.steps, collector.window.speed.count) == (0, 0)
        assert collector.collect(8).statistics.pauses.count == 1


def test_a_step_that_waits_for_the_next_call_took_no_longer_for_it() -> None:
    """And one that a reset throws away ends no episode. The clock tells when an answer came."""
    time = 0.0
    envs = SyncVectorEnv([lambda: Fixed(4)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    collector = Collector(envs, "random", seed=SEED, clock=lambda: time)
    collector.collect(9)
    time = 3.0
    first = collector.collect(1).statistics.durations
    time = 1000.0
    rest = collector.collect(2).statistics.durations
    assert [(d.min, d.max, d.count) for d in (first, rest)] == [(3.0, 3.0, 1), (3.0, 3.0, 2)]


def test_a_reset_throws_away_the_durations_of_what_it_throws_away() -> None:
    envs = SyncVectorEnv([lambda: Fixed(4)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    collector = Collector(envs, "random", seed=SEED)
    collector.collect(10)
    collector.collect(10, reset=True)
    assert collector.lifetime.durations.count == collector.lifetime.lengths.count == 2


def test_a_call_by_episodes_does_not_count_what_its_own_reset_ends() -> None:
    with collector_of("lanes", longest=50) as collector:
        collector.collect(10)
        assert collector.collect(n_episodes=3).statistics.aborts == 0
        collector.collect(10)
        assert collector.collect(10, reset=True).statistics.aborts == 3
