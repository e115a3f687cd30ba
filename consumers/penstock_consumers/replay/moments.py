"""The mean and the variance of arrays, a batch at a time."""

from __future__ import annotations

from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How much is summed at a time, as float64: about what a processor's cache holds.
_BYTES = 1 << 20
# The squares of 1e28 numbers as large as this have a sum.
_LARGEST = 1e140


class Moments:
    """The mean and the variance of arrays of one shape, exact to a float64's rounding.

    Attributes:
        count: how many arrays there were, but for those that are left out.
        mean: of the shape, float64; zeros before the first.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Of the arrays so far, as a population; ones before the first."""
        return self._squares / self.count if self.count else np.ones_like(self.mean)

    def copy(self) -> Moments:
        """Make one that goes on by itself."""
        return deepcopy(self)

    def add(self, values: NDArray[Any]) -> None:
        """Add n arrays, shape (n, *shape), of any dtype.

        Those that hold a NaN, or a number beyond 1e140, an infinity too, are left out: their squares have no sum.
        """
        flat = values.reshape(len(values), prod(self.mean.shape))
        most = max(1, _BYTES // (flat.shape[1] * self.mean.itemsize))
        for begin in range(0, len(flat), most):
            self._add(flat[begin : begin + most].astype(np.float64))

    def _add(self, wide: NDArray[np.float64]) -> None:
        # A NaN is in no range.
        if not (wide.min() >= -_LARGEST and wide.max() <= _LARGEST):
            wide = wide[(np.abs(wide) <= _LARGEST).all(axis=1)]
        if not len(wide):
            return
        mean = (np.ones(len(wide)) @ wide) / len(wide)
        wide -= mean
        # What rounding left of their sum about the mean.
        rest = (np.ones(len(wide)) @ wide) / len(wide)
        squares = np.einsum("nd,nd->d", wide, wide) - len(wide) * rest**2
        # Two sets of squares about their own means, and what the distance of the means adds (Chan et al., 1979).
        count = self.count + len(wide)
        off = (mean + rest).reshape(self.mean.shape) - self.mean
        self._squares += squares.reshape(off.shape) + off**2 * (self.count * len(wide) / count)
        self.mean += off * (len(wide) / count)
        self.count = count
