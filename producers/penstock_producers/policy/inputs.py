"""What a network is given for a batch of observations."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Discrete, leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaf, Leaves, Space

    Inputs: TypeAlias = Callable[[Leaves], Any]


def flat_shape(space: Space) -> tuple[int, ...]:
    """The shape of one observation as `flat` gives it."""
    found = _numeric(space)
    return found[0].space.shape if len(found) == 1 else (sum(prod(leaf.space.shape) for leaf in found),)


def flat(space: Space) -> Callable[[Leaves], NDArray[Any]]:
    """Give one array: the only leaf as it is, or all leaves flattened side by side in float32.

    Raises `PolicyError` where a leaf is text.
    """
    if len(_numeric(space)) == 1:
        return lambda observation: observation[0]

    def side_by_side(observation: Leaves) -> NDArray[Any]:
        n = len(observation[0])
        return np.concatenate([leaf.reshape(n, -1) for leaf in observation], axis=1, dtype=np.float32, casting="unsafe")

    return side_by_side


def tensors(space: Space) -> Inputs:
    """Give the space's structure (a dict, a tuple) of tensors (n, *shape); raises `PolicyError` for text."""
    if len(_numeric(space)) == 1 and not leaves(space)[0].path:
        return lambda observation: torch.from_numpy(observation[0])
    return lambda observation: unflatten(space, (torch.from_numpy(leaf) for leaf in observation))


def examples(space: Space, n: int) -> Leaves:
    """Draw observations that a space holds, the same ones each time."""
    rng = np.random.default_rng(0)
    return tuple(_example(leaf, n, rng) for leaf in leaves(space))


def _numeric(space: Space) -> tuple[Leaf, ...]:
    found = leaves(space)
    for leaf in found:
        if leaf.space.dtype.kind == "O":
            raise PolicyError(f"{leaf.name('observation')} is text, which no network takes: wrap the environment")
    return found


def _example(leaf: Leaf, n: int, rng: np.random.Generator) -> NDArray[Any]:
    space = leaf.space
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, n).astype(space.dtype)
    drawn = rng.standard_normal((n, *space.shape))
    if isinstance(space, Box):
        low, high = (np.broadcast_to(bounds, drawn[0].size).reshape(space.shape) for bounds in (space.low, space.high))
        drawn = np.clip(drawn, low, high)
    return drawn.astype(space.dtype)
