"""Distributions over choices: of one action, or of several side by side."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.policy.distributions.choices import Choices
from penstock_schemas.chunks import Exploration
from penstock_schemas.spaces import MultiBinary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_producers.policy.behaviour import Behaviour
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Discrete, Leaves, MultiDiscrete

_SMALLEST = np.finfo(np.float32).tiny


class _Chosen:
    """What all have in common whose parameters are those of choices."""

    columns: tuple[Column, ...] = ()
    mapping = "identity"
    discrete = True

    def __init__(self, name: str, sizes: Sequence[int]) -> None:
        self._choices = Choices(name, sizes)
        self.parameters = self.choices = self._choices.size

    def behave(
        self,
        parameters: NDArray[np.float32],
        mask: NDArray[Any] | None,
        behaviour: Behaviour,
        exploration: Exploration,
    ) -> NDArray[np.float32]:
        """Make logits; the network's own where nothing is to be done."""
        on = exploration is Exploration.ON and behaviour.epsilon is None
        if on and mask is None and behaviour.temperature == 1.0:
            return parameters
        return self._choices.fold(parameters, mask, behaviour, exploration)

    def send(self, action: Leaves) -> Leaves:
        """Send what was drawn."""
        return action


class Categorical(_Chosen):
    """One of a discrete space's values; the parameters are logits, or what the values are worth.

    Args:
        space: of the action.
        name: of the action, or its leaf, for errors.
    """

    def __init__(self, space: Discrete, name: str = "action") -> None:
        super().__init__(name, [space.n])
        self._start = space.start

    def draw(self, behaved: NDArray[np.float32], rng: np.random.Generator, exploration: Exploration) -> Leaves:
        """Draw a value for each row, by the Gumbel-max trick; how it is chosen stands in the logits."""
        del exploration
        index: NDArray[Any] = _perturbed(behaved, rng).argmax(axis=1)
        return (index + self._start if self._start else index,)

    def log_prob(self, behaved: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Normalize the logits, and look the actions up."""
        index = action[0].astype(np.intp) - self._start
        # Reduced over rows, not columns: numpy is slow where many short runs are reduced.
        shifted = np.array(behaved.T, order="C")
        shifted -= shifted.max(axis=0)
        chosen = shifted[index, np.arange(len(index))]
        np.exp(shifted, out=shifted)
        log_prob: NDArray[np.float32] = chosen - np.log(shifted.sum(axis=0))
        return log_prob


class Categoricals(_Chosen):
    """An array of choices, each by itself: the parameters of its elements, in C order, lie side by side.

    An element of a MultiBinary is a choice of two: first the parameter of 0, then that of 1.

    Args:
        space: of the action.
        name: of the action, or its leaf, for errors.
    """

    def __init__(self, space: MultiDiscrete | MultiBinary, name: str = "action") -> None:
        two = (2,) * prod(space.shape)
        sizes, starts = (two, 0) if isinstance(space, MultiBinary) else (space.nvec, space.start)
        super().__init__(name, sizes)
        # What is added to a choice's position to make it a value.
        self._offset = np.asarray(starts) - self._choices.starts
        self._shape, self._dtype = space.shape, space.dtype

    def draw(self, behaved: NDArray[np.float32], rng: np.random.Generator, exploration: Exploration) -> Leaves:
        """Draw a value for each element of each row, by the Gumbel-max trick."""
        del exploration
        drawn = self._choices.best(_perturbed(behaved, rng)) + self._offset
        return (drawn.astype(self._dtype, copy=False).reshape(len(drawn), *self._shape),)

    def log_prob(self, behaved: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Normalize the logits of each element, look the actions up, and add up."""
        n, choices = len(behaved), self._choices
        at = action[0].reshape(n, -1).astype(np.intp) - self._offset
        shifted = np.array(behaved.T, order="C")
        shifted -= np.maximum.reduceat(shifted, choices.starts, axis=0)[choices.component]
        chosen = shifted[at.T, np.arange(n)]
        np.exp(shifted, out=shifted)
        chosen -= np.log(np.add.reduceat(shifted, choices.starts, axis=0))
        log_prob: NDArray[np.float32] = chosen.sum(axis=0, dtype=np.float64).astype(np.float32)
        return log_prob


def _perturbed(logits: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Add noise so that the largest is a draw: -log of a standard exponential is a standard Gumbel."""
    noise = rng.standard_exponential(logits.shape, np.float32)
    # An exponential is 0 once in 2^24 draws: the smallest number above keeps its log finite.
    np.maximum(noise, _SMALLEST, out=noise)
    np.log(noise, out=noise)
    return np.subtract(logits, noise, out=noise)
