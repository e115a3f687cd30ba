"""All alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from penstock_consumers.replay.choosing.chooser import Sampler
from penstock_consumers.replay.choosing.groups import Groups
from penstock_consumers.replay.choosing.weighted import Weighted
from penstock_consumers.replay.drawn import Drawn
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing.chooser import Size
    from penstock_consumers.replay.index import Index

_OVER = ("steps", "episodes")


class Uniform:
    """Each step, or window of steps, is as likely as any other; or each episode is, whatever its length.

    Over episodes, those count of which the view has something to give, and what it gives of one is alike. Each part of
    a cut episode is one.

    Args:
        over: "steps" or "episodes".

    Raises:
        SettingsError: `over` is neither.
    """

    def __init__(self, over: Literal["steps", "episodes"] = "steps") -> None:
        if over not in _OVER:
            raise SettingsError(f"Uniform(over={over!r}): over {' or '.join(map(repr, _OVER))}")
        self._over = over

    def __repr__(self) -> str:
        return f"Uniform(over={self._over!r})"

    def over(self, index: Index) -> Sampler:
        """Draw from an index; over episodes, that opens every segment once."""
        if self._over == "steps":
            return _Uniform(len(index))
        groups = Groups(index)
        items = np.bincount(groups.episode, weights=groups.items)
        return Weighted(groups, -np.log(items[groups.episode]))


class _Uniform(Sampler):
    def __init__(self, items: int) -> None:
        self._items = items

    def draw(self, rng: np.random.Generator, size: Size) -> Drawn:
        return Drawn.of(rng.integers(self._items, size=size))

    def probability(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.full(items.shape, 1.0 / self._items)
