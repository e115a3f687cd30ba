"""What a learner does with a store: open it, draw batches, look at whole episodes."""

from itertools import islice

from penstock_consumers.replay import Replay

replay = Replay.open("build/run/store")
print(f"{replay.steps:,} steps in {replay.episodes_stored:,} episodes of {replay.spec.env['id']}")

best = max(replay.episodes(), key=lambda episode: episode.return_)
print(f"best: {best.return_:.0f} by policy version {best.policy_version[-1]}, {len(best.observation)} observations")

for batch in islice(replay.transitions(batch_size=256, gamma=0.99, seed=0), 1000):
    # `discount` is 0.99, and 0 where the env terminated: a truncated episode's last observation still has a value.
    target = batch["reward"] + batch["discount"] * batch["next_observation"][:, 2] ** 2  # your critic goes here
print(f"{target.shape=}, drawn from policy versions {batch['policy_version'].min()} to {batch['policy_version'].max()}")
