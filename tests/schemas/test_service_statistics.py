from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from penstock_schemas.service import EpisodeStatistics

NEVER_FALL = (
    "episode_return_positive_total",
    "episode_return_negative_total",
    "episode_length_steps_count",
    "episode_length_steps_sum",
)


class Statistics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.statistics = EpisodeStatistics(self.registry, "test")

    def observe(self, *episodes: tuple[int, float, int]) -> None:
        version, returns, length = zip(*episodes, strict=True)
        self.statistics.observe(np.array(version), np.array(returns, np.float64), np.array(length))

    def value(self, name: str, version: int) -> float | None:
        return self.registry.get_sample_value(f"test_{name}", {"policy_version": str(version)})

    def sums(self, version: int) -> list[float]:
        return [self.value(name, version) or 0.0 for name in NEVER_FALL]


def test_returns_of_any_sign_have_a_mean_over_any_window() -> None:
    statistics = Statistics()
    statistics.observe((1, -1000.0, 200), (1, 250.0, 50), (2, 3.0, 3))
    before = statistics.sums(1)
    assert before == [250.0, 1000.0, 2, 250]
    assert statistics.value("episode_return_mean", 1) == -375
    statistics.observe((1, -500.0, 100), (1, -700.0, 150), (1, 0.0, 1))
    grown = [now - then for now, then in zip(statistics.sums(1), before, strict=True)]
    assert min(grown) >= 0
    positive, negative, count, _ = grown
    assert (positive - negative) / count == -400
    assert statistics.value("episode_return_mean", 1) == pytest.approx(-1950 / 5)
    assert statistics.sums(2) == [3.0, 0.0, 1, 3]
    assert statistics.value("episode_return_mean", 2) == 3


def test_the_newest_versions_are_kept() -> None:
    statistics = Statistics()
    statistics.observe(*((version, 1.0, 1) for version in range(30)))
    kept = [version for version in range(30) if statistics.value("episode_return_mean", version) is not None]
    assert kept == list(range(10, 30))
