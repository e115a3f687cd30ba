"""What an evaluation comes to: its statistics, as a table, as JSON, and as metrics."""

from __future__ import annotations

import json
from statistics import fmean, median, stdev

import pytest
from prometheus_client import CollectorRegistry

from penstock_producers.evaluate import EvaluatedEpisode, Evaluation, EvaluationMetrics
from penstock_schemas.chunks import Ends

EPISODES = (
    EvaluatedEpisode(3, Ends.TERMINATED, -1.5, 10, 1),
    EvaluatedEpisode(1, Ends.TRUNCATED, 20.0, 200, 2),
    EvaluatedEpisode(4, Ends.CUT, 1e6, 1000, 1),
    EvaluatedEpisode(5, Ends.TERMINATED | Ends.TRUNCATED, 5.25, 30, 1),
    EvaluatedEpisode(9, Ends.ABORTED, None, None, 3, "env_raised: step() raised OSError: gone"),
)


def evaluation(*episodes: EvaluatedEpisode, version: int = 7) -> Evaluation:
    return Evaluation("Some-v0", version, bytes(range(32)), 64, episodes)


def test_the_statistics_are_of_whole_episodes_only() -> None:
    returns = evaluation(*EPISODES).returns
    assert returns is not None
    whole = [-1.5, 20.0, 5.25]
    assert (returns.mean, returns.median, returns.min, returns.max) == (fmean(whole), median(whole), -1.5, 20.0)
    assert returns.std == pytest.approx(stdev(whole))
    assert returns.standard_error == pytest.approx(stdev(whole) / 3**0.5)
    lengths = evaluation(*EPISODES).lengths
    assert lengths is not None
    assert (lengths.mean, lengths.max) == (80.0, 200.0)


def test_one_episode_has_no_deviation_and_none_have_no_statistics() -> None:
    one = evaluation(EPISODES[0]).returns
    assert one == (-1.5, None, None, -1.5, -1.5, -1.5)
    none = evaluation(*EPISODES[2:3], EPISODES[4])
    assert (none.returns, none.lengths) == (None, None)
    assert "0 of 2 episodes are whole" in none.table()
    assert none.to_json()["return"] is None


def test_the_table_has_every_seed_and_says_what_counts() -> None:
    assert evaluation(*EPISODES).table() == (
        "Some-v0: policy version 7, digest 000102030405\n"
        "\n"
        "seed  return  length  ended\n"
        "   3    -1.5      10  terminated\n"
        "   1      20     200  truncated                 played 2 times\n"
        "   4   1e+06   1,000  cut\n"
        "   5    5.25      30  terminated and truncated\n"
        "   9       -       -  failed                    played 3 times; env_raised: step() raised OSError: gone\n"
        "\n"
        "3 of 5 episodes are whole, 1 cut at the most steps allowed, 1 failed\n"
        "\n"
        "           mean  standard error      std   min  median  max\n"
        "return  7.91667         6.34812  10.9953  -1.5    5.25   20\n"
        "length       80         60.2771  104.403    10      30  200"
    )


def test_as_json_it_is_all_there() -> None:
    described = json.loads(json.dumps(evaluation(*EPISODES).to_json(), allow_nan=False))
    assert described["policy_version"] == 7
    assert described["policy_digest"] == bytes(range(32)).hex()
    assert described["whole"] == 3
    assert described["return"]["max"] == 20.0
    assert [episode["seed"] for episode in described["episodes"]] == [3, 1, 4, 5, 9]
    assert described["episodes"][1] == {
        "seed": 1,
        "return": 20.0,
        "length": 200,
        "ended": "truncated",
        "whole": True,
        "attempts": 2,
        "reason": None,
    }
    assert described["episodes"][4]["reason"] == "env_raised: step() raised OSError: gone"


class Shown:
    """What metrics show."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = EvaluationMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_evaluation_{name}", labels)


def test_metrics_show_the_newest_evaluation_of_each_version() -> None:
    shown = Shown()
    shown.metrics.evaluated(evaluation(*EPISODES, version=7), 100.0)
    shown.metrics.evaluated(evaluation(*EPISODES[:1], version=8), 200.0)
    assert shown.value("return_mean", policy_version="7") == fmean([-1.5, 20.0, 5.25])
    assert shown.value("return_max", policy_version="7") == 20.0
    assert shown.value("length_steps_mean", policy_version="7") == 80.0
    assert shown.value("episodes", policy_version="7", ended="failed") == 1
    assert shown.value("episodes", policy_version="8", ended="terminated") == 1
    assert shown.value("return_mean", policy_version="8") == -1.5
    assert shown.value("return_std", policy_version="8") is None
    assert (shown.value("evaluations_total"), shown.value("policy_version")) == (2, 8)
    assert shown.value("finished_timestamp_seconds") == 200.0
    shown.metrics.evaluated(evaluation(EPISODES[4], version=7), 300.0)
    assert shown.value("return_mean", policy_version="7") is None
    assert shown.value("episodes", policy_version="7", ended="terminated") is None
    assert shown.value("episodes", policy_version="7", ended="failed") == 1


def test_metrics_keep_the_newest_versions_only() -> None:
    shown = Shown()
    for version in range(1, 31):
        shown.metrics.evaluated(evaluation(*EPISODES, version=version), 0.0)
    kept = [version for version in range(1, 31) if shown.value("return_mean", policy_version=str(version)) is not None]
    assert kept == list(range(11, 31))
    assert shown.value("episodes", policy_version="10", ended="cut") is None
