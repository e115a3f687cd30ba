"""Some of one, some of another."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.choosing.chooser import Sampler, chooser, count_of, positive
from penstock_consumers.replay.drawn import Drawn
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing.chooser import Chooser, Size
    from penstock_consumers.replay.index import Index


@dataclass(frozen=True)
class Mixture:
    """Each draw is from one of several choosers, with its share.

    What one of them tells beside what it draws, as `Prioritized` does, is told of all that is drawn; importance weights
    are those of the mixture.

    Args:
        parts: the choosers, each with its share of the draws; a share of 2 is twice one of 1.

    Raises:
        SettingsError: there is no part, a share is not above 0, or two parts tell the same.
    """

    parts: Sequence[tuple[Chooser, float]]

    def __post_init__(self) -> None:
        # What is given may be of any type, whatever is declared; an iterator would be used up by looking at it.
        given: Any = self.parts
        parts = tuple(given) if isinstance(given, Iterable) else ()
        if not parts:
            raise SettingsError(f"Mixture({given!r}): at least one (chooser, share)")
        for part in parts:
            if not (isinstance(part, tuple | list) and len(part) == 2):  # noqa: PLR2004  (a pair)
                raise SettingsError(f"Mixture: {part!r}: a pair (chooser, share), as in (Uniform(), 0.5)")
            positive(f"{chooser(part[0])}: share", part[1])
        object.__setattr__(self, "parts", parts)

    def over(self, index: Index) -> Sampler:
        """Draw from an index."""
        samplers = [part.over(index) for part, _ in self.parts]
        told = [name for sampler in samplers for name in sampler.tells]
        twice = sorted({name for name in told if told.count(name) > 1})
        if twice:
            raise SettingsError(f"{self}: two parts tell {', '.join(twice)} of what they draw: mix only one of them")
        shares = np.array([share for _, share in self.parts], np.float64)
        return _Mixture(samplers, shares / shares.sum())


class _Mixture(Sampler):
    def __init__(self, samplers: Sequence[Sampler], shares: NDArray[np.float64]) -> None:
        self._samplers = samplers
        self._shares = shares
        self.tells = tuple(name for sampler in samplers for name in sampler.tells)
        self.ahead = min((sampler.ahead for sampler in samplers if sampler.ahead is not None), default=None)

    def check(self) -> None:
        for sampler in self._samplers:
            sampler.check()

    @contextmanager
    def still(self) -> Iterator[None]:
        with ExitStack() as stack:
            for sampler in self._samplers:
                stack.enter_context(sampler.still())
            yield

    def draw(self, rng: np.random.Generator, size: Size) -> Drawn:
        with self.still():
            items = self._items(rng, size)
            return Drawn.of(items, self.beside(items, self.probability(items)) if self.tells else {})

    def _items(self, rng: np.random.Generator, size: Size) -> NDArray[np.int64]:
        count = count_of(size)
        part = rng.choice(len(self._samplers), size=count, p=self._shares)
        items = np.empty(count, np.int64)
        for number, sampler in enumerate(self._samplers):
            at = np.flatnonzero(part == number)
            items[at] = sampler.draw(rng, len(at)).items
        return items.reshape(size)

    def probability(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.zeros(items.shape)
        for sampler, share in zip(self._samplers, self._shares.tolist(), strict=True):
            total += share * sampler.probability(items)
        return total

    def beside(self, items: NDArray[np.int64], probability: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        told: dict[str, NDArray[Any]] = {}
        for sampler in self._samplers:
            told |= sampler.beside(items, probability)
        return told
