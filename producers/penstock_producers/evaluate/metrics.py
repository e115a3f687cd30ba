"""The metrics of evaluations, each declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock_producers.evaluate.report import Statistics

if TYPE_CHECKING:
    from penstock_producers.evaluate.report import Evaluation

_PREFIX = "penstock_evaluation"
_BY_VERSION = ["policy_version"]
# Each version is a set of series: the newest few are what a person watches.
_VERSIONS = 20
_RETURNS = {
    "mean": "Mean return of the whole episodes, by policy version.",
    "standard_error": "Standard error of that mean.",
    "std": "Standard deviation of the returns of whole episodes.",
    "min": "Least return of a whole episode.",
    "median": "Median return of the whole episodes.",
    "max": "Largest return of a whole episode.",
}


class EvaluationMetrics:
    """What the newest evaluation of each policy version found; one process may register it once.

    A number that an evaluation does not have, for want of whole episodes, has no series.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._returns = {
            name: Gauge(f"{_PREFIX}_return_{name}", told, _BY_VERSION, registry=registry)
            for name, told in _RETURNS.items()
        }
        self._length = Gauge(
            f"{_PREFIX}_length_steps_mean",
            "Mean length of the whole episodes, by policy version.",
            _BY_VERSION,
            registry=registry,
        )
        self._episodes = Gauge(
            f"{_PREFIX}_episodes",
            "Episodes by policy version and by how they ended; those cut or failed are in no other number.",
            [*_BY_VERSION, "ended"],
            registry=registry,
        )
        self._evaluations = Counter(f"{_PREFIX}_evaluations", "Evaluations that were finished.", registry=registry)
        self._newest = Gauge(f"{_PREFIX}_policy_version", "The policy version evaluated last.", registry=registry)
        self._finished = Gauge(
            f"{_PREFIX}_finished_timestamp_seconds", "When the last evaluation was finished.", registry=registry
        )
        # By version, in the order in which they were evaluated: the labels of its series.
        self._ended: dict[int, set[str]] = {}

    def evaluated(self, evaluation: Evaluation, now: float) -> None:
        """An evaluation was finished, at the time `now` in seconds since the epoch."""
        version = evaluation.policy_version
        self._forget(version)
        label = str(version)
        returns, lengths = evaluation.returns, evaluation.lengths
        if returns is not None and lengths is not None:
            for name in Statistics._fields:
                if (value := getattr(returns, name)) is not None:
                    self._returns[name].labels(label).set(value)
            self._length.labels(label).set(lengths.mean)
        outcomes = [episode.outcome for episode in evaluation.episodes]
        for outcome in set(outcomes):
            self._episodes.labels(label, outcome).set(outcomes.count(outcome))
        self._ended[version] = set(outcomes)
        while len(self._ended) > _VERSIONS:
            self._forget(next(iter(self._ended)))
        self._evaluations.inc()
        self._newest.set(version)
        self._finished.set(now)

    def _forget(self, version: int) -> None:
        for outcome in self._ended.pop(version, ()):
            self._episodes.remove(str(version), outcome)
        for gauge in (*self._returns.values(), self._length):
            gauge.remove_by_labels({"policy_version": str(version)})
