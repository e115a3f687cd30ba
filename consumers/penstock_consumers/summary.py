"""Returns by group: how many, their mean and spread, accumulated a batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of a group without an episode: count, mean, squares about the mean, least, most, steps.
_EMPTY = np.array([[0.0], [0.0], [0.0], [np.inf], [-np.inf], [0.0]])


class Summary:
    """Returns and lengths of episodes in G groups, each a whole number; exact to a float64's rounding.

    Attributes:
        group: (G,) int64, ascending.
    """

    def __init__(self) -> None:
        self.group = np.empty(0, np.int64)
        self._held = _EMPTY[:, :0]

    def add(self, group: NDArray[np.int64], return_: NDArray[np.float64], length: NDArray[np.int64]) -> None:
        """Add E episodes, an item each."""
        found, at, count = np.unique(group, return_inverse=True, return_counts=True)
        known = np.union1d(self.group, found)
        held = np.tile(_EMPTY, len(known))
        held[:, np.searchsorted(known, self.group)] = self._held
        places = np.searchsorted(known, found)
        # A return that is no number, or infinite, makes its group's mean and spread no number.
        with np.errstate(invalid="ignore"):
            held[:, places] = _merged(held[:, places], _of(at, count, return_, length))
        self.group, self._held = known, held

    @property
    def episodes(self) -> NDArray[np.int64]:
        """(G,) how many."""
        return self._row(0).astype(np.int64)

    @property
    def mean(self) -> NDArray[np.float64]:
        """(G,) of the returns."""
        return self._row(1)

    @property
    def std(self) -> NDArray[np.float64]:
        """(G,) the standard deviation of the returns, taken as all there are."""
        return np.sqrt(self._row(2) / self._row(0))

    @property
    def least(self) -> NDArray[np.float64]:
        """(G,) the smallest return."""
        return self._row(3)

    @property
    def most(self) -> NDArray[np.float64]:
        """(G,) the largest return."""
        return self._row(4)

    @property
    def mean_length(self) -> NDArray[np.float64]:
        """(G,) in steps."""
        return self._row(5) / self._row(0)

    def _row(self, at: int) -> NDArray[np.float64]:
        row: NDArray[np.float64] = self._held[at]
        return row


def _of(
    at: NDArray[np.intp], count: NDArray[np.intp], return_: NDArray[np.float64], length: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Describe episodes, the i-th of them in group `at[i]`."""
    size = len(count)
    mean = np.bincount(at, return_, size) / count
    squares = np.bincount(at, (return_ - mean[at]) ** 2, size)
    least, most = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(least, at, return_)
    np.maximum.at(most, at, return_)
    return np.stack([count, mean, squares, least, most, np.bincount(at, length, size)])


def _merged(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take two descriptions of the same groups together; `other` has no empty one."""
    count = one[0] + other[0]
    off = other[1] - one[1]
    mean = one[1] + off * (other[0] / count)
    # Two sets of squares about their own means, and what the distance of the means adds.
    squares = one[2] + other[2] + off**2 * (one[0] * other[0] / count)
    return np.stack(
        [count, mean, squares, np.minimum(one[3], other[3]), np.maximum(one[4], other[4]), one[5] + other[5]]
    )
