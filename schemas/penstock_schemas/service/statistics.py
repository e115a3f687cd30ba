"""Statistics of episodes by policy version, exported as summaries without a Python call per episode."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client.core import SummaryMetricFamily
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
    total_return: float = 0.0
    total_length: int = 0


class EpisodeStatistics(Collector):
    """Counts and sums of returns and lengths of whole episodes, for the newest policy versions.

    `rate(…_sum) / rate(…_count)` is the mean over any window. Aborted episodes are to be left out.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._versions: dict[int, _Sums] = {}
        registry.register(self)

    def observe(self, version: NDArray[np.int64], returns: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
        """Add episodes, one item each: the version that ended it, its return, its length in steps."""
        versions, index = np.unique(version, return_inverse=True)
        columns = (np.bincount(index), np.bincount(index, returns), np.bincount(index, lengths))
        with self._lock:
            for name, count, total_return, total_length in zip(versions.tolist(), *columns, strict=True):
                sums = self._versions.setdefault(name, _Sums())
                sums.count += int(count)
                sums.total_return += float(total_return)
                sums.total_length += int(total_length)
            for old in sorted(self._versions)[:-_VERSIONS]:
                del self._versions[old]

    def collect(self) -> Iterator[Any]:
        """Answer the registry; prometheus-client calls this."""
        labels = ["policy_version"]
        returns = SummaryMetricFamily(
            f"{self._prefix}_episode_return",
            "Returns of whole episodes, by the policy version that ended them.",
            labels=labels,
        )
        lengths = SummaryMetricFamily(
            f"{self._prefix}_episode_length_steps",
            "Lengths of whole episodes, by the policy version that ended them.",
            labels=labels,
        )
        with self._lock:
            for version, sums in self._versions.items():
                returns.add_metric([str(version)], sums.count, sums.total_return)
                lengths.add_metric([str(version)], sums.count, sums.total_length)
        yield returns
        yield lengths
