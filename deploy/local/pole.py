"""Weights that balance CartPole's pole ever better: what a learner would publish, without the learning.

The network is the producers' own actor-critic (4 inputs, 64 and 64 tanh units, 2 logits and a value). One path through
it carries the pole's lean to the logits; `sureness` says how much the policy trusts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Position, velocity, angle, angular velocity: push towards the side to which the pole falls.
_LEAN = (0.1, 0.3, 1.0, 0.8)
_WIDTH = 64


def weights(sureness: float) -> dict[str, NDArray[np.float32]]:
    """Make the weights of a policy between indifferent (0) and sure (about 30)."""
    made = {
        "trunk.0.weight": np.zeros((_WIDTH, len(_LEAN)), np.float32),
        "trunk.0.bias": np.zeros(_WIDTH, np.float32),
        "trunk.2.weight": np.zeros((_WIDTH, _WIDTH), np.float32),
        "trunk.2.bias": np.zeros(_WIDTH, np.float32),
        "head.weight": np.zeros((3, _WIDTH), np.float32),
        "head.bias": np.zeros(3, np.float32),
    }
    made["trunk.0.weight"][0] = _LEAN
    made["trunk.2.weight"][0, 0] = 1.0
    made["head.weight"][:2, 0] = -sureness, sureness
    return made
