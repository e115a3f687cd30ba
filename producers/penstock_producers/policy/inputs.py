"""What a network is given for a batch of observations."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Discrete, leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from penstock_schemas.spaces import Leaf, Leaves, Space


class Layout(NamedTuple):
    """How the leaves of n observations become what a network takes."""

    gather: Callable[[Leaves], Leaves]
    """Makes the arrays that become tensors, n rows each, of the leaves."""
    structure: Callable[[Sequence[Tensor]], Any]
    """Puts the tensors into the structure in which the network takes them."""


def flat_shape(space: Space) -> tuple[int, ...]:
    """The shape of one observation in the layout `flat`."""
    found = _numeric(space)
    return found[0].space.shape if len(found) == 1 else (sum(prod(leaf.space.shape) for leaf in found),)


def flat(space: Space) -> Layout:
    """Give one tensor: the only leaf as it is, or all leaves flattened side by side in float32.

    Raises `PolicyError` where a leaf is text.
    """
    return Layout(_as_they_are if len(_numeric(space)) == 1 else _side_by_side, lambda tensors: tensors[0])


def structured(space: Space) -> Layout:
    """Give the space's structure (a dict, a tuple) of tensors (n, *shape); raises `PolicyError` for text."""
    _numeric(space)
    return Layout(_as_they_are, lambda tensors: unflatten(space, tensors))


def examples(space: Space, n: int) -> Leaves:
    """Draw observations that a space holds, the same ones each time."""
    rng = np.random.default_rng(0)
    return tuple(_example(leaf, n, rng) for leaf in leaves(space))


def _as_they_are(observation: Leaves) -> Leaves:
    return observation


def _side_by_side(observation: Leaves) -> Leaves:
    n = len(observation[0])
    flattened = [leaf.reshape(n, -1) for leaf in observation]
    return (np.concatenate(flattened, axis=1, dtype=np.float32, casting="unsafe"),)


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
