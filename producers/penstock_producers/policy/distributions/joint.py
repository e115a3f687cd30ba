"""The distribution of a nested action: one for each leaf, independent of each other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.policy.distributions.choices import mask_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_producers.policy.behaviour import Behaviour
    from penstock_producers.policy.distributions.base import Distribution
    from penstock_schemas.chunks import Exploration
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaves


class Joint:
    """The leaves' distributions: parameters and masks lie side by side, log-probabilities add up.

    Args:
        parts: the distribution of each leaf.
        sent: the columns in which what was sent is recorded, one a leaf, where it can differ.
    """

    def __init__(self, parts: Sequence[Distribution], sent: tuple[Column, ...]) -> None:
        mapped = [part.mapping for part in parts if part.columns]
        self.columns = sent if mapped else ()
        self.mapping = mapped[0] if mapped else "identity"
        self.discrete = all(part.discrete for part in parts)
        self.parameters = sum(part.parameters for part in parts)
        self.choices = sum(part.choices for part in parts)
        parameters = _slices([part.parameters for part in parts])
        choices = _slices([part.choices for part in parts])
        self._parts = tuple(zip(parts, parameters, choices, strict=True))

    def behave(
        self,
        parameters: NDArray[np.float32],
        mask: NDArray[Any] | None,
        behaviour: Behaviour,
        exploration: Exploration,
    ) -> NDArray[np.float32]:
        """Make each leaf's parameters."""
        if mask is not None:
            mask = mask_rows(mask, self.choices, behaviour, "action")
        given = [parameters[:, own] for _, own, _ in self._parts]
        behaved = [
            part.behave(own, mask[:, choices] if mask is not None and part.choices else None, behaviour, exploration)
            for own, (part, _, choices) in zip(given, self._parts, strict=True)
        ]
        if all(one is other for one, other in zip(given, behaved, strict=True)):
            return parameters
        return np.concatenate(behaved, axis=1)

    def draw(self, behaved: NDArray[np.float32], rng: np.random.Generator, exploration: Exploration) -> Leaves:
        """Draw each leaf, in their order."""
        return tuple(part.draw(behaved[:, own], rng, exploration)[0] for part, own, _ in self._parts)

    def send(self, action: Leaves) -> Leaves:
        """Map each leaf."""
        return tuple(part.send((leaf,))[0] for (part, _, _), leaf in zip(self._parts, action, strict=True))

    def log_prob(self, behaved: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Add up the leaves' log-probabilities and log-densities."""
        total = np.zeros(len(behaved))
        for (part, own, _), leaf in zip(self._parts, action, strict=True):
            total += part.log_prob(behaved[:, own], (leaf,))
        return total.astype(np.float32)


def _slices(lengths: Sequence[int]) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(np.cumsum([0, *lengths]).tolist())]
