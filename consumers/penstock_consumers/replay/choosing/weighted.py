"""Draws by weights that are computed once for a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.choosing.chooser import Sampler, count_of
from penstock_consumers.replay.choosing.drawing import by_weight
from penstock_consumers.replay.drawn import Drawn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing.chooser import Size
    from penstock_consumers.replay.choosing.groups import Groups


class Weighted(Sampler):
    """Draws a group, then an item of it.

    Weights are given as logarithms and taken relative to the largest, so that none overflows and their sum is never 0;
    what is lighter than the heaviest by a factor of 1e300 is never drawn.

    Args:
        groups: of the items.
        log_weight: of each item of a group, shape (G,); of its last item where they decay.
        decay: how much less the logarithm is for each item further ahead of its group's last; 0 where all are alike.
    """

    def __init__(self, groups: Groups, log_weight: NDArray[np.float64], decay: float = 0.0) -> None:
        self._first = groups.first
        self._items = groups.items
        self._decay = decay
        self._weight = np.exp(log_weight - log_weight.max())
        # The sum of a geometric series.
        alike = self._items if not decay else np.expm1(-decay * self._items) / np.expm1(-decay)
        self._cumulated = np.cumsum(self._weight * alike)

    def draw(self, rng: np.random.Generator, size: Size) -> Drawn:
        """Draw items."""
        count = count_of(size)
        group = by_weight(rng, self._cumulated, count)
        items = self._items[group]
        back = rng.random(count)
        back = np.log1p(back * np.expm1(-self._decay * items)) / -self._decay if self._decay else back * items
        # A product may round up to the number of items.
        chosen = self._first[group + 1] - 1 - np.minimum(back.astype(np.int64), items - 1)
        return Drawn(np.sort(chosen), rng.permutation(count).reshape(size), {})

    def probability(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of each among all."""
        group = np.searchsorted(self._first, items, side="right") - 1
        back = self._first[group + 1] - 1 - items
        probability: NDArray[np.float64] = self._weight[group] * np.exp(-self._decay * back) / self._cumulated[-1]
        return probability
