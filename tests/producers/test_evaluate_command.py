"""`penstock-producer evaluate`: which version it plays, what it tells, and where the episodes go."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from penstock_producers import publisher
from penstock_producers.evaluate import EvaluationMetrics, Evaluator
from penstock_producers.evaluate.service import NEWS, POLICY, PUBLISHING, evaluate_versions
from penstock_producers.evaluate.settings import EvaluationSettings, parse_seeds
from penstock_producers.policy import watcher
from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.errors import LogUnavailableError, PolicyRejectedError, SettingsError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Kind
from penstock_schemas.policies import KEY, PolicyRecord, encode_policy
from penstock_schemas.service import Health, load
from tests.producers.envs_that_end import LEAVES_A_THREAD, NEVER_MADE
from tests.producers.evaluation_zoo import NAME, length_of, return_of
from tests.producers.publishing import SECONDS, FaultyLog, messages, store, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_schemas.log import TopicInfo

STREAM, SHOWN = "live", "shown"
QUICK = ("--rebuild-backoff-seconds", "1e-9")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAM", "ENV", "WEIGHTS"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)


@dataclass
class Command:
    """An evaluation over the log in memory."""

    settings: EvaluationSettings
    log: MemoryLog | None = field(default_factory=MemoryLog)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    stop: threading.Event = field(default_factory=threading.Event)
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.health = Health(NEWS, POLICY, PUBLISHING, clock=time.monotonic, beat_limit=60.0)

    def run(self) -> bool:
        metrics = EvaluationMetrics(self.registry)
        made, write = threading.Event(), self.written.append
        return evaluate_versions(self.settings, self.log, None, metrics, self.health, self.stop, made, write)

    def publish(self, record: PolicyRecord) -> None:
        assert self.log is not None
        self.log.create(self.settings.policies_topic, compacted=True)
        value, headers = encode_policy(record)
        self.log.append(self.settings.policies_topic, 0, KEY, value, headers)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.written]


def command(*flags: str) -> Command:
    return Command(load(EvaluationSettings, ["--env", NAME, "--seeds", "0..6", "--output", "json", *flags]))


def version(number: int) -> PolicyRecord:
    policy: Any = Evaluator(NAME, [0]).describe(STREAM, "actor-critic")[1]
    return PolicyRecord(number, {name: value.numpy() * number for name, value in policy.module.state_dict().items()})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    record = version(4)
    path = tmp_path / record.object_name
    path.write_bytes(record.to_safetensors())
    return path


@contextmanager
def in_a_thread(evaluation: Command) -> Iterator[None]:
    thread = threading.Thread(target=evaluation.run, daemon=True)
    thread.start()
    yield
    evaluation.stop.set()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def watching() -> Iterator[Command]:
    evaluation = command("--stream", STREAM, "--watch")
    with in_a_thread(evaluation):
        yield evaluation


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0..3", (0, 1, 2, 3)), ("3,5,8", (3, 5, 8)), ("7", (7,)), ("0..2, 9,11..12", (0, 1, 2, 9, 11, 12))],
)
def test_seeds_are_ranges_and_lists(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "--weights FILE or --stream NAME is required: whose weights are to be evaluated?"),
        (("--stream", "s", "--seeds", "1..x"), "--seeds '1..x': '1..x' is neither a seed nor a range"),
        (("--stream", "s", "--seeds", ""), "--seeds '': '' is neither a seed nor a range"),
        (
            ("--stream", "s", "--seeds", "5..1"),
            "--seeds '5..1': from one to 1,000,000 seeds, each range from its lower",
        ),
        (("--stream", "s", "--seeds", "0..1000000"), "from one to 1,000,000 seeds"),
        (("--stream", "s", "--seeds", f"0..{'9' * 19}"), "from one to 1,000,000 seeds"),
        (("--stream", "s", "--seeds", "3,1..3"), "--seeds '3,1..3': seed 3: it is listed twice"),
        (("--stream", "s", "--seeds", f"{2**63}"), f"--seeds '{2**63}': seed {2**63}: an episode's seed is an integer"),
        (("--stream", "s", "--publish", "s"), "--publish s is the stream that is evaluated"),
        (("--weights", __file__, "--watch"), "is one version, so there is nothing to --watch: name --stream"),
        (("--weights", "/no/such/file"), "--weights '/no/such/file'"),
        (("--stream", "s", "--attempts", "0"), "--attempts '0'"),
        (("--stream", "s", "--max-steps", "0"), "--max-steps '0'"),
        (("--stream", "s", "--output", "yaml"), "--output 'yaml'"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_flag(flags: tuple[str, ...], told: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(told)):
        load(EvaluationSettings, ["--env", NAME, *flags])


def test_a_file_of_weights_needs_no_log(weights: Path) -> None:
    evaluation = command("--weights", str(weights))
    evaluation.log = None
    assert evaluation.run()
    (told,) = evaluation.told
    assert (told["policy_version"], told["policy_digest"]) == (4, version(4).digest.hex())
    assert [episode["return"] for episode in told["episodes"]] == [return_of(seed) for seed in range(7)]


def test_a_file_that_holds_no_weights_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"no weights")
    with pytest.raises(PolicyRejectedError, match=f"--weights {path}: its weights do not read"):
        command("--weights", str(path)).run()


def test_of_a_stream_the_newest_version_is_played() -> None:
    evaluation = command("--stream", STREAM, "--num-envs", "2")
    for number in (2, 3):
        evaluation.publish(version(number))
    assert evaluation.run()
    assert [told["policy_version"] for told in evaluation.told] == [3]


def test_a_stream_without_a_version_is_told() -> None:
    evaluation = command("--stream", STREAM)
    evaluation.publish(PolicyRecord(1, {}))  # not this policy's
    with pytest.raises(SettingsError, match=r"topic 'policies\.live' holds no version that can act"):
        evaluation.run()


def unloadable(number: int) -> PolicyRecord:
    """A version that passes every check, and with which the network answers infinity."""
    record = version(number)
    return PolicyRecord(number, {name: np.full_like(value, 1e38) for name, value in record.weights.items()})


@pytest.mark.parametrize("flags", [(), ("--watch",)])
def test_where_the_newest_version_does_not_load_the_one_before_it_is_played(flags: tuple[str, ...]) -> None:
    evaluation = command("--stream", STREAM, *flags)
    evaluation.publish(version(5))
    evaluation.publish(unloadable(6))
    thread = threading.Thread(target=evaluation.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: bool(evaluation.written) or not thread.is_alive())
    finally:
        evaluation.stop.set()
        thread.join(SECONDS)
    assert [told["policy_version"] for told in evaluation.told] == [5]


def test_a_stream_whose_one_version_does_not_load_is_told() -> None:
    evaluation = command("--stream", STREAM)
    evaluation.publish(unloadable(1))
    with pytest.raises(SettingsError, match=r"topic 'policies\.live' holds no version that can act"):
        evaluation.run()


def test_a_version_that_did_not_load_is_evaluated_once_it_was_repaired(
    watching: Command, caplog: pytest.LogCaptureFixture
) -> None:
    watching.publish(unloadable(6))
    wait_until(lambda: bool(caplog.messages))
    watching.publish(version(6))
    wait_until(lambda: bool(watching.written))
    assert [told["policy_version"] for told in watching.told] == [6]
    assert caplog.messages[0].startswith("not evaluated: not_finite: policy version 6")


def test_a_seed_that_fails_is_told_and_the_command_did_not_succeed(weights: Path) -> None:
    broken = ("--env-arguments", json.dumps({"breaks": {"3": "step"}}))
    evaluation = command("--weights", str(weights), "--attempts", "1", *QUICK, *broken)
    assert not evaluation.run()
    assert [episode["ended"] for episode in evaluation.told[0]["episodes"]].count("failed") == 1


def test_each_new_version_is_evaluated_as_it_comes(watching: Command) -> None:
    def mean(number: int) -> float | None:
        labels = {"policy_version": str(number)}
        return watching.registry.get_sample_value("penstock_evaluation_return_mean", labels)

    for number in (2, 5):
        watching.publish(version(number))
        wait_until(lambda number=number: mean(number) is not None)  # type: ignore[misc]  # the number of this turn
    wait_until(lambda: len(watching.written) == 2)
    assert [told["policy_version"] for told in watching.told] == [2, 5]
    assert all(text.count("\n") == 1 for text in watching.written)


class CreatesNothing(MemoryLog):
    """A log that can be read while it is away."""

    away = False

    def create(self, topic: str, **settings: Any) -> TopicInfo:
        if self.away:
            raise LogUnavailableError("it is away for a moment")
        return super().create(topic, **settings)


def test_a_watch_waits_for_a_log_that_is_away_at_its_start_and_between_two_versions() -> None:
    log = CreatesNothing()
    evaluation = command("--stream", STREAM, "--watch", "--publish", SHOWN)
    evaluation.log = log
    for number in (1, 2):
        evaluation.publish(version(number))
    log.away = True
    with in_a_thread(evaluation):
        for number in (2, 3):
            wait_until(lambda: "it is away for a moment" in evaluation.health.failing().values())
            log.away = False
            wait_until(lambda number=number: len(evaluation.written) == number - 1)  # type: ignore[misc]  # of this turn
            assert evaluation.health.failing() == {}
            log.away = True
            value, headers = encode_policy(version(number + 1))
            log.append(evaluation.settings.policies_topic, 0, KEY, value, headers)
    assert [told["policy_version"] for told in evaluation.told] == [2, 3]


def test_a_watch_without_a_version_says_what_it_waits_for(watching: Command) -> None:
    said = f"topic 'policies.{STREAM}' has held no version that can act: publish one"
    wait_until(lambda: NEWS not in watching.health.failing())
    assert watching.health.failing()[POLICY] == said
    watching.publish(unloadable(1))
    watching.publish(version(2))
    wait_until(lambda: not watching.health.failing())


def test_a_watch_that_has_no_news_is_not_ready_until_there_are_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_ASK_SECONDS", 0.0)
    evaluation = command("--stream", STREAM, "--watch")
    evaluation.publish(version(1))
    assert evaluation.log is not None
    with in_a_thread(evaluation):
        wait_until(lambda: not evaluation.health.failing())
        evaluation.log.outage = True
        wait_until(lambda: "outage" in evaluation.health.failing().get(NEWS, ""))
        evaluation.log.outage = False
        wait_until(lambda: not evaluation.health.failing())


def test_readiness_tells_of_either_end_of_the_log_whatever_the_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_ASK_SECONDS", 0.0)
    monkeypatch.setattr(publisher, "_SLOW_SECONDS", 0.0)
    evaluation = command("--stream", STREAM, "--watch", "--publish", SHOWN)
    evaluation.log = log = FaultyLog(unanswered={0})
    evaluation.publish(version(1))
    slow = {PUBLISHING: "no acknowledgement for 0 s"}
    with in_a_thread(evaluation):
        wait_until(lambda: evaluation.health.failing() == slow)
        log.outage = True
        wait_until(lambda: "outage" in evaluation.health.failing().get(NEWS, ""))
        log.outage = False
        wait_until(lambda: NEWS not in evaluation.health.failing())
        assert evaluation.health.failing() == slow
        log.answer()
        wait_until(lambda: not evaluation.health.failing())


def test_a_stop_before_the_log_has_ever_answered_is_a_clean_one(weights: Path) -> None:
    evaluation = command("--weights", str(weights), "--publish", SHOWN)
    assert evaluation.log is not None
    evaluation.log.outage = True
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(evaluation.run()), daemon=True)
    thread.start()
    wait_until(lambda: "outage" in evaluation.health.failing()[PUBLISHING])
    evaluation.stop.set()
    thread.join(SECONDS)
    assert ended == [False]
    assert evaluation.written == []


def test_a_stop_in_the_middle_tells_nothing(weights: Path) -> None:
    evaluation = command("--weights", str(weights))
    evaluation.stop.set()
    assert not evaluation.run()
    assert evaluation.written == []


def test_published_episodes_are_stored_like_any_other_without_exploration(weights: Path, tmp_path: Path) -> None:
    """A seed that broke once is played again by another incarnation; what was published of it is stored as aborted."""
    (tmp_path / "marks").mkdir()
    broken = ("--env-arguments", json.dumps({"breaks": {"3": "step"}, "once": str(tmp_path / "marks")}))
    flags = ("--num-envs", "3", "--producer-id", "judge-0", *QUICK, *broken)
    evaluation = command("--weights", str(weights), "--publish", SHOWN, *flags)
    assert evaluation.run()
    (told,) = evaluation.told
    assert evaluation.log is not None
    kinds = [message.kind for message in messages(evaluation.log, f"rollouts.{SHOWN}")]
    assert kinds == [Kind.BEGIN, Kind.CHUNKS, Kind.END] * 2
    for message in messages(evaluation.log, f"rollouts.{SHOWN}"):
        if message.batch is not None:
            assert set(message.batch.column("exploration").to_pylist()) == {Exploration.OFF}
    stored = store(evaluation.log, SHOWN)
    assert stored.report.ok, stored.report.findings
    whole = {episode["seed"]: episode for episode in stored.episodes if not episode["ends"] & Ends.ABORTED}
    assert {seed: episode["return"] for seed, episode in whole.items()} == {
        episode["seed"]: episode["return"] for episode in told["episodes"]
    }
    assert all(episode["length"] == length_of(seed) for seed, episode in whole.items())
    (aborted,) = (episode for episode in stored.episodes if episode["ends"] & Ends.ABORTED)
    assert (aborted["seed"], aborted["length"]) == (3, 1)
    assert aborted["abort_reason"] == "env_raised: step() raised RuntimeError: seed 3 broke it"
    assert {episode["producer"] for episode in stored.episodes} == {"judge-0"}


class StopsAt(threading.Event):
    """A stop that comes when it is looked for so many times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def test_what_was_recorded_before_a_stop_is_published_and_ends_as_a_shutdown(weights: Path) -> None:
    """An answer a step and a reset between two episodes: the stop comes with the third step of the fourth."""
    evaluation = command("--weights", str(weights), "--publish", SHOWN, "--num-envs", "1")
    evaluation.stop = StopsAt(sum(length_of(seed) + 1 for seed in range(3)) + 3)
    assert not evaluation.run()
    assert evaluation.log is not None
    *_, end = messages(evaluation.log, f"rollouts.{SHOWN}")
    assert (end.kind, end.reason) == (Kind.END, "shutdown")
    stored = store(evaluation.log, SHOWN)
    assert stored.report.ok, stored.report.findings
    assert [(episode["seed"], episode["length"], episode["abort_reason"]) for episode in stored.episodes] == [
        *((seed, length_of(seed), None) for seed in range(3)),
        (3, 2, "shutdown"),
    ]


