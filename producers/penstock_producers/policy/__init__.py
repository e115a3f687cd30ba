"""Policies: what chooses actions, what is recorded beside them, and how newer weights arrive."""

from __future__ import annotations

from penstock_producers.policy.make import make_policy
from penstock_producers.policy.torch_policy import Policy, TorchPolicy
from penstock_producers.policy.watcher import PolicyWatcher

__all__ = ["Policy", "PolicyWatcher", "TorchPolicy", "make_policy"]
