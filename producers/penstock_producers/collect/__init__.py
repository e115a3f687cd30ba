"""Collecting experience in this process, without a log: what a notebook, a test or a trainer of its own does."""

from __future__ import annotations

from penstock_producers.collect.collection import Collection
from penstock_producers.collect.collector import Collector
from penstock_producers.collect.episode import Episode
from penstock_producers.collect.once import collect
from penstock_producers.collect.statistics import Figures, Statistics

__all__ = ["Collection", "Collector", "Episode", "Figures", "Statistics", "collect"]
