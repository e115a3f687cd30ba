"""Action distributions over a network's outputs: drawn and recorded with numpy, whole batches at a time.

numpy, because a batch of an env's size is small: a torch operation costs more to call than to compute.
"""

from __future__ import annotations

from math import log, pi
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Discrete, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG_SQRT_2PI = 0.5 * log(2 * pi)
_SMALLEST = np.finfo(np.float32).tiny


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

    def draw(self, parameters: NDArray[np.float32], rng: np.random.Generator) -> NDArray[Any]:
        """Draw actions, shape (n, *shape), from parameters of shape (n, `parameters`)."""
        ...

    def send(self, action: NDArray[Any]) -> NDArray[Any]:
        """Map actions drawn to those that the env is sent."""
        ...

    def log_prob(self, parameters: NDArray[np.float32], action: NDArray[Any]) -> NDArray[np.float32]:
        """Give the logs of the probabilities, or densities, with which actions are drawn, shape (n,)."""
        ...


class Categorical:
    """One of a discrete space's values; the parameters are logits."""

    columns: tuple[Column, ...] = ()
    mapping = "identity"

    def __init__(self, space: Discrete) -> None:
        self._start = space.start
        self.parameters = space.n

    def draw(self, parameters: NDArray[np.float32], rng: np.random.Generator) -> NDArray[Any]:
        """Draw by the Gumbel-max trick: -log of a standard exponential is a standard Gumbel."""
        noise = rng.standard_exponential(parameters.shape, np.float32)
        # An exponential is 0 once in 2^24 draws: the smallest number above keeps its log finite.
        np.maximum(noise, _SMALLEST, out=noise)
        np.log(noise, out=noise)
        index: NDArray[Any] = np.subtract(parameters, noise, out=noise).argmax(axis=1)
        return index + self._start if self._start else index

    def send(self, action: NDArray[Any]) -> NDArray[Any]:
        """Send what was drawn."""
        return action

    def log_prob(self, parameters: NDArray[np.float32], action: NDArray[Any]) -> NDArray[np.float32]:
        """Normalize the logits, and look the actions up."""
        index = action.astype(np.intp) - self._start
        # Reduced over rows, not columns: numpy is slow where many short runs are reduced.
        shifted = np.ascontiguousarray(parameters.T)
        shifted -= shifted.max(axis=0)
        chosen = shifted[index, np.arange(len(index))]
        np.exp(shifted, out=shifted)
        log_prob: NDArray[np.float32] = chosen - np.log(shifted.sum(axis=0))
        return log_prob


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
        self._size = int(np.prod(space.shape, dtype=np.int64))
        self._low, self._high = (
            np.broadcast_to(np.asarray(bounds, space.dtype), self._size).reshape(space.shape)
            for bounds in (space.low, space.high)
        )
        self.parameters = 2 * self._size
        self.columns = (Column("action_sent", space.shape, space.dtype),)

    def draw(self, parameters: NDArray[np.float32], rng: np.random.Generator) -> NDArray[Any]:
        """Draw each element from its own normal distribution."""
        mean, log_std = parameters[:, : self._size], parameters[:, self._size :]
        action = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        return action.astype(self._space.dtype, copy=False).reshape(-1, *self._space.shape)

    def send(self, action: NDArray[Any]) -> NDArray[Any]:
        """Clip into the box."""
        sent: NDArray[Any] = np.clip(action, self._low, self._high)
        return sent

    def log_prob(self, parameters: NDArray[np.float32], action: NDArray[Any]) -> NDArray[np.float32]:
        """Add up the elements' log-densities: of the values as they are recorded, in their own dtype."""
        mean, log_std = parameters[:, : self._size], parameters[:, self._size :]
        scaled = (action.reshape(mean.shape) - mean) / np.exp(log_std)
        log_prob: NDArray[np.float32] = (-0.5 * scaled * scaled - log_std - _LOG_SQRT_2PI).sum(axis=1, dtype=np.float32)
        return log_prob


def distribution_for(space: Space) -> Distribution:
    """Choose the distribution of an action space."""
    if isinstance(space, Discrete):
        return Categorical(space)
    if isinstance(space, Box):
        return DiagonalGaussian(space)
    raise PolicyError(f"action space {space!r}: no distribution draws from it")
