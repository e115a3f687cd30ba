"""Weights that change: drawn from in proportion, written a few at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.choosing.drawing import below

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Weights are summed by groups of so many: one line of the cache. What is drawn of the sums of groups is looked for
# within its group, and a group whose weight was written is summed again. So a draw costs a search and a look at one
# group, and no error adds up however often weights are written; a binary tree of sums, the textbook's way, costs a
# jump in memory a level.
_SHIFT = 4
_GROUP = 1 << _SHIFT
# So many draws are looked up at a time that what they look at stays in the cache.
_AT_A_TIME = 4096


class Sums:
    """The weights of n items, as float32, and the sums of groups of them.

    Args:
        weights: none negative, shape (n,).
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._items = len(weights)
        self._weights = np.zeros(-(-self._items // _GROUP) * _GROUP, np.float32)
        self._weights[: self._items] = weights
        self._groups = self._weights.reshape(-1, _GROUP)
        self._sums = _summed(self._groups)
        self._cumulated = np.cumsum(self._sums)
        self._stale = False

    @property
    def weights(self) -> NDArray[np.float32]:
        """All weights, a view, shape (n,)."""
        return self._weights[: self._items]

    @property
    def total(self) -> float:
        """Their sum."""
        return float(self._summed_up()[-1])

    def write(self, items: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        """Give items new weights, shapes (m,); of an item that is there more than once, the last counts."""
        groups = items >> _SHIFT
        for begin in range(0, len(items), _AT_A_TIME):
            some = slice(begin, begin + _AT_A_TIME)
            self._weights[items[some]] = weights[some]
            at = groups[some]
            self._sums[at] = _summed(self._groups.take(at, axis=0))
        self._stale = True

    def fill(self, some: NDArray[np.bool_], weight: np.float32) -> None:
        """Give all of some items a weight, shape (n,): a pass over all."""
        self.weights[some] = weight
        self._sums = _summed(self._groups)
        self._stale = True

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw items in proportion to their weights, each by itself; ascending, and the weight of each.

        The total must not be 0.
        """
        cumulated = self._summed_up()
        drawn = below(rng, cumulated[-1], count)
        items, weights = np.empty(count, np.int64), np.empty(count, np.float32)
        # What is drawn from there on is of this group or of one behind it.
        first = np.append(np.searchsorted(cumulated, drawn[::_AT_A_TIME], side="right"), len(cumulated) - 1).tolist()
        for (group, last), begin in zip(pairwise(first), range(0, count, _AT_A_TIME), strict=True):
            some = slice(begin, begin + _AT_A_TIME)
            items[some] = self._found(drawn[some], group, last + 1)
            weights[some] = self._weights[items[some]]
        return items, weights

    def _found(self, drawn: NDArray[np.float64], begin: int, end: int) -> NDArray[np.int64]:
        """Find the items of what was drawn of the sum, all in groups from `begin` to before `end`, shape (n,)."""
        cumulated, sums = self._cumulated[begin:end], self._sums[begin:end]
        group = np.searchsorted(cumulated, drawn, side="right")
        # What is left of each within its group; not less than nothing, as it may be by rounding.
        left = np.maximum(drawn - cumulated[group] + sums[group], 0.0)
        group += begin
        return (group << _SHIFT) + self._place(group, left)

    def _summed_up(self) -> NDArray[np.float64]:
        """The sums of all groups up to each, shape (groups,); anew where a weight was written since."""
        if self._stale:
            np.cumsum(self._sums, out=self._cumulated)
            self._stale = False
        return self._cumulated

    def _place(self, groups: NDArray[np.int64], left: NDArray[np.float64]) -> NDArray[np.int8]:
        """Find the place within its group at which the sum of weights passes what is left of a draw, shape (n,)."""
        place = np.zeros(len(groups), np.int8)
        passed = np.zeros(len(groups))
        for weight in self._groups.take(groups, axis=0).T:
            passed += weight
            place += (passed <= left).view(np.int8)
        if place.size and place.max() == _GROUP:
            # Sums of sums may round to more than a group holds: what is left then falls to the last one that weighs.
            beyond = np.flatnonzero(place == _GROUP)
            place[beyond] = _GROUP - 1 - np.argmax(self._groups[groups[beyond], ::-1] > 0.0, axis=1)
        return place


def _summed(groups: NDArray[np.float32]) -> NDArray[np.float64]:
    # Faster than `sum` along rows of sixteen.
    summed: NDArray[np.float64] = np.einsum("ij->i", groups, dtype=np.float64)
    return summed
