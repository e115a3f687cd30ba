from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest

from penstock_consumers.replay import Replay, Where
from penstock_schemas.chunks import Ends
from tests.local.started import Started, started, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.whole

RUN = "deploy.local.run"
STORE_COMMAND = Path(sys.executable).with_name("penstock-store")


@pytest.fixture(scope="module")
def finished(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A run that has ended by itself."""
    with started(kafka_bootstrap, tmp_path_factory.mktemp("whole-run"), RUN, "--duration", "12") as run:
        run.process.wait(300.0)
        yield run


@pytest.fixture(scope="module")
def summary(finished: Started) -> dict[str, Any]:
    assert finished.process.returncode == 0, finished.said
    read: dict[str, Any] = json.loads((finished.folder / "summary.json").read_text())
    return read


def store_command(bootstrap_servers: str, *words: str | Path) -> str:
    done = subprocess.run(  # noqa: S603 - our own program
        [STORE_COMMAND, *words],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_is_lost_or_doubled_though_a_producer_and_a_consumer_are_killed(summary: dict[str, Any]) -> None:
    assert summary["steps_stored"] == summary["steps_published"] > 0
    assert (summary["missing"], summary["duplicated"], summary["quarantined"]) == (0, 0, 0)
    assert summary["ok"]
    assert {name.partition("-")[0] for name in summary["kills"]} == {"producer", "consumer"}


def test_the_summary_tells_what_flowed(summary: dict[str, Any]) -> None:
    assert summary["episodes_stored"] > summary["aborted"]
    # The killed producer's open episodes, of at least one of its environments.
    assert summary["aborted"] > 0
    assert summary["steps_per_second"] == pytest.approx(summary["steps_stored"] / summary["seconds"], rel=0.01)
    versions = summary["policy_versions"]
    assert len(versions) > 1
    assert versions == sorted(set(versions))


def test_versions_that_were_learned_act_and_are_better_than_none(finished: Started, summary: dict[str, Any]) -> None:
    # By the version that ended each; before the first one, actions were random. Of a dozen seconds' learning little is
    # certain but the sign; how far it goes is in tests/local/test_learn.py.
    returns: dict[int, list[float]] = {}
    for episode in Replay.open(finished.folder / "store").episodes(columns=["reward"], where=Where(ends=~Ends.ABORTED)):
        returns.setdefault(int(episode.policy_version[-1]), []).append(episode.return_)
    learned = sorted(returns.keys() - {0})
    assert 0 in returns
    assert len(learned) > 1
    assert set(returns) <= set(summary["policy_versions"])
    newer = [return_ for version in learned[len(learned) // 2 :] for return_ in returns[version]]
    assert mean(newer) > mean(returns[0])
    assert [version for _, version, _ in summary["mean_returns"]][-1] >= 1


def test_every_process_ends_with_status_0_and_none_stays(finished: Started, summary: dict[str, Any]) -> None:
    pods = ("learner", "producer-0", "producer-1", "consumer-0", "consumer-1")
    assert summary["exit_statuses"] == dict.fromkeys(pods, 0)
    finished.await_nobody(5.0)


def test_a_learner_reads_the_store_of_a_run(finished: Started, summary: dict[str, Any]) -> None:
    replay = Replay.open(finished.folder / "store")
    assert (replay.steps, replay.episodes_stored) == (summary["steps_stored"], summary["episodes_stored"])
    batch = next(replay.transitions(256))
    assert batch["observation"].shape == batch["next_observation"].shape == (256, 4)
    assert set(batch["policy_version"]) <= set(summary["policy_versions"])
    episode = next(replay.episodes())
    assert episode.observation.shape == (episode.length + 1, 4)


def test_verify_finds_the_store_of_a_run_to_be_what_the_log_says(
    finished: Started, summary: dict[str, Any], kafka_bootstrap: str
) -> None:
    report = json.loads(store_command(kafka_bootstrap, "verify", "--json", finished.folder / "store"))
    assert report["ok"]
    assert report["steps_stored"] == report["steps_expected"] == summary["steps_stored"]


def test_info_tells_what_the_store_of_a_run_is_of(
    finished: Started, summary: dict[str, Any], kafka_bootstrap: str
) -> None:
    told = store_command(kafka_bootstrap, "info", finished.folder / "store")
    assert summary["stream"] in told
    assert "CartPole-v1" in told


def test_ctrl_c_while_steps_flow_leaves_no_process(kafka_bootstrap: str, tmp_path: Path) -> None:
    with started(kafka_bootstrap, tmp_path, RUN, "--duration", "600") as run:
        run.await_words("of 600 s", 240.0)
        assert run.pods() == 5
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(30.0) == 130, run.said
        run.await_nobody(5.0)
        assert "Traceback" not in run.said
        assert not (run.folder / "summary.json").exists()


def test_sigkill_leaves_no_process(kafka_bootstrap: str, tmp_path: Path) -> None:
    with started(kafka_bootstrap, tmp_path, RUN, "--duration", "600") as run:
        run.await_words("starting", 60.0)
        wait_until(lambda: run.pods() == 5, 30.0, lambda: f"5 pods: {run.living()}")
        run.process.kill()
        run.await_nobody(10.0)