def test_what_an_env_that_breaks_for_good_had_open_is_stored_under_its_error(weights: Path) -> None:
    """Env 0 plays its second step when env 1 has broken for the last time."""
    broken = ("--env-arguments", json.dumps({"breaks": {str(seed): "reset" for seed in (1, 3, 5)}}))
    flags = ("--num-envs", "2", "--max-rebuilds", "1", *QUICK, *broken)
    evaluation = command("--weights", str(weights), "--publish", SHOWN, *flags)
    assert not evaluation.run()
    assert evaluation.log is not None
    *_, end = messages(evaluation.log, f"rollouts.{SHOWN}")
    assert end.kind == Kind.END
    assert end.reason is not None
    assert end.reason.startswith(f"env_error: environment '{NAME}': env 1 failed 2 times in a row")
    assert store(evaluation.log, SHOWN).report.ok
    reasons = {episode["seed"]: episode["reason"] for episode in evaluation.told[0]["episodes"]}
    assert reasons[1] == "env_raised: reset() raised RuntimeError: seed 1 broke it"
    assert "failed 2 times in a row" in reasons[6]


def test_as_a_process_it_writes_its_table_and_nothing_else_to_stdout(weights: Path) -> None:
    flags = ("evaluate", "--env", NAME, "--weights", str(weights), "--seeds", "3,1", "--num-envs", "1")
    arguments = [sys.executable, "-m", "penstock_producers", *flags]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    assert ended.returncode == 0, ended.stderr
    head, _, names, third, first, *_ = ended.stdout.splitlines()
    assert head == f"{NAME}: policy version 4, digest {version(4).digest.hex()[:12]}"
    assert names.split() == ["seed", "return", "length", "ended"]
    assert [int(line.split()[0]) for line in (third, first)] == [3, 1]
    assert ended.stderr == ""


def test_a_stop_while_an_env_hangs_as_it_is_made_ends_it_without_a_result(weights: Path) -> None:
    flags = ("evaluate", "--env", NEVER_MADE, "--weights", str(weights))
    arguments = [sys.executable, "-m", "penstock_producers", *flags]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            process.terminate()
            written, told = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert (process.returncode, written) == (1, "")
    assert "SIGTERM: stopping" in told.splitlines()[-1]


def test_a_result_that_cannot_be_written_ends_it_though_an_env_left_a_thread(weights: Path) -> None:
    flags = ("evaluate", "--env", LEAVES_A_THREAD, "--num-envs", "1", "--seeds", "0", "--weights", str(weights))
    arguments = [sys.executable, "-m", "penstock_producers", *flags]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)  # noqa: S603 - ours
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "OSError: [Errno 28] No space left on device"
