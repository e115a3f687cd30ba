"""Memory over a long run at full rate: whatever grows with what has passed through is found here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.figure import Figure

from deploy.local.pod import Pod
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "1200"))
SAMPLE_SECONDS = 1.0
MOST_GROWTH = 1.05
PLOT = Path("build/soak/rss.png")
STREAM = "soak"


@dataclass
class Memory:
    """What a process held, sampled over a run."""

    pod: Pod
    bytes: list[int] = field(default_factory=list)

    def sample(self) -> None:
        status = Path(f"/proc/{self.pod.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        self.bytes.append(int(line.split()[1]) * 1024)

    @property
    def growth(self) -> float:
        """The median of the last quarter, as a multiple of that of the first."""
        quarter = len(self.bytes) // 4
        return float(np.median(self.bytes[-quarter:]) / np.median(self.bytes[:quarter]))


def every(interval: float, duration: float) -> Iterator[float]:
    """Give the time since the start, again and again."""
    started = time.monotonic()
    while (now := time.monotonic() - started) < duration:
        yield now
        time.sleep(interval)


def plot(memories: list[Memory], times: list[float]) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for memory in memories:
        axes.plot(np.array(times) / 60, np.array(memory.bytes) / 2**20, label=memory.pod.name)
    axes.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    axes.legend()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT)


@pytest.mark.soak
def test_memory_stays_flat_over_a_long_run_at_full_rate(kafka_bootstrap: str, tmp_path: Path) -> None:
    common = ["--stream", STREAM, "--bootstrap-servers", kafka_bootstrap]
    env = ["--env", "CartPole-v1", "--num-envs", "64", "--policy", "actor-critic", "--producer-id", "producer-0"]
    # What comes in a minute or two: retention and collection run all the time.
    kept = ["--retain-steps", "10000000", "--collect-seconds", "30", "--compact-bytes", str(16 << 20)]
    producer = Pod("producer", "penstock_producers", [*common, *env], tmp_path)
    consumer = Pod("consumer", "penstock_consumers", [*common, "--store", str(tmp_path / "store"), *kept], tmp_path)
    memories, times = [Memory(producer), Memory(consumer)], []
    with KafkaLog(kafka_bootstrap) as log:
        log.create(f"rollouts.{STREAM}")
    with consumer, producer:
        for now in every(SAMPLE_SECONDS, SECONDS):
            for memory in memories:
                assert memory.pod.running, memory.pod.last_lines()
                memory.sample()
            times.append(now)
        steps = {
            pod.name: sum(sample.value for sample in pod.samples() if sample.name.endswith("_steps_total"))
            for pod in (producer, consumer)
        }
    plot(memories, times)
    told = ", ".join(
        f"{memory.pod.name} {memory.bytes[-1] / 2**20:.0f} MiB, {memory.growth:.3f} x" for memory in memories
    )
    print(f"\n{told}; steps {steps}; {PLOT}")  # noqa: T201  (the figures are what the run is for)
    assert steps["consumer"] > 0
    assert all(memory.growth <= MOST_GROWTH for memory in memories), told
