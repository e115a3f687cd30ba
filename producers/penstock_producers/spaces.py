"""gymnasium's spaces as the plain descriptions that travel."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np

from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces import Box, Discrete, Space

Role: TypeAlias = Literal["observation", "action"]
_REMEDIES: dict[Role, str] = {
    "observation": "wrap the environment, with gymnasium.wrappers.FlattenObservation for example",
    "action": "wrap the environment, with gymnasium.wrappers.TransformAction for example",
}


def from_gymnasium(space: gym.Space[Any], role: Role) -> Space:
    """Describe a space; `role` names it in the `SpaceError` for one that is not mapped, and chooses the remedy."""
    # The exact classes: a subclass may mean its values differently.
    if type(space) is gym.spaces.Box:
        return Box(space.shape, np.dtype(space.dtype), _bounds(space.low), _bounds(space.high))
    if type(space) is gym.spaces.Discrete:
        return Discrete(int(space.n), int(space.start), np.dtype(space.dtype))
    raise SpaceError(
        f"{role} space {type(space).__name__}: it is not mapped to Arrow, only Box and Discrete are: {_REMEDIES[role]}"
    )


def _bounds(values: np.ndarray[Any, Any]) -> tuple[float, ...]:
    flat = values.reshape(-1).tolist()
    return (float(flat[0]),) if len(set(flat)) == 1 else tuple(float(bound) for bound in flat)
