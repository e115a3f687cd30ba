"""Which distribution an action space has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.distributions.categorical import Categorical, Categoricals
from penstock_producers.policy.distributions.gaussian import DiagonalGaussian
from penstock_producers.policy.distributions.joint import Joint
from penstock_schemas.errors import PolicyError
from penstock_schemas.sent import sent_columns
from penstock_schemas.spaces import Box, Discrete, MultiBinary, MultiDiscrete, leaves

if TYPE_CHECKING:
    from penstock_producers.policy.distributions.base import Distribution
    from penstock_schemas.spaces import Leaf, Space


def distribution_for(space: Space, behaviour: Behaviour) -> Distribution:
    """Choose the distribution of an action space.

    Raises `PolicyError` where none draws from it, and where the behaviour has what does not act on it.
    """
    found = leaves(space)
    parts = [_of_leaf(leaf, behaviour.mapping) for leaf in found]
    distribution = Joint(parts, sent_columns(space)) if found[0].path else parts[0]
    check_behaviour(distribution, behaviour)
    return distribution


def check_behaviour(distribution: Distribution, behaviour: Behaviour) -> None:
    """Raise `PolicyError` where a behaviour has what would not act: a user who set it expects that it does."""
    if not distribution.choices:
        for name, value in (("mask", behaviour.mask), ("epsilon", behaviour.epsilon)):
            if value is not None:
                raise PolicyError(f"behaviour: {name} {value!r}: the action has floats only, and no choices; leave it")
    if distribution.discrete:
        if behaviour.epsilon is not None and behaviour.temperature != Behaviour.temperature:
            raise PolicyError(
                f"behaviour: temperature {behaviour.temperature!r}: with an epsilon no choice is drawn by its logits; "
                "leave it, or the epsilon"
            )
        for name in ("noise", "mapping"):
            value = getattr(behaviour, name)
            if value != getattr(Behaviour, name):
                raise PolicyError(f"behaviour: {name} {value!r}: the action has choices only, and no floats; leave it")


def _of_leaf(leaf: Leaf, mapping: str) -> Distribution:
    space, name = leaf.space, leaf.name("action")
    if isinstance(space, Discrete):
        return Categorical(space, name)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return Categoricals(space, name)
    if isinstance(space, Box):
        return DiagonalGaussian(space, mapping, name)
    raise PolicyError(f"{name}: no policy draws from {space!r}: wrap the environment")
