"""How long a killed consumer is missed, how fresh the store is, what a consumer costs: `python -m tests.chaos.figures`.

Real processes over a real Kafka, in the repository's root, on a machine that does nothing else. Each figure stands with
its target; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from deploy.local.kafka import LocalKafka
from deploy.local.pod import Pod
from penstock_consumers.replay import Replay
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

_SESSION_SECONDS = 6.0
_KILLS = 4
_WARM_SECONDS, _WINDOW_SECONDS = 5.0, 20.0
_WAIT_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure, and the most that it may be."""

    name: str
    value: float
    unit: str
    most: float

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.most

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "MISSED"
        return f"{self.name}: {self.value:.3g} {self.unit} (at most {self.most:g}): {verdict}"


def measure(folder: Path) -> Iterator[Measured]:
    """Measure all; what runs meanwhile writes to `folder`."""
    with LocalKafka(folder / "kafka") as kafka:
        yield _missed(kafka.bootstrap_servers, folder)
        top = _Flow(kafka.bootstrap_servers, folder, "top", 0.0)
        with top:
            rate, ratio = top.costs()
        yield Measured("a consumer's CPU per step, to the producer's", ratio, "", 0.25)
        with _Flow(kafka.bootstrap_servers, folder, "half", rate / 2) as half:
            seconds = half.freshness()
        share = f"{rate / 2:,.0f} steps/s, half of the top rate (p50 {np.median(seconds):.2f} s)"
        yield Measured(f"from a step to readable, p99, at {share}", float(np.quantile(seconds, 0.99)), "s", 2.0)


def _missed(servers: str, folder: Path) -> Measured:
    """Kill consumers in turn; answer the longest time until all partitions of one flow again."""
    stream = "missed"
    store = folder / stream
    bucket = open_bucket(store)
    common = ("--stream", stream, "--bootstrap-servers", servers)
    env = ("--env", "tests.chaos.env:make", "--env-arguments", '{"pace": 0.005}', "--policy", "random")
    producing = ("--num-envs", "8", "--fragment-steps", "8", "--partitions", "4")
    consuming = ("--store", str(store), "--session-seconds", str(_SESSION_SECONDS), "--commit-seconds", "0.2")

    def numbers(partitions: list[int]) -> dict[int, int]:
        found = {number: commits.newest(bucket, number) for number in partitions}
        return {number: commit.number if commit else -1 for number, commit in found.items()}

    with ExitStack() as opened:
        for number in range(4):
            flags = [*common, *env, *producing, "--producer-id", f"{stream}-{number}"]
            opened.enter_context(Pod(f"{stream}-producer-{number}", "penstock_producers", flags, folder))
        consumers = [
            opened.enter_context(
                Pod(f"{stream}-consumer-{number}", "penstock_consumers", [*common, *consuming], folder)
            )
            for number in range(2)
        ]
        took = [_gap(consumers, consumers[number % 2], numbers) for number in range(_KILLS)]
    each = ", ".join(f"{seconds:.1f}" for seconds in took)
    name = f"from SIGKILL of a consumer to its partitions' flow, sessions of {_SESSION_SECONDS:g} s, longest of {each}"
    return Measured(name, max(took), "s", _SESSION_SECONDS + 2.0)


def _gap(consumers: list[Pod], victim: Pod, numbers: Callable[[list[int]], dict[int, int]]) -> float:
    """Kill a consumer and start it again; answer the seconds until all its partitions have newer commits."""
    _await("both consumers to hold partitions", lambda: all(len(_held(pod)) == 2 for pod in consumers))
    held = _held(victim)
    victim.kill()
    killed, before = time.monotonic(), numbers(held)
    _await("the partitions to flow again", lambda: all(now > before[at] for at, now in numbers(held).items()))
    seconds = time.monotonic() - killed
    victim.start()
    return seconds


def _held(consumer: Pod) -> list[int]:
    return [int(sample.labels["partition"]) for sample in consumer.samples() if sample.name.endswith("_lag_offsets")]


