"""Drawing by weight: the inverse of a cumulated distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def by_weight(rng: np.random.Generator, cumulated: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Draw places of an array of weights, each by itself and as likely as its weight; `cumulated` are their sums.

    Ascending, for looking up what is sorted goes through the cache in order: whoever gives them on mixes them. What
    weighs nothing is not drawn.
    """
    return np.searchsorted(cumulated, below(rng, cumulated[-1], count), side="right")


def below(rng: np.random.Generator, most: np.float64, count: int) -> NDArray[np.float64]:
    """Draw uniformly from 0 to below `most`; ascending, shape (count,)."""
    # Uniform draws in order lie as the sums of exponential ones do: no need to sort them.
    apart = np.cumsum(rng.standard_exponential(count + 1))
    drawn: NDArray[np.float64] = apart[:-1] * (most / apart[-1])
    # A product may round up to the most itself, behind the last weight.
    np.minimum(drawn, np.nextafter(most, 0.0), out=drawn)
    return drawn
