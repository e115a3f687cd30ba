"""The whole pipeline on one machine: run it, watch it, kill parts of it, and check that nothing was lost or doubled.

A local Kafka (or the one that KAFKA_BOOTSTRAP_SERVERS names), two producers of CartPole-v1, two consumers. New policy
weights are published every few seconds. Half-way a producer and a consumer are killed with SIGKILL and started again.
At the end everything is drained and the store is verified against the log.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from deploy.local import pole, watch
from deploy.local.kafka import LocalKafka
from deploy.local.pod import Pod
from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import format_report
from penstock_consumers.verify import Report, verify
from penstock_schemas.errors import PenstockError, SettingsError
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Log

_PRODUCERS = _CONSUMERS = _PARTITIONS = 2
_POLICY_SECONDS = 4.0
_DOWN_SECONDS = 2.0
_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 5.0
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_DRAIN_SECONDS = 60.0
_MARKER = ".penstock-run"
_FIRST_SURENESS, _SURER = 0.5, 1.35


@dataclass(slots=True)
class Summary:
    """What a run has shown; written as JSON."""

    stream: str
    seconds: float = 0.0
    steps_published: int = 0
    steps_stored: int = 0
    episodes_stored: int = 0
    missing: int = 0
    duplicated: int = 0
    aborted: int = 0
    quarantined: int = 0
    policy_versions: list[int] = field(default_factory=list)
    steps_per_second: float = 0.0
    kills: list[str] = field(default_factory=list)
    exit_statuses: dict[str, int | None] = field(default_factory=dict)
    verified: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is missing or doubled, and every process stopped cleanly."""
        clean = all(status == 0 for status in self.exit_statuses.values())
        return self.verified and clean and not self.missing and not self.duplicated