class _Flow:
    """One producer of CartPole and one consumer, as they are by default, on a stream of their own."""

    def __init__(self, servers: str, folder: Path, stream: str, steps_per_second: float) -> None:
        self._store = folder / stream
        common = ("--stream", stream, "--bootstrap-servers", servers)
        arguments = json.dumps({"steps_per_second": steps_per_second})
        env = ("--env", "tests.chaos.env:make_stamped", "--env-arguments", arguments, "--infos", "wall_ns")
        producing = (*env, "--partitions", "1", "--producer-id", f"{stream}-0")
        self._producer = Pod(f"{stream}-producer", "penstock_producers", [*common, *producing], folder)
        self._consumer = Pod(f"{stream}-consumer", "penstock_consumers", [*common, "--store", str(self._store)], folder)

    def __enter__(self) -> Self:
        self._producer.start()
        self._consumer.start()
        _await("the first steps", lambda: _counter(self._consumer, "penstock_consumer_steps_read_total") > 0)
        _pass(_WARM_SECONDS)
        return self

    def __exit__(self, *exc: object) -> None:
        self._producer.kill()
        self._consumer.kill()

    def costs(self) -> tuple[float, float]:
        """Steps per second, and the consumer's CPU per step to the producer's."""
        before, began = self._work(), time.monotonic()
        _pass(_WINDOW_SECONDS)
        after, seconds = self._work(), time.monotonic() - began
        made, spent_making, taken, spent_taking = (now - then for now, then in zip(after, before, strict=True))
        return taken / seconds, (spent_taking / taken) / (spent_making / made)

    def freshness(self) -> NDArray[np.float64]:
        """Seconds from when each step was made until a reader that follows the store had it."""
        replay = Replay.open(self._store)
        at: list[int] = []
        seen: list[int] = []
        deadline = time.monotonic() + _WINDOW_SECONDS
        while time.monotonic() < deadline:
            if replay.refresh():
                seen.append(time.time_ns())
                at.append(replay.snapshot[0])
            else:
                _pass(_LOOK_SECONDS)
        bucket = open_bucket(self._store)
        high_water = np.array([commits.read(bucket, 0, number).high_water for number in at])
        made, shown = [], []
        for episode in replay.episodes():
            first = int(np.searchsorted(high_water, episode.closed_offset, side="right"))
            # What was there before the first look is not known by when.
            if 0 < first < len(seen):
                made.append(episode.infos["wall_ns"].data[1:])
                shown.append(np.full(episode.length, seen[first]))
        if not made:
            raise PenstockError(f"no episode became readable within {_WINDOW_SECONDS:g} s")
        seconds: NDArray[np.float64] = (np.concatenate(shown) - np.concatenate(made)) / 1e9
        return seconds

    def _work(self) -> tuple[float, float, float, float]:
        """Steps made and the producer's seconds of CPU, steps taken and the consumer's."""
        return (
            *(_counter(self._producer, "penstock_producer_steps_total"), _cpu(self._producer)),
            *(_counter(self._consumer, "penstock_consumer_steps_read_total"), _cpu(self._consumer)),
        )


def _counter(pod: Pod, name: str) -> float:
    return sum(sample.value for sample in pod.samples() if sample.name == name)


def _cpu(pod: Pod) -> float:
    """Seconds of CPU that a process has spent, in itself and in the kernel for it."""
    after_name = Path(f"/proc/{pod.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


def _await(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise PenstockError(f"waited {_WAIT_SECONDS:g} s for {what}")
        _pass(_LOOK_SECONDS)


def _pass(seconds: float) -> None:
    """Let time pass: what is measured goes on meanwhile."""
    time.sleep(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 0 where all hold."""
    argparse.ArgumentParser(prog="python -m tests.chaos.figures", description=__doc__).parse_args(argv)
    hold = True
    with tempfile.TemporaryDirectory(prefix="penstock-figures-") as folder:
        for figure in measure(Path(folder)):
            sys.stdout.write(f"{figure}\n")
            sys.stdout.flush()
            hold = hold and figure.holds
    return 0 if hold else 1


if __name__ == "__main__":
    sys.exit(main())
