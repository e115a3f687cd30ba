"""The loop learns, says so, and leaves nothing behind."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deploy.local.learn import Learned, Versions, main, median_seconds
from deploy.local.pace import Pace
from deploy.local.pods import CONNECTORS, ENV, POLICY, POLICY_ARGUMENTS
from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.store.bucket import open_bucket
from penstock_producers.evaluate import Evaluator
from penstock_schemas.log.memory import MemoryLog
from tests.local.started import started

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.whole

LEARN = "deploy.local.learn"


def weights() -> dict[str, Any]:
    """What version 0 is, by name."""
    policy: Any = Evaluator(ENV, [0]).describe("test", POLICY, arguments=POLICY_ARGUMENTS, connectors=CONNECTORS)[1]
    return dict(policy._weights())


def test_it_learns_until_a_version_is_good_enough(kafka_bootstrap: str, tmp_path: Path) -> None:
    with started(kafka_bootstrap, tmp_path, LEARN, "--target", "30", "--episodes", "5", "--limit", "240") as run:
        assert run.process.wait(300.0) == 0, run.said
        run.await_nobody(5.0)
        summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["solved"], summary["seeds"], summary["episodes"]) == (1, 1, 5)
    (learned,) = summary["learned"]
    assert learned["solved"]
    assert learned["steps"] > 0
    last = learned["evaluations"][-1]
    assert last["mean_return"] >= 30.0
    assert last["version"] >= 1
    assert all(evaluated["mean_return"] < 30.0 for evaluated in learned["evaluations"][:-1])


@pytest.mark.soak
def test_it_solves_cartpole(kafka_bootstrap: str, tmp_path: Path) -> None:
    with started(kafka_bootstrap, tmp_path, LEARN) as run:
        assert run.process.wait(900.0) == 0, run.said
        summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["target"], summary["episodes"], summary["solved"]) == (475.0, 100, 1)
    (learned,) = summary["learned"]
    assert learned["seconds"] < 600.0
    assert learned["evaluations"][-1]["mean_return"] >= 475.0


def test_where_the_time_is_up_it_says_so_and_fails(kafka_bootstrap: str, tmp_path: Path) -> None:
    with started(kafka_bootstrap, tmp_path, LEARN, "--limit", "0.1", "--seeds", "2", "--episodes", "2") as run:
        assert run.process.wait(120.0) == 1, run.said
        run.await_nobody(5.0)
        assert "0 of 2 solved; in all" in run.said
        summary = json.loads((run.folder / "summary.json").read_text())
    assert [learned["solved"] for learned in summary["learned"]] == [False, False]


def test_the_median_is_of_those_that_got_there() -> None:
    learned = [
        Learned(seed, seconds, seconds < 600.0, 0, []) for seed, seconds in enumerate((600.0, 20.0, 600.0, 10.0))
    ]
    assert median_seconds(learned) == 15.0
    assert median_seconds(learned[:1]) is None


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--episodes", "0"]])
def test_nothing_to_learn_or_to_evaluate_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert f"{words[0]}: 0: a number, at least 1" in capsys.readouterr().err


def test_each_version_is_evaluated_once_and_the_newest_first() -> None:
    bucket = open_bucket("memory://")
    versions = Versions(bucket, episodes=3)
    assert versions.evaluate_newest(0.0) is None
    publisher = PolicyPublisher("test", store=bucket, log=MemoryLog())
    publisher.publish(weights())
    first = versions.evaluate_newest(0.0)
    assert first is not None
    assert first.version == 1
    assert 8.0 <= first.mean_return <= 500.0
    assert versions.evaluate_newest(0.0) is None
    publisher.publish(weights())
    # The greedy policy of equal weights is equally good, on the same seeds.
    publisher.publish(weights(), epsilon=0.5)
    last = versions.evaluate_newest(0.0)
    assert last is not None
    assert (last.version, last.mean_return) == (3, first.mean_return)


def test_a_pace_holds_all_envs_together_and_lost_time_is_lost() -> None:
    now, slept = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pace = Pace(100.0, clock=lambda: now, sleep=sleep)
    step: Any = SimpleNamespace(env=np.arange(10, dtype=np.int32))
    pace.on_step(step)
    now += 0.04
    pace.on_step(step)
    now += 5.0
    pace.on_step(step)
    pace.on_step(step)
    assert slept == pytest.approx([0.1, 0.06, 0.1])
