"""What a chooser is: a distribution over the items of an index."""

from __future__ import annotations

import math
from contextlib import nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from penstock_consumers.replay.drawn import Drawn
    from penstock_consumers.replay.index import Index

# How many items, or how many batches of how many items each.
Size: TypeAlias = "int | tuple[int, int]"


class Sampler(Protocol):
    """Draws from one index.

    Attributes:
        tells: the names of what it tells beside the items.
        ahead: how many items may be drawn before the first of them is given, a batch at least; None for any number.
    """

    tells: tuple[str, ...] = ()
    ahead: int | None = None

    def check(self) -> None:
        """Raise `SettingsError` where this may not be drawn from any more; asked before each batch."""
        return

    def still(self) -> AbstractContextManager[Any]:
        """Keep the distribution as it is: what is drawn meanwhile has the probability that is told meanwhile."""
        return nullcontext()

    def draw(self, rng: np.random.Generator, size: Size) -> Drawn:
        """Draw items, each by itself."""
        ...

    def probability(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability with which each of `items` is the next one drawn, of the same shape."""
        ...

    def beside(self, items: NDArray[np.int64], probability: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Tell what there is to tell of items that were drawn with a probability, this sampler's or a mixture's."""
        del items, probability
        return {}


class Chooser(Protocol):
    """What a learner asks for; whatever view it is given to."""

    def over(self, index: Index) -> Sampler:
        """Make what draws from an index; called again for each new snapshot.

        Raises `SettingsError` where the choice has no sense there.
        """
        ...


def count_of(size: Size) -> int:
    """How many items a size stands for."""
    return size if isinstance(size, int) else size[0] * size[1]


def chooser(given: Any) -> Chooser:
    """Take a chooser; raises `SettingsError` where it is none."""
    if isinstance(given, type) or not callable(getattr(given, "over", None)):
        raise SettingsError(f"choose {given!r}: a chooser, as in Uniform() or Prioritized(alpha=0.6)")
    found: Chooser = given
    return found


def positive(name: str, value: Any) -> None:
    """Raise `SettingsError` unless a number is above 0 and finite."""
    if not 0.0 < number(value) < math.inf:
        raise SettingsError(f"{name} {value}: a number above 0")


def share(name: str, value: Any) -> None:
    """Raise `SettingsError` unless a number is from 0 to 1."""
    if not 0.0 <= number(value) <= 1.0:
        raise SettingsError(f"{name} {value}: a number from 0 to 1")


def number(value: Any) -> float:
    """Read a number; NaN where it is none."""
    return float(value) if isinstance(value, Real) else math.nan
