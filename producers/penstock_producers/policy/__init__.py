"""Policies: what chooses actions, what is recorded beside them, and how newer weights arrive."""

from __future__ import annotations

from penstock_producers.policy.base import Actions, Inputs, Policy, Recomputed
from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.make import make_policy
from penstock_producers.policy.random_policy import RandomPolicy
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_producers.policy.watcher import PolicyWatcher

__all__ = [
    "Actions",
    "Behaviour",
    "Inputs",
    "Policy",
    "PolicyWatcher",
    "RandomPolicy",
    "Recomputed",
    "TorchPolicy",
    "make_policy",
]
