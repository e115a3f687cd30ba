"""Random actions that depend on the seed, the env and how many it took before, but not on who answered first."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from penstock_producers.check.values import arrays
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple, leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.spaces import LeafSpace, Leaves, Space


class Actions:
    """Draws each env's actions as gymnasium's spaces draw them."""

    def __init__(self, space: Space, num_envs: int, seed: int) -> None:
        self._space = space
        self._dtypes = [leaf.space.dtype for leaf in leaves(space)]
        self._samplers = [to_gymnasium(space) for _ in range(num_envs)]
        for i, sampler in enumerate(self._samplers):
            sampler.seed(seed + i)

    def draw(self, env: NDArray[np.int32]) -> Leaves:
        """Draw an action for each of some envs: an array (m, *shape) for each leaf."""
        drawn = [arrays(self._space, self._samplers[i].sample()) for i in env.tolist()]
        return tuple(
            np.array(column, dtype) for column, dtype in zip(zip(*drawn, strict=True), self._dtypes, strict=True)
        )


def to_gymnasium(space: Space) -> gymnasium.Space[Any]:
    """Make gymnasium's space of a description."""
    if isinstance(space, Dict):
        return gymnasium.spaces.Dict({key: to_gymnasium(inner) for key, inner in space.spaces})
    if isinstance(space, Tuple):
        return gymnasium.spaces.Tuple([to_gymnasium(inner) for inner in space.spaces])
    return _leaf(space)


def _leaf(space: LeafSpace) -> gymnasium.Space[Any]:
    match space:
        case Box():
            return gymnasium.spaces.Box(_bounds(space, space.low), _bounds(space, space.high), dtype=space.dtype.type)
        case Discrete():
            return gymnasium.spaces.Discrete(space.n, start=space.start)
        case MultiDiscrete():
            nvec, start = (np.asarray(values).reshape(space.shape) for values in (space.nvec, space.start))
            return gymnasium.spaces.MultiDiscrete(nvec, dtype=space.dtype.type, start=start)
        case MultiBinary():
            return gymnasium.spaces.MultiBinary(space.shape)
        case Text(characters=None):
            return gymnasium.spaces.Text(space.max_length, min_length=space.min_length)
        case Text():
            return gymnasium.spaces.Text(
                space.max_length, min_length=space.min_length, charset=space.characters or frozenset()
            )
    raise TypeError(f"{type(space).__name__} is no leaf of a space")


def _bounds(space: Box, bounds: tuple[float, ...]) -> NDArray[Any]:
    values: list[Any] = list(bounds)
    if space.dtype.kind in "iu":
        # As integers, since the widest types' bounds are none of float64's values.
        limits = np.iinfo(space.dtype)
        values = [int(min(max(bound, limits.min), limits.max)) for bound in bounds]
    return np.broadcast_to(np.array(values, space.dtype), prod(space.shape)).reshape(space.shape)
