"""The learners of `examples/` learn from a store, and from nothing else."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from examples import offline
from examples.dqn import COLUMNS, DoubleQ
from penstock_consumers.replay import Replay, RunningStatistics
from penstock_consumers.store.bucket import open_bucket
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.making import describe
from penstock_producers.rollout import Rollout
from penstock_schemas.chunks import Exploration
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from penstock_schemas.policies import PolicyRecord
from tests.consumers.messages import STREAM, TOPIC, Clock, append, open_partition, take_all

if TYPE_CHECKING:
    from pathlib import Path

EPISODES = 10
PRODUCER = "pod-0"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 8,000 steps of CartPole: half of them at random, half by a policy that is hardly better."""
    folder = tmp_path_factory.mktemp("mixed")
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
            connectors=[{"name": "normalize", "arguments": {}}],
            rng=np.random.default_rng(0),
        )
        log = MemoryLog(clock=Clock())
        log.create(TOPIC)
        incarnation = append(log, encode_begin(spec, PRODUCER, "start"), PRODUCER).offset
        rollout = Rollout(
            env, policy, spec, fragment_steps=50, fragment_seconds=60.0, message_bytes=1 << 18, clock=Clock()
        )
        sequence = 0
        for fragment in range(10):
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
    record = offline.learned(replay, updates=400)
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
    losses = [learner.learn(batch) for batch in islice(batches, 400)]
    assert np.isfinite(losses).all()
    after = worth()
    assert after > 2.0 * max(before, offline.mean_return(replay))
    # One that is started again goes on from there.
    published = {name: value.numpy().copy() for name, value in learner.target.state_dict().items()}
    learner = DoubleQ(replay.spec, gamma=0.98)
    learner.load(published)
    assert worth() == after
