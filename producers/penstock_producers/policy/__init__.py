"""Policies: what chooses actions, what is recorded beside them, and how newer weights arrive."""

from __future__ import annotations

from penstock_producers.policy.base import Actions, Policy
from penstock_producers.policy.make import make_policy
from penstock_producers.policy.random_policy import RandomPolicy
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_producers.policy.watcher import PolicyWatcher

__all__ = ["Actions", "Policy", "PolicyWatcher", "RandomPolicy", "TorchPolicy", "make_policy"]
