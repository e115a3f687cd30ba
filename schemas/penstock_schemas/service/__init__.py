"""What every process of a pod shares: settings, health, metrics, its endpoint, and its life from start to stop."""

from penstock_schemas.service.endpoint import Endpoint
from penstock_schemas.service.health import Health
from penstock_schemas.service.lifecycle import (
    configure_logging,
    end,
    end_with,
    run_process,
    run_service,
    stop_on_signals,
)
from penstock_schemas.service.metrics import MESSAGE_BYTES, SECONDS, build_info
from penstock_schemas.service.settings import ServiceSettings, load
from penstock_schemas.service.statistics import EpisodeStatistics

__all__ = [
    "MESSAGE_BYTES",
    "SECONDS",
    "Endpoint",
    "EpisodeStatistics",
    "Health",
    "ServiceSettings",
    "build_info",
    "configure_logging",
    "end",
    "end_with",
    "load",
    "run_process",
    "run_service",
    "stop_on_signals",
]
