"""Evaluation: a policy without exploration, an episode for each seed of a list, the same in any number of lanes."""

from __future__ import annotations

from penstock_producers.evaluate.metrics import EvaluationMetrics
from penstock_producers.evaluate.report import EvaluatedEpisode, Evaluation, Statistics
from penstock_producers.evaluate.run import Evaluator, evaluate

__all__ = ["EvaluatedEpisode", "Evaluation", "EvaluationMetrics", "Evaluator", "Statistics", "evaluate"]
