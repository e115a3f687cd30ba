"""Drawing by weight: the inverse of a cumulated distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def by_weight(
    rng: np.random.Generator, cumulated: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw places of an array of weights, each by itself and as likely as its weight; `cumulated` are their sums.

    Ascending, for looking up what is sorted goes through the cache in order: whoever gives them on mixes them. Beside
    each stands what was drawn of the sum, which lies within the weight of its place. What weighs nothing is not drawn.
    """
    # Uniform draws in order lie as the sums of exponential ones do: no need to sort them.
    apart = np.cumsum(rng.standard_exponential(count + 1))
    drawn = apart[:-1] * (cumulated[-1] / apart[-1])
    # A product may round up to the sum itself, behind the last weight.
    np.minimum(drawn, np.nextafter(cumulated[-1], 0.0), out=drawn)
    return np.searchsorted(cumulated, drawn, side="right"), drawn