class Run:
    """One run, from its topics to its summary; every process that it starts dies with it."""

    def __init__(self, bootstrap_servers: str, log: Log, stream: str, folder: Path, console: Console) -> None:
        self._log = log
        self._folder = folder
        self._console = console
        self._watch = watch.Watch(time.monotonic)
        self._topic, self._policies = f"rollouts.{stream}", f"policies.{stream}"
        self._bucket: Bucket = open_bucket(folder / "store")
        self.summary = Summary(stream)
        common = ["--stream", stream, "--bootstrap-servers", bootstrap_servers]
        self._producers = [
            Pod(name, "penstock_producers", [*common, *_producer_flags(name)], folder)
            for name in (f"producer-{ordinal}" for ordinal in range(_PRODUCERS))
        ]
        store = ["--store", str(folder / "store"), "--session-seconds", "3"]
        self._consumers = [
            Pod(f"consumer-{ordinal}", "penstock_consumers", [*common, *store], folder) for ordinal in range(_CONSUMERS)
        ]

    def __call__(self, duration: float) -> Summary:
        """Run for `duration` seconds from the first step, drain, verify."""
        self._log.create(self._topic, partitions=_PARTITIONS)
        self._log.create(self._policies, compacted=True)
        appender = self._log.appender()
        policies = PolicyPublisher(appender, self._policies, self._bucket)
        policies.publish(pole.weights(_FIRST_SURENESS))
        with ExitStack() as stack:
            for pod in (*self._consumers, *self._producers):
                stack.enter_context(pod)
            self._await_steps("starting")
            started = time.monotonic()
            self._flow(duration, policies)
            self.summary.seconds = time.monotonic() - started
            self._await_steps("waiting for what was restarted")
            self._console.print("draining")
            self._drain()
        appender.close()
        self._console.print("verifying the store against the log")
        report = verify(self._bucket, self._log)
        self._console.print(format_report(report))
        self._sum_up(report)
        return self.summary

    def _flow(self, duration: float, policies: PolicyPublisher) -> None:
        victims = [self._producers[0], self._consumers[0]]
        down_at = duration / 2
        next_policy = _POLICY_SECONDS
        killed = restarted = False
        for now in self._show(duration, "{now:.1f} of {duration:g} s"):
            if now >= next_policy:
                next_policy += _POLICY_SECONDS
                policies.publish(pole.weights(_FIRST_SURENESS * _SURER**policies.newest))
            if now >= down_at and not killed:
                killed = True
                for pod in victims:
                    pod.kill()
                    self.summary.kills.append(pod.name)
            if killed and not restarted and now >= down_at + min(_DOWN_SECONDS, duration / 8):
                restarted = True
                for pod in victims:
                    pod.start()
            down = self.summary.kills if killed and not restarted else ()
            self._check_alive([pod for pod in (*self._producers, *self._consumers) if pod.name not in down])
        for pod in victims:
            if not pod.running:
                pod.start()

    def _await_steps(self, what: str) -> None:
        """Wait until every producer that runs has published a step."""
        for _ in self._show(_START_SECONDS, f"{what}, {{now:.0f}} s"):
            flows = self._watch.read(self._producers)
            if all(flow.reading.steps for flow in flows):
                return
            self._check_alive([*self._producers, *self._consumers])
        raise PenstockError(f"no first step within {_START_SECONDS:g} s; the producers' logs are in {self._folder}")

    def _show(self, duration: float, what: str) -> Iterator[float]:
        """Give the seconds since the call, twice a second, and show the flow meanwhile."""
        pods = [*self._producers, *self._consumers]
        started = time.monotonic()
        next_line = 0.0
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while (now := time.monotonic() - started) < duration:
                flows = self._watch.read(pods)
                title = what.format(now=now, duration=duration)
                if self.summary.kills:
                    title += f", killed so far: {', '.join(self.summary.kills)}"
                if self._console.is_terminal:
                    live.update(watch.table(flows, title), refresh=True)
                elif now >= next_line:
                    next_line = now + _LINE_SECONDS
                    self._console.print(watch.line(flows, title), soft_wrap=True)
                yield now
                time.sleep(_REFRESH_SECONDS)

    def _check_alive(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            if not pod.running:
                raise PenstockError(f"{pod.name} ended by itself; the end of its log:\n{pod.last_lines()}")

    def _drain(self) -> None:
        """Stop the producers, wait until every record is committed, stop the consumers."""
        for pod in self._producers:
            self.summary.exit_statuses[pod.name] = pod.stop(_STOP_SECONDS)
        reader = self._log.reader()
        ends = {number: reader.bounds(self._topic, number)[1] for number in range(_PARTITIONS)}
        reader.close()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(self._high_water(number) < end for number, end in ends.items()):
            self._check_alive(self._consumers)
            if time.monotonic() > deadline:
                raise PenstockError(f"the consumers did not drain the topic within {_DRAIN_SECONDS:g} s")
            time.sleep(_REFRESH_SECONDS / 5)
        for pod in self._consumers:
            self.summary.exit_statuses[pod.name] = pod.stop(_STOP_SECONDS)

    def _high_water(self, partition: int) -> int:
        newest = commits.newest(self._bucket, partition)
        return newest.high_water if newest else 0

    def _sum_up(self, report: Report) -> None:
        summary, counters = self.summary, Counter(report.counters)
        summary.steps_published = counters["steps_read"] - counters["steps_duplicate"]
        summary.steps_stored = report.steps_stored
        summary.episodes_stored = report.episodes_stored
        summary.missing = max(report.steps_missing, summary.steps_published - summary.steps_stored)
        summary.duplicated = report.steps_duplicated
        summary.aborted = counters["episodes_aborted"]
        summary.quarantined = counters["messages_quarantined"]
        summary.policy_versions = report.policy_versions
        summary.steps_per_second = round(summary.steps_stored / summary.seconds, 1)
        summary.verified = report.ok


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pipeline; 0 where nothing is missing or doubled, 1 where something is, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.run", description=__doc__)
    parser.add_argument("--duration", type=float, default=60.0, help="seconds (default: 60)")
    parser.add_argument("--folder", type=Path, default=Path("build/run"), help="where the run's files go")
    words = parser.parse_args(argv)
    console = Console()
    try:
        with ExitStack() as stack:
            stack.enter_context(own_folder(words.folder))
            given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
            if given is None:
                console.print("starting a local Kafka")
            servers = given or stack.enter_context(LocalKafka(words.folder / "kafka")).bootstrap_servers
            # A cluster that stays has topics of earlier runs; this run's store is of this run's topic.
            stream = f"cartpole-{uuid.uuid4().hex[:8]}" if given else "cartpole"
            log = stack.enter_context(KafkaLog(servers, client_id="penstock-run"))
            summary = Run(servers, log, stream, words.folder, console)(words.duration)
    except PenstockError as error:
        console.print(f"error: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing was left behind")
        return 130
    told = json.dumps({**asdict(summary), "ok": summary.ok}, indent=2)
    (words.folder / "summary.json").write_text(told + "\n")
    console.print_json(told)
    return 0 if summary.ok else 1


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Clear away what an earlier run left in a folder, and keep other runs out of it until this one has ended.

    Raises `SettingsError` where another run is in it, or where it holds something that is no run's.
    """
    marker = folder / _MARKER
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise SettingsError(f"--folder {folder}: it holds something that no run has left: name another")
    folder.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(
                f"--folder {folder}: another run is in it: wait for its end, or name another"
            ) from error
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()
        try:
            yield
        finally:
            shutil.rmtree(folder / "kafka", ignore_errors=True)


def _producer_flags(name: str) -> list[str]:
    return ["--env", "CartPole-v1", "--num-envs", "64", "--producer-id", name, "--partitions", str(_PARTITIONS)]


if __name__ == "__main__":
    sys.exit(main())
