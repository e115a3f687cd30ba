"""The learner's reader: a store's transitions, sequences and episodes, as numpy arrays."""

from penstock_consumers.replay.choosing import Mixture, Prioritized, Recency, Return, Staleness, Uniform
from penstock_consumers.replay.episodes import Episode
from penstock_consumers.replay.prefetch import Prefetch
from penstock_consumers.replay.replay import Replay
from penstock_consumers.replay.statistics import RunningStatistics
from penstock_consumers.replay.where import Where
from penstock_consumers.store.cache import Cache

__all__ = [
    "Cache",
    "Episode",
    "Mixture",
    "Prefetch",
    "Prioritized",
    "Recency",
    "Replay",
    "Return",
    "RunningStatistics",
    "Staleness",
    "Uniform",
    "Where",
]
