"""What came before: the previous action and reward, behind a flat observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.connector import Plain
from penstock_schemas.connectors.leafwise import bounds, box, cast, not_numeric, refuse
from penstock_schemas.connectors.one_hot import Hot, not_hot
from penstock_schemas.spaces import Box, Discrete, MultiDiscrete, leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import Leaf, Leaves, Space


class PreviousAction(Plain):
    """Appends the action drawn before to a flat box of floats; zeros where an episode begins.

    A discrete action comes as a one-hot vector, others as they are; the leaves of a nested one side by side.

    Args:
        observation: what comes in, a box of floats of one axis.
        action: the action space.
    """

    def __init__(self, observation: Space, action: Space) -> None:
        flat = _flat(observation)
        self._dtype = flat.dtype
        found = leaves(action)
        self._hot = tuple(_hot(leaf) for leaf in found)
        parts = [bounds(flat), *(_action_bounds(leaf, hot) for leaf, hot in zip(found, self._hot, strict=True))]
        low, high = (np.concatenate([bound.reshape(-1) for bound in side]) for side in zip(*parts, strict=True))
        self.space: Space = box(self._dtype, low, high)

    def __call__(self, seen: Seen) -> Leaves:
        """Append to n rows."""
        n = len(seen.age)
        drawn = [
            cast(values, self._dtype).reshape(n, -1) if hot is None else hot(values, self._dtype)
            for values, hot in zip(seen.action, self._hot, strict=True)
        ]
        # A one-hot vector of what is no action yet would be one of an action.
        appended = np.concatenate([seen.observation[0], *drawn], axis=1)
        appended[seen.age == 0, seen.observation[0].shape[1] :] = 0
        return (appended,)


class PreviousReward(Plain):
    """Appends the reward that came with it to a flat box of floats; zero where an episode begins.

    Args:
        observation: what comes in, a box of floats of one axis.
        action: the action space.
    """

    def __init__(self, observation: Space, action: Space) -> None:
        del action
        flat = _flat(observation)
        self._dtype = flat.dtype
        low, high = bounds(flat)
        self.space: Space = box(self._dtype, np.append(low, -np.inf), np.append(high, np.inf))

    def __call__(self, seen: Seen) -> Leaves:
        """Append to n rows."""
        return (np.concatenate([seen.observation[0], cast(seen.reward, self._dtype)[:, np.newaxis]], axis=1),)


def _flat(space: Space) -> Box:
    found = leaves(space)
    for leaf in found:
        flat = leaf.space
        if (
            len(found) == 1
            and not leaf.path
            and isinstance(flat, Box)
            and flat.dtype.kind == "f"
            and len(flat.shape) == 1
        ):
            return flat
        refuse(leaf, "it takes one flat box of floats; put the connector 'flatten' before this one")
    raise AssertionError  # a space has leaves


def _hot(leaf: Leaf) -> Hot | None:
    reason = not_hot(leaf.space) if isinstance(leaf.space, Discrete | MultiDiscrete) else not_numeric(leaf.space)
    if reason is not None:
        refuse(leaf, reason.partition(";")[0], "action")
    return Hot(leaf.space) if isinstance(leaf.space, Discrete | MultiDiscrete) else None


def _action_bounds(leaf: Leaf, hot: Hot | None) -> tuple[NDArray[Any], NDArray[Any]]:
    if hot is not None:
        return np.zeros(hot.size), np.ones(hot.size)
    if not isinstance(leaf.space, Box):
        return bounds(leaf.space)
    # What is drawn may lie outside: it is clipped, rescaled or squashed afterwards. There is none where one begins.
    return np.full(leaf.space.shape, -np.inf), np.full(leaf.space.shape, np.inf)
