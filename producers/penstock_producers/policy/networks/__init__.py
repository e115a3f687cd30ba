"""The networks that are built in: torch modules from a batch of inputs to action parameters and values."""

from __future__ import annotations

from penstock_producers.policy.networks.actor_critic import ActorCritic
from penstock_producers.policy.networks.build import NETWORKS, Q_NETWORK, build_network
from penstock_producers.policy.networks.convolutions import Convolutions
from penstock_producers.policy.networks.head import Head
from penstock_producers.policy.networks.mlp import Mlp
from penstock_producers.policy.networks.q_network import QNetwork
from penstock_producers.policy.networks.recurrent import Recurrent

__all__ = [
    "NETWORKS",
    "Q_NETWORK",
    "ActorCritic",
    "Convolutions",
    "Head",
    "Mlp",
    "QNetwork",
    "Recurrent",
    "build_network",
]
