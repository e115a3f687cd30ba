"""The learners of `examples/` learn from a store, and from nothing else."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from examples import offline
from examples.dqn import COLUMNS, DoubleQ, opened, train
from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.replay import Replay, RunningStatistics
from penstock_consumers.store.bucket import open_bucket
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.making import describe
from penstock_producers.rollout import Rollout
from penstock_schemas.chunks import Exploration
from penstock_schemas.errors import StoreUnavailableError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from penstock_schemas.policies import PolicyRecord
from tests.consumers.messages import STREAM, TOPIC, Clock, WrappedBucket, append, open_partition, take_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_consumers.store.bucket import Bucket

ROOT = Path(__file__).parents[2]
EPISODES = 5
PRODUCER = "pod-0"
WORDS = {"gamma": 0.98, "n_step": 5, "batch_size": 32, "seed": 0, "epsilon": 0.05, "epsilon_versions": 15}
# In a process where neither an environment nor what makes one can be imported.
LEARN_ALONE = """
import argparse, json, sys, threading

sys.modules["gymnasium"] = sys.modules["penstock_producers.envs"] = None

from examples.dqn import opened, train
from penstock_consumers.policies import PolicyPublisher
from penstock_schemas.log.memory import MemoryLog

class Once(PolicyPublisher):
    def publish(self, *args, **settings):
        stopped.set()
        return super().publish(*args, **settings)

stream, store, words = sys.argv[1:]
stopped = threading.Event()
replay = opened(store, 1, stopped)
with Once(stream, store=store, log=MemoryLog()) as publisher:
    train(argparse.Namespace(**json.loads(words)), replay, publisher, stopped)
    print(publisher.newest)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 8,000 steps of CartPole: half of them at random, half by a policy that is hardly better."""
    return filled(tmp_path_factory.mktemp("mixed"), fragments=10, connectors=["normalize"])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store of some hundred steps, whose observations go to the policy as they are."""
    return filled(tmp_path / "store", fragments=1, connectors=[])


def filled(folder: Path, *, fragments: int, connectors: Sequence[str]) -> Path:
    env = make_envs(
        EnvSource("CartPole-v1"), 16, seeds=Seeds(0, PRODUCER), clock=Clock(), vectorization="vector_entry_point"
    )
    try:
        spec, policy = describe(
            STREAM,
            env,
            {"id": "CartPole-v1", "arguments": {}, "wrappers": []},
            policy="q-network",
            arguments={"hidden": [64, 64]},
            behaviour={"epsilon": 0.5},
            connectors=[{"name": name, "arguments": {}} for name in connectors],
            rng=np.random.default_rng(0),
        )
        log = MemoryLog(clock=Clock())
        log.create(TOPIC)
        incarnation = append(log, encode_begin(spec, PRODUCER, "start"), PRODUCER).offset
        rollout = Rollout(
            env, policy, spec, fragment_steps=50, fragment_seconds=60.0, message_bytes=1 << 18, clock=Clock()
        )
        sequence = 0
        for fragment in range(fragments):
            policy.exploration = Exploration.RANDOM if fragment % 2 else Exploration.ON
            for batch in rollout.fragment().batches:
                message = encode_chunks(spec, batch, producer=PRODUCER, incarnation=incarnation, sequence=sequence)
                append(log, message, PRODUCER)
                sequence += 1
    finally:
        env.close()
    partition = open_partition(log, open_bucket(folder))
    take_all(partition, log)
    partition.commit()
    return folder


def test_what_is_learned_offline_is_better_than_the_data(store: Path) -> None:
    replay = Replay.open(store)
    data = offline.mean_return(replay)
    assert 15.0 < data < 60.0
    record = offline.learned(replay, updates=200)
    assert offline.evaluated(record, replay, EPISODES) > 2.0 * data


def test_the_q_learner_improves_on_a_store_that_stands_still(store: Path) -> None:
    replay = Replay.open(store)
    torch.manual_seed(0)
    learner = DoubleQ(replay.spec, gamma=0.98)
    statistics = RunningStatistics(replay)
    statistics.update()
    learner.pipeline.load(statistics.weights)

    def worth() -> float:
        weights = {name: value.numpy().copy() for name, value in learner.target.state_dict().items()}
        return offline.evaluated(PolicyRecord(1, weights | statistics.weights), replay, EPISODES)

    before = worth()
    batches = replay.transitions(128, n_step=5, gamma=0.98, columns=COLUMNS, connectors=learner.pipeline)
    losses = [learner.learn(batch) for batch in islice(batches, 200)]
    assert np.isfinite(losses).all()
    after = worth()
    assert after > 2.0 * max(before, offline.mean_return(replay))
    # One that is started again goes on from there.
    published = {name: value.numpy().copy() for name, value in learner.target.state_dict().items()}
    learner = DoubleQ(replay.spec, gamma=0.98)
    learner.load(published)
    assert worth() == after


class Failing(WrappedBucket):
    """A store that does not answer the first time that a segment, and then a newer commit, is asked for."""

    def __init__(self, inner: Bucket, stopped: threading.Event) -> None:
        super().__init__(inner)
        self.away = False
        self.failed: list[str] = []
        self._stopped = stopped

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        folder = str(arguments[0]).partition("/")[0]
        if self.away and folder in {"segments", "commits"}:
            if folder not in self.failed:
                self.failed.append(folder)
                raise StoreUnavailableError(f"store {self.url}: {folder} cannot be read")
            if len(self.failed) == 2:
                self._stopped.set()
        return operation(*arguments)


class Impatient(threading.Event):
    """Waits for nothing; sets itself after so many waits."""

    def __init__(self, most: int = 10_000) -> None:
        super().__init__()
        self._left = most

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("replays", [0.0, 1e9], ids=["while it waits", "while it learns"])
def test_the_learner_outlives_a_store_that_is_away_for_a_while(
    small: Path, replays: float, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = Impatient()
    bucket = Failing(open_bucket(small), stopped)
    replay = Replay.open(bucket)
    words = argparse.Namespace(**WORDS, seconds=float("inf"), replays=replays, publish_updates=2)
    with PolicyPublisher(STREAM, store=bucket, log=MemoryLog()) as publisher:
        bucket.away = True
        train(words, replay, publisher, stopped)
    assert bucket.failed == ["segments", "commits"]
    assert stopped.is_set()
    said = capsys.readouterr().out
    assert "waiting: " in said
    assert "segments cannot be read" in said
    assert "commits cannot be read" in said


def test_the_learner_says_once_why_it_cannot_open_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opened(str(tmp_path), 1, Impatient(5)) is None
    said = capsys.readouterr().out
    assert said.startswith("waiting for the store: ")
    assert "no store.json there" in said
    assert said.count("waiting") == 1


def test_the_learner_needs_no_environment(small: Path) -> None:
    words = json.dumps({**WORDS, "seconds": 3600.0, "replays": 64.0, "publish_updates": 2})
    command = [sys.executable, "-c", LEARN_ALONE, STREAM, str(small), words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  (ours)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1"
