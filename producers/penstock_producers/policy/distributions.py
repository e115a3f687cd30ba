"""Action distributions over a network's outputs: drawn and recorded with numpy, whole batches at a time.

numpy, because a batch of an env's size is small: a torch operation costs more to call than to compute.
"""

from __future__ import annotations

from math import log, pi
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Discrete, Space
from penstock_schemas.stream import Column

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG_SQRT_2PI = 0.5 * log(2 * pi)


class Distribution(Protocol):
    """Draws actions from parameters; what is drawn is recorded, what is sent to the env may differ."""

    @property
    def parameters(self) -> int:
        """How many numbers describe the distribution of one action."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is recorded beside the action and its log-probability."""
        ...

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn: "identity" or "clip"."""
        ...

    def draw(
        self, parameters: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[Any]]:
        """Draw from parameters of shape (n, `parameters`): the actions, their log-probabilities (n,), those sent."""
        ...


class Categorical:
    """One of a discrete space's values; the parameters are logits."""

    columns: tuple[Column, ...] = ()
    mapping = "identity"

    def __init__(self, space: Discrete) -> None:
        self._start = space.start
        self.parameters = space.n

    def draw(
        self, parameters: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[Any]]:
        """Draw by inverting the cumulative distribution."""
        shifted = parameters - parameters.max(axis=1, keepdims=True)
        cumulative = np.exp(shifted).cumsum(axis=1)
        total = cumulative[:, -1]
        threshold = rng.random(len(total), np.float32) * total
        # Rounding may put the threshold at the total: the last value is never passed.
        index = (cumulative[:, :-1] <= threshold[:, None]).sum(axis=1)
        log_prob = shifted[np.arange(len(index)), index] - np.log(total)
        action = index + self._start if self._start else index
        return action, log_prob, action


class DiagonalGaussian:
    """A box's value, each element drawn by itself; the parameters are the means, then the logs of the deviations.

    The value drawn is recorded, since its log-probability is its own; the env is sent the value clipped into the
    box.
    """

    mapping = "clip"

    def __init__(self, space: Box) -> None:
        if space.dtype.kind != "f":
            raise PolicyError(f"action space Box of dtype {space.dtype}: a Gaussian policy acts in floats only")
        self._space = space
        self._low, self._high = (np.asarray(bounds, space.dtype) for bounds in (space.low, space.high))
        self._size = int(np.prod(space.shape, dtype=np.int64))
        self.parameters = 2 * self._size
        self.columns = (Column("action_sent", space.shape, space.dtype),)

    def draw(
        self, parameters: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[Any]]:
        """Draw each element from its own normal distribution."""
        mean, log_std = parameters[:, : self._size], parameters[:, self._size :]
        std = np.exp(log_std)
        action = mean + std * rng.standard_normal(mean.shape, np.float32)
        # Of the value as it is recorded, in its own dtype, so that it can be computed again from the record.
        action = action.astype(self._space.dtype, copy=False)
        scaled = (action - mean) / std
        log_prob = (-0.5 * scaled * scaled - log_std - _LOG_SQRT_2PI).sum(axis=1, dtype=np.float32)
        shape = (len(action), *self._space.shape)
        return action.reshape(shape), log_prob, np.clip(action, self._low, self._high).reshape(shape)


def distribution_for(space: Space) -> Distribution:
    """Choose the distribution of an action space."""
    if isinstance(space, Discrete):
        return Categorical(space)
    if isinstance(space, Box):
        return DiagonalGaussian(space)
    raise PolicyError(f"action space {space!r}: no distribution draws from it")
