r"""A learner in the strict sense offline: from a finished store, without producers, a policy better than its data.

    python -m examples.offline --store build/run/store --weights build/offline.safetensors
    penstock-producer evaluate --env CartPole-v1 --seeds 0..99 --weights build/offline.safetensors \
        --policy q-network --policy-arguments '{"hidden": [128, 128]}' \
        --connectors '[{"name": "normalize", "arguments": {}}]'

It is conservative Q-learning: that of `examples/dqn.py`, which besides holds the actions that the data did not take to
be worth a little less than those that it took; for here nobody tries out what is overestimated. Nothing is published:
the weights are written as a file, as a store keeps them. What they are worth is measured behind the learner's back, in
environments that it never saw.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from examples.dqn import COLUMNS, DoubleQ, HelpFormatter
from penstock_consumers.replay import Replay, RunningStatistics
from penstock_producers.evaluate import evaluate
from penstock_schemas.chunks import Ends
from penstock_schemas.policies import PolicyRecord


def learned(replay: Replay, *, updates: int, gamma: float = 0.99, n_step: int = 5, seed: int = 0) -> PolicyRecord:
    """Learn from what a store holds, and from nothing else; give the weights as a version of their own."""
    torch.manual_seed(seed)
    learner = DoubleQ(replay.spec, gamma=gamma, conservative=0.05)
    statistics = RunningStatistics(replay)
    statistics.update()
    learner.pipeline.load(statistics.weights)
    batches = replay.transitions(
        128, n_step=n_step, gamma=gamma, columns=COLUMNS, connectors=learner.pipeline, seed=seed
    )
    for batch in islice(batches, updates):
        learner.learn(batch)
    weights = {name: value.numpy() for name, value in learner.target.state_dict().items()}
    return PolicyRecord(1, weights | statistics.weights)


def mean_return(replay: Replay) -> float:
    """The mean return of the episodes that the environment itself ended."""
    ends = Ends.TERMINATED | Ends.TRUNCATED
    return float(np.mean([one.return_ for one in replay.episodes(columns=["reward"]) if one.ends & ends]))


def evaluated(record: PolicyRecord, replay: Replay, episodes: int) -> float:
    """The mean return of a policy in the environment that the store is of, without exploration."""
    env, policy = replay.spec.env, replay.spec.policy
    evaluation = evaluate(
        env["id"],
        policy["name"],
        range(episodes),
        env_arguments=env["arguments"],
        wrappers=env["wrappers"],
        policy_arguments=policy["arguments"],
        connectors=policy["connectors"],
        weights=record,
    )
    return float("nan") if evaluation.returns is None else evaluation.returns.mean


def main() -> None:
    """Learn as the flags say."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    flags.add_argument("--store", default="build/run/store", help="a folder, or any URL that obstore opens")
    flags.add_argument("--weights", type=Path, default=Path("build/offline.safetensors"), help="the file to write")
    flags.add_argument("--updates", type=int, default=5_000, help="how many to learn by")
    flags.add_argument("--episodes", type=int, default=100, help="of the evaluation")
    flags.add_argument("--seed", type=int, default=0, help="of the network and of what is drawn")
    words = flags.parse_args()
    torch.set_num_threads(1)  # small matrices: more threads wait for each other
    replay = Replay.open(words.store)
    record = learned(replay, updates=words.updates, seed=words.seed)
    words.weights.parent.mkdir(parents=True, exist_ok=True)
    words.weights.write_bytes(record.to_safetensors())
    print(f"the data: {mean_return(replay):.1f}, over {replay.steps:,} steps")
    print(f"learned:  {evaluated(record, replay, words.episodes):.1f}, over {words.episodes} episodes")


if __name__ == "__main__":
    main()
