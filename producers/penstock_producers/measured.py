"""What callbacks measured of episodes, exported without a Python call per episode."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from prometheus_client import CollectorRegistry


class MeasuredStatistics(Collector):
    """Sums of what was measured, by its name in the label `metric`. Numbers that are not finite are left out.

    - `…_episode_metric_mean`: the mean so far;
    - `…_episode_metric_positive_total` and `…_episode_metric_negative_total`: the sum of the positive numbers, and the
      sum of the magnitudes of the negative ones, which never fall;
    - `…_episode_metric_episodes_total`: the number of episodes of which it was measured.

    The mean over a window is had of them as that of returns, see `EpisodeStatistics`.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._name = f"{prefix}_episode_metric"
        self._lock = threading.Lock()
        # Of each the number of episodes, and the two sums.
        self._sums: dict[str, NDArray[np.float64]] = {}
        registry.register(self)

    def observe(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Add what was measured: by name an item an episode."""
        with self._lock:
            for name, measured in values.items():
                finite = measured[np.isfinite(measured)]
                added = len(finite), np.maximum(finite, 0.0).sum(), np.maximum(-finite, 0.0).sum()
                self._sums[name] = self._sums.get(name, np.zeros(3)) + added

    def collect(self) -> Iterator[Any]:
        """Answer the registry; prometheus-client calls this."""
        labels = ["metric"]
        mean = GaugeMetricFamily(
            f"{self._name}_mean", "Mean of what callbacks measured of episodes, by name.", labels=labels
        )
        positive = CounterMetricFamily(
            f"{self._name}_positive", "Sum of the positive numbers that callbacks measured, by name.", labels=labels
        )
        negative = CounterMetricFamily(
            f"{self._name}_negative",
            "Sum of the magnitudes of the negative numbers that callbacks measured, by name.",
            labels=labels,
        )
        episodes = CounterMetricFamily(
            f"{self._name}_episodes", "Episodes of which callbacks measured a number, by its name.", labels=labels
        )
        with self._lock:
            for name, sums in self._sums.items():
                count, above, below = sums.tolist()
                if count:
                    mean.add_metric([name], (above - below) / count)
                positive.add_metric([name], above)
                negative.add_metric([name], below)
                episodes.add_metric([name], count)
        yield from (mean, positive, negative, episodes)
