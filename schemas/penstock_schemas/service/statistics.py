"""Statistics of episodes by policy version, exported without a Python call per episode."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from prometheus_client import CollectorRegistry

# Each version is a set of series: the newest few are what a person watches.
_VERSIONS = 20


@dataclass(slots=True)
class _Sums:
    count: int = 0
    positive_return: float = 0.0
    negative_return: float = 0.0
    total_length: int = 0


class EpisodeStatistics(Collector):
    """Returns and lengths of whole episodes, for the newest policy versions. Aborted episodes are to be left out.

    Each has the label `policy_version`, the version that ended the episodes:

    - `…_episode_return_mean`: the mean return of all of a version's episodes so far;
    - `…_episode_return_positive_total` and `…_episode_return_negative_total`: the sum of the positive returns, and
      the sum of the magnitudes of the negative ones. What Prometheus takes the rate of must not fall, and a sum of
      returns may;
    - `…_episode_length_steps_count` and `…_episode_length_steps_sum`: the number of episodes, and of their steps.

    The mean return over a window, of any sign, is in PromQL

        (rate(…_episode_return_positive_total[5m]) - rate(…_episode_return_negative_total[5m]))
          / rate(…_episode_length_steps_count[5m])
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._versions: dict[int, _Sums] = {}
        registry.register(self)

    def observe(self, version: NDArray[np.int64], returns: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
        """Add episodes, one item each: the version that ended it, its return, its length in steps."""
        versions, index = np.unique(version, return_inverse=True)
        columns = (
            np.bincount(index),
            np.bincount(index, np.maximum(returns, 0.0)),
            np.bincount(index, np.maximum(-returns, 0.0)),
            np.bincount(index, lengths),
        )
        with self._lock:
            for name, count, positive, negative, length in zip(versions.tolist(), *columns, strict=True):
                sums = self._versions.setdefault(name, _Sums())
                sums.count += int(count)
                sums.positive_return += float(positive)
                sums.negative_return += float(negative)
                sums.total_length += int(length)
            for old in sorted(self._versions)[:-_VERSIONS]:
                del self._versions[old]

    def collect(self) -> Iterator[Any]:
        """Answer the registry; prometheus-client calls this."""
        labels = ["policy_version"]
        mean = GaugeMetricFamily(
            f"{self._prefix}_episode_return_mean",
            "Mean return of whole episodes, by the policy version that ended them.",
            labels=labels,
        )
        positive = CounterMetricFamily(
            f"{self._prefix}_episode_return_positive",
            "Sum of the positive returns of whole episodes, by the policy version that ended them.",
            labels=labels,
        )
        negative = CounterMetricFamily(
            f"{self._prefix}_episode_return_negative",
            "Sum of the magnitudes of the negative returns of whole episodes, by the policy version that ended them.",
            labels=labels,
        )
        lengths = SummaryMetricFamily(
            f"{self._prefix}_episode_length_steps",
            "Lengths of whole episodes, by the policy version that ended them.",
            labels=labels,
        )
        with self._lock:
            for version, sums in self._versions.items():
                label = [str(version)]
                mean.add_metric(label, (sums.positive_return - sums.negative_return) / sums.count)
                positive.add_metric(label, sums.positive_return)
                negative.add_metric(label, sums.negative_return)
                lengths.add_metric(label, sums.count, sums.total_length)
        yield from (mean, positive, negative, lengths)
