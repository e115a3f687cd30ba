"""One-hot vectors of discrete leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.connector import Plain
from penstock_schemas.connectors.leafwise import choose, replaced
from penstock_schemas.spaces import Box, Discrete, MultiDiscrete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import LeafSpace, Leaves, Space

_FLOAT32 = np.dtype(np.float32)
# A vector of which one number tells anything: beyond this an embedding serves better.
_MOST = 1 << 16


class OneHot(Plain):
    """Turns a Discrete leaf of n values into n floats, the one at `value - start` being 1 and the others 0.

    The elements of a MultiDiscrete leaf, in C order, come side by side: one box of the sum of their numbers of values.

    Args:
        observation: what comes in.
        action: the action space.
        only: the names of the leaves; all Discrete and MultiDiscrete ones by default.
    """

    recalls = False

    def __init__(self, observation: Space, action: Space, *, only: Sequence[str] | None = None) -> None:
        del action
        chosen = choose(observation, only, not_hot)
        self._hot = {at: Hot(leaf.space) for at, leaf in chosen.items()}
        self.space = replaced(
            observation, {at: Box((hot.size,), _FLOAT32, (0.0,), (1.0,)) for at, hot in self._hot.items()}
        )

    def __call__(self, seen: Seen) -> Leaves:
        """Map n rows."""
        return tuple(
            self._hot[at](values, _FLOAT32) if at in self._hot else values for at, values in enumerate(seen.observation)
        )


class Hot:
    """Maps values of a Discrete or MultiDiscrete leaf to `size` zeros and ones."""

    def __init__(self, space: LeafSpace) -> None:
        counts, starts = _counts(space)
        self.size = sum(counts)
        # Which element each number tells of, and which of its values it stands for.
        self._element = np.repeat(np.arange(len(counts)), counts)
        self._value = np.concatenate([np.arange(n) + start for n, start in zip(counts, starts, strict=True)])

    def __call__(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Map values (n, *shape) to an array (n, `size`)."""
        elements = values.reshape(len(values), -1)
        hot: NDArray[Any] = (elements[:, self._element] == self._value).astype(dtype)
        return hot


def not_hot(space: LeafSpace) -> str | None:
    """Say why a leaf has no one-hot vector; None where it has one."""
    if not isinstance(space, Discrete | MultiDiscrete):
        return "it takes Discrete and MultiDiscrete"
    size = sum(_counts(space)[0])
    return None if size <= _MOST else f"its one-hot vector would have {size} numbers, at most {_MOST} are made"


def _counts(space: LeafSpace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many values each element has, and the first of each."""
    if isinstance(space, Discrete):
        return (space.n,), (space.start,)
    assert isinstance(space, MultiDiscrete)  # noqa: S101 - the others were refused
    return space.nvec, space.start
