"""The whole loop on one machine: run it, watch it learn, kill parts of it, and check that nothing was lost or doubled.

A local Kafka (or the one that KAFKA_BOOTSTRAP_SERVERS names), two producers of CartPole-v1, two consumers, and a
learner that reads the store and publishes what it learns. Half-way a producer and a consumer are killed with SIGKILL
and started again. At the end everything is drained and the store is verified against the log.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from deploy.local import watch
from deploy.local.pods import PARTITIONS, check_alive, make_pods
from deploy.local.session import session
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import format_report
from penstock_consumers.verify import Report, verify
from penstock_schemas.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deploy.local.pod import Pod
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Log

_PRODUCERS = _CONSUMERS = 2
_DOWN_SECONDS = 2.0
# On a loaded machine it takes minutes until torch is imported everywhere, and a first version learned.
_START_SECONDS = 300.0
_STOP_SECONDS = 30.0
_DRAIN_SECONDS = 60.0
_DRAIN_POLL_SECONDS = 0.1
# How often the summary keeps how good the producers are.
_RETURN_SECONDS = 5.0


@dataclass(slots=True)
class Summary:
    """What a run has shown; written as JSON."""

    stream: str
    seconds: float = 0.0
    """From the start of the pods until draining begins."""
    steps_published: int = 0
    steps_stored: int = 0
    episodes_stored: int = 0
    missing: int = 0
    duplicated: int = 0
    aborted: int = 0
    quarantined: int = 0
    policy_versions: list[int] = field(default_factory=list)
    steps_per_second: float = 0.0
    mean_returns: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds, policy version, and the mean return of its episodes so far: how the learning went."""
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
        self._topic = f"rollouts.{stream}"
        self._bucket: Bucket = open_bucket(folder / "store")
        self._pods = make_pods(bootstrap_servers, stream, folder, producers=_PRODUCERS, consumers=_CONSUMERS)
        self.summary = Summary(stream)

    def __call__(self, duration: float) -> Summary:
        """Run for `duration` seconds from the first version that acts everywhere, drain, verify."""
        self._log.create(self._topic, partitions=PARTITIONS)
        with ExitStack() as stack:
            started = time.monotonic()
            for pod in self._pods.all:
                stack.enter_context(pod)
            self._await_learner()
            self._flow(duration)
            self.summary.seconds = time.monotonic() - started
            self._await_restarted()
            self._console.print("draining")
            self._drain()
        self._console.print("verifying the store against the log")
        report = verify(self._bucket, self._log)
        self._console.print(format_report(report))
        self._sum_up(report)
        return self.summary

    def _flow(self, duration: float) -> None:
        victims = [self._pods.producers[0], self._pods.consumers[0]]
        down_at, noted_at = duration / 2, 0.0
        killed = restarted = False
        for now, flows in self._show(duration, f"{{now:.1f}} of {duration:g} s"):
            best = watch.newest(flows)
            if best is not None and best.mean_return is not None and now >= noted_at:
                noted_at = now + _RETURN_SECONDS
                self.summary.mean_returns.append((round(now, 1), best.ended_version, round(best.mean_return, 1)))
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
            check_alive([pod for pod in self._pods.all if pod.name not in down])
        for pod in victims:
            if not pod.running:
                pod.start()

    def _await_learner(self) -> None:
        """Wait until a version that was learned acts in every producer."""
        for _, flows in self._show(_START_SECONDS, "starting, {now:.0f} s"):
            if all(flow.reading.version for flow in flows if flow.pod.startswith("producer")):
                return
            check_alive(self._pods.all)
        raise PenstockError(f"no version was learned within {_START_SECONDS:g} s; all logs are in {self._folder}")

    def _await_restarted(self) -> None:
        """Wait until every producer that runs has published a step."""
        for _ in self._show(_START_SECONDS, "waiting for what was restarted, {now:.0f} s"):
            if all(flow.reading.steps for flow in self._watch.read(self._pods.producers)):
                return
            check_alive(self._pods.all)
        raise PenstockError(f"no step of what was restarted in {_START_SECONDS:g} s; the logs are in {self._folder}")

    def _show(self, seconds: float, what: str) -> Iterator[tuple[float, list[watch.Flow]]]:
        def title(now: float) -> str:
            killed = f", killed so far: {', '.join(self.summary.kills)}" if self.summary.kills else ""
            return what.format(now=now) + killed

        return self._watch.show(self._console, self._pods.serving, seconds, title)

    def _drain(self) -> None:
        """Stop the learner and the producers, wait until every record is committed, stop the consumers."""
        self._stop([self._pods.learner, *self._pods.producers])
        reader = self._log.reader()
        ends = {number: reader.bounds(self._topic, number)[1] for number in range(PARTITIONS)}
        reader.close()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(self._high_water(number) < end for number, end in ends.items()):
            check_alive(self._pods.consumers)
            if time.monotonic() > deadline:
                raise PenstockError(f"the consumers did not drain the topic within {_DRAIN_SECONDS:g} s")
            time.sleep(_DRAIN_POLL_SECONDS)
        self._stop(self._pods.consumers)

    def _stop(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
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
    """Run the loop; 0 where nothing is missing or doubled, 1 where something is."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.run", description=__doc__)
    parser.add_argument("--duration", type=float, default=60.0, help="seconds (default: 60)")
    parser.add_argument("--folder", type=Path, default=Path("build/run"), help="where the run's files go")
    words = parser.parse_args(argv)
    console = Console()
    with session(words.folder, console) as (servers, log, suffix):
        summary = Run(servers, log, f"cartpole{suffix}", words.folder, console)(words.duration)
    told = json.dumps({**asdict(summary), "ok": summary.ok}, indent=2)
    (words.folder / "summary.json").write_text(told + "\n")
    console.print_json(told)
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())
