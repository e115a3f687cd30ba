"""Metrics that every process has, and the buckets that their histograms share."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import Info

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Histogram buckets for durations, in seconds: from an append on one machine to a broker that is away."""

MESSAGE_BYTES: Final = tuple(float(2**power) for power in range(10, 24))
"""Histogram buckets for message sizes, in bytes: 1 KiB to 8 MiB, each twice the one before."""


def build_info(registry: CollectorRegistry, component: str) -> None:
    """Register `penstock_build_info{version,component,python}`, always 1."""
    info = Info("penstock_build", "Which build of which component runs here.", registry=registry)
    info.info({"version": version("penstock"), "component": component, "python": platform.python_version()})
