"""What a notebook does with an env and a policy: collect, look, change the weights, collect again."""

import numpy as np

from penstock_producers.collect import Collector
from penstock_producers.policy import TorchPolicy

rng = np.random.default_rng(0)
with Collector("CartPole-v1", num_envs=8, seed=0, vectorization="lanes") as collector:
    collection = collector.collect(n_steps=512)
    batch = collection.tensors()  # time-major: what a trainer of its own would learn from
    print(f"{collection}: {batch['observation'].shape=}, {batch['log_prob'].mean()=:.2f}")

    best = max(collector.collect(n_episodes=16).episodes, key=lambda episode: episode.return_)
    print(f"best: env {best.env}, seed {best.seed}, {best.length} steps, {best.observation.shape=}")

    assert isinstance(collector.policy, TorchPolicy)  # noqa: S101 - tells a type checker what is known here
    weights = {name: value.numpy().copy() for name, value in collector.policy.module.state_dict().items()}
    most = 0.0
    for _ in range(12):  # random search: keep what does better
        tried = {name: value + 0.3 * rng.standard_normal(value.shape, np.float32) for name, value in weights.items()}
        collector.load(tried)
        returns = collector.collect(n_episodes=16, explore=False).statistics.returns
        if returns.mean > most:
            most, weights = returns.mean, tried
            print(f"version {collector.policy.version}: {returns.mean:.1f} ± {returns.std:.1f}")
    print(f"{collector.lifetime.steps:,} steps, {collector.lifetime.speed.mean:,.0f} a second")
