"""What is made of the parameters of choices: masks, temperature, epsilon, and none of these."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.chunks import Exploration
from penstock_schemas.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_producers.policy.behaviour import Behaviour

# More are no network's outputs, and would not fit into memory.
_MOST = 1 << 24
# Farther from 0 than any logit that means something, and so near that sums of a few do not overflow.
_FAR = np.float32(1e30)


class Choices:
    """The choices of one component of an action, or of several side by side: one is taken of each.

    Args:
        name: of the action, or its leaf, for errors.
        sizes: how many choices each component has.

    Raises `PolicyError` where they are more than a network could answer.
    """

    def __init__(self, name: str, sizes: Sequence[int]) -> None:
        self._name = name
        self.size = sum(sizes)
        if self.size > _MOST:
            raise PolicyError(f"{name}: {self.size} choices, a policy has at most {_MOST}: wrap the environment")
        self.components = len(sizes)
        # Where each component's choices begin, and which component each choice is of.
        self.starts = np.cumsum([0, *sizes[:-1]])
        self.component = np.repeat(np.arange(len(sizes)), sizes)
        self._sizes = np.array(sizes, np.float32)
        self._positions = np.arange(self.size)

    def best(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """Find the position of each component's largest value, the first of equal ones.

        Maps (n, size) to (n, components). Where a component has NaN, it is the position of one of its choices still.
        """
        first: NDArray[np.intp]
        if self.components == 1:
            first = values.argmax(axis=1)
            return first[:, None]
        top = np.maximum.reduceat(values, self.starts, axis=1)
        # No value is less than NaN: so there is one that is not less than the largest in any case.
        at = np.where(values < top[:, self.component], self.size, self._positions)
        first = np.minimum.reduceat(at, self.starts, axis=1)
        return first

    def fold(
        self,
        parameters: NDArray[np.float32],
        mask: NDArray[Any] | None,
        behaviour: Behaviour,
        exploration: Exploration,
    ) -> NDArray[np.float32]:
        """Make logits of a network's parameters, shape (n, size), as `Distribution.behave` says.

        What cannot be chosen has a logit of -inf. Where exploration is OFF or an epsilon acts, the best choice is the
        one with the largest parameter that the mask allows, the first of equal ones.
        """
        allowed, count = (None, self._sizes) if mask is None else self._allowed(mask, behaviour)
        if exploration is Exploration.RANDOM:
            return _logits(np.zeros_like(parameters), allowed)
        if allowed is not None:
            # Whatever the network answers, be it -inf or NaN, a choice that is allowed comes before all that are not.
            parameters = _logits(np.fmin(np.fmax(parameters, -_FAR), _FAR), allowed)
        if exploration is Exploration.OFF:
            return self._greedy(parameters, np.full_like(parameters, -inf), 0.0)
        if behaviour.epsilon is not None:
            return self._epsilon_greedy(parameters, allowed, count, behaviour.epsilon)
        if exploration is Exploration.EPSILON:
            raise PolicyError(
                f"{self._name}: exploration EPSILON without an epsilon: set one in the policy's behaviour"
            )
        return parameters if behaviour.temperature == 1.0 else self._tempered(parameters, behaviour.temperature)

    def _allowed(self, mask: NDArray[Any], behaviour: Behaviour) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """View a mask as (n, size), and count what it allows of each component, (n, components)."""
        allowed = mask_rows(mask, self.size, behaviour, self._name)
        # Cast first: numpy is slow where it casts while it reduces.
        count = np.add.reduceat(allowed.astype(np.float32), self.starts, axis=1)
        if not count.all():
            row, component = np.argwhere(count == 0)[0].tolist()
            which = f" for component {component}" if self.components > 1 else ""
            raise PolicyError(
                f"info {behaviour.mask!r}: row {row} of {len(mask)} allows no choice of {self._name}{which}: allow one "
                "at least wherever the episode goes on"
            )
        return allowed, count

    def _greedy(self, values: NDArray[np.float32], rest: NDArray[np.float32], best: Any) -> NDArray[np.float32]:
        rest[np.arange(len(rest))[:, None], self.best(values)] = best
        return rest

    def _epsilon_greedy(
        self,
        values: NDArray[np.float32],
        allowed: NDArray[np.bool_] | None,
        count: NDArray[np.float32],
        epsilon: float,
    ) -> NDArray[np.float32]:
        one_of_rest = (log(epsilon) if epsilon else -inf) - np.log(count)
        rest = np.empty(values.shape, np.float32)
        rest[:] = one_of_rest[..., self.component]
        return self._greedy(values, _logits(rest, allowed), np.log((1 - epsilon) + epsilon / count))

    def _tempered(self, logits: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
        # From the largest down, so that it stays what it is: 0.
        below: NDArray[np.float32] = logits - np.maximum.reduceat(logits, self.starts, axis=1)[:, self.component]
        with np.errstate(over="ignore"):
            below /= temperature
        return below


def mask_rows(mask: NDArray[Any], size: int, behaviour: Behaviour, name: str) -> NDArray[np.bool_]:
    """View a mask as (n, size), True where a choice is allowed; raises `PolicyError` where it is of another length."""
    allowed: NDArray[np.bool_] = mask.reshape(len(mask), -1) != 0
    if allowed.shape[1] != size:
        raise PolicyError(f"info {behaviour.mask!r}: a mask of {allowed.shape[1]} choices, {name} has {size}")
    return allowed


def _logits(values: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> NDArray[np.float32]:
    if allowed is not None:
        values[~allowed] = -inf
    return values
