"""Rollouts: environments stepped with a policy that is refreshed while they run, published as chunks of episodes."""
