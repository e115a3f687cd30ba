"""Random values of a space, for those that do not look."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.spaces import Box, Discrete, LeafSpace, MultiDiscrete, Text

if TYPE_CHECKING:
    from numpy.typing import NDArray

# So few choices that a float of 53 bits picks one as evenly as anyone could tell.
_FEW = 1 << 16
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def uniform(space: LeafSpace, n: int, rng: np.random.Generator) -> NDArray[Any]:
    """Draw n values, shape (n, *shape): uniformly where the space is bounded, else as gymnasium's spaces do."""
    if isinstance(space, Discrete):
        return _choices(space.n, n, rng) + space.start
    if isinstance(space, MultiDiscrete):
        each: NDArray[Any] = rng.integers(0, np.asarray(space.nvec), (n, len(space.nvec))) + np.asarray(space.start)
        return each.reshape(n, *space.shape)
    if isinstance(space, Text):
        return np.array([_text(space, rng) for _ in range(n)] + [None], object)[:-1]
    if isinstance(space, Box):
        return _box(space, n, rng)
    return rng.integers(0, 2, (n, *space.shape), np.int8)


def _choices(of: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if of > _FEW:
        return rng.integers(0, of, n)
    # A third of the time of the generator's own integers, of which few are asked for at a time.
    drawn: NDArray[np.int64] = (rng.random(n) * of).astype(np.int64)
    return drawn


def _text(space: Text, rng: np.random.Generator) -> str:
    length = int(rng.integers(space.min_length, space.max_length + 1))
    return "".join(rng.choice(list(_ALPHABET if space.characters is None else sorted(space.characters)), length))


def _box(space: Box, n: int, rng: np.random.Generator) -> NDArray[Any]:
    size = prod(space.shape)
    low, high = (np.broadcast_to(np.asarray(bounds, np.float64), size) for bounds in (space.low, space.high))
    if space.dtype.kind != "f":
        low, high = np.maximum(low, _least(space)), np.minimum(high, _most(space))
        drawn = np.floor(rng.uniform(low, np.nextafter(high + 1, low), (n, size)))
        return np.clip(drawn, low, high).astype(space.dtype).reshape(n, *space.shape)
    with np.errstate(over="ignore"):
        bounded = np.isfinite(high - low)
    drawn = rng.standard_normal((n, size))
    below, above = np.isfinite(low) & np.isinf(high), np.isfinite(high) & np.isinf(low)
    drawn[:, below] = low[below] + rng.standard_exponential((n, below.sum()))
    drawn[:, above] = high[above] - rng.standard_exponential((n, above.sum()))
    drawn[:, bounded] = rng.uniform(low[bounded], high[bounded], (n, bounded.sum()))
    # A bound rounded to the box's dtype is the bound; a draw rounded past it is not.
    cast: NDArray[Any] = np.clip(drawn.astype(space.dtype), low.astype(space.dtype), high.astype(space.dtype))
    return cast.reshape(n, *space.shape)


def _least(space: Box) -> float:
    return 0.0 if space.dtype == np.bool_ else float(np.iinfo(space.dtype).min)


def _most(space: Box) -> float:
    return 1.0 if space.dtype == np.bool_ else float(np.iinfo(space.dtype).max)
