"""What callbacks measured of episodes, exported without a Python call per episode."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from prometheus_client.core import SummaryMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from prometheus_client import CollectorRegistry


class MeasuredStatistics(Collector):
    """Sums of what was measured, by its name in the label `metric`.

    `…_episode_metric_count` is the number of episodes of which it was measured, `…_episode_metric_sum` the sum, which
    falls where numbers are negative: take its `delta`, not its `rate`, there.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._name = f"{prefix}_episode_metric"
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[int, float]] = {}
        registry.register(self)

    def observe(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Add what was measured: by name an item an episode."""
        with self._lock:
            for name, measured in values.items():
                count, total = self._sums.get(name, (0, 0.0))
                self._sums[name] = (count + len(measured), total + float(measured.sum()))

    def collect(self) -> Iterator[Any]:
        """Answer the registry; prometheus-client calls this."""
        family = SummaryMetricFamily(self._name, "What callbacks measured of episodes, by name.", labels=["metric"])
        with self._lock:
            for name, (count, total) in self._sums.items():
                family.add_metric([name], count, total)
        yield family
