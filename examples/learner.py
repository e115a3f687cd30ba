"""What a learner does with a store: open it, draw batches, look at whole episodes."""

from penstock_consumers.replay import Replay

replay = Replay.open("build/run/store")
print(f"{replay.steps:,} steps in {replay.episodes_stored:,} episodes of {replay.spec.env['id']}")

best = max(replay.episodes(), key=lambda episode: episode.return_)
print(f"best: {best.return_:.0f} by policy version {best.policy_version[-1]}, {len(best.observation)} observations")

for batch, _ in zip(replay.transitions(batch_size=256, seed=0), range(1000), strict=False):
    bootstrap = 0.99 * ~batch["terminated"]  # a truncated episode's last observation still has a value
    target = batch["reward"] + bootstrap * batch["next_observation"][:, 2] ** 2  # your critic goes here
print(f"{target.shape=}, drawn from policy versions {batch['policy_version'].min()} to {batch['policy_version'].max()}")
