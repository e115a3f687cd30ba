"""Distributions over the floats of a box."""

from __future__ import annotations

from math import log, pi, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.policy.distributions.uniform import uniform
from penstock_schemas.chunks import Exploration
from penstock_schemas.errors import PolicyError
from penstock_schemas.sent import sent_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.policy.behaviour import Behaviour
    from penstock_schemas.spaces import Box, Leaves

_LOG_SQRT_2PI = 0.5 * log(2 * pi)


class DiagonalGaussian:
    """A box's value, each element drawn by itself; the parameters are the means, then the logs of the deviations.

    The value drawn is recorded, since its log-probability is its own; the env is sent the value as `mapping` says,
    never outside of the box. OFF draws the means, and RANDOM draws so that what is sent is uniform; both pass the
    parameters by.

    Args:
        space: of the action.
        mapping: "clip", "rescale" or "squash", as `Behaviour` has it; the latter two need finite bounds.
        name: of the action, or its leaf, for errors.

    Raises `PolicyError` for a box that is not of floats, and for bounds that the mapping does not map to.
    """

    discrete = False
    choices = 0

    def __init__(self, space: Box, mapping: str = "clip", name: str = "action") -> None:
        if space.dtype.kind != "f":
            raise PolicyError(f"{name}: Box of dtype {space.dtype}: a Gaussian policy acts in floats only")
        self._space = space
        self._size = prod(space.shape)
        self._low, self._high = (
            np.broadcast_to(np.asarray(bounds, space.dtype), self._size).reshape(space.shape)
            for bounds in (space.low, space.high)
        )
        if mapping != "clip":
            self._check_bounds(mapping, name)
        self.mapping = mapping
        self.parameters = 2 * self._size
        self.columns = sent_columns(space)

    def behave(
        self,
        parameters: NDArray[np.float32],
        mask: NDArray[Any] | None,
        behaviour: Behaviour,
        exploration: Exploration,
    ) -> NDArray[np.float32]:
        """Widen the deviations by temperature and noise; there is nothing to mask, nor is there an epsilon."""
        del mask
        temperature, noise = behaviour.temperature, behaviour.noise
        on = exploration in (Exploration.ON, Exploration.EPSILON)
        if not on or (temperature == 1.0 and noise == 0.0):
            return parameters
        behaved = parameters.copy()
        log_std = behaved[:, self._size :]
        log_std += 0.5 * log(temperature)
        if noise:
            # log(sqrt(std^2 + noise^2)), wherever the squares overflow or vanish.
            log_std[:] = 0.5 * np.logaddexp(2 * log_std, np.float32(2 * log(noise)))
        return behaved

    def draw(self, behaved: NDArray[np.float32], rng: np.random.Generator, exploration: Exploration) -> Leaves:
        """Draw each element from its own normal distribution; or the means, or what is uniform once it is sent."""
        if exploration is Exploration.RANDOM:
            return (self._uniform(len(behaved), rng),)
        mean, log_std = behaved[:, : self._size], behaved[:, self._size :]
        # A copy in any case: the network's answer may be the network's to overwrite.
        off = exploration is Exploration.OFF
        drawn = mean.copy() if off else mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        return (drawn.astype(self._space.dtype, copy=False).reshape(-1, *self._space.shape),)

    def send(self, action: Leaves) -> Leaves:
        """Map into the box."""
        (drawn,) = action
        if self.mapping != "clip":
            wide = drawn.astype(np.float64)
            within = np.tanh(wide) if self.mapping == "squash" else np.clip(wide, -1, 1)
            share = (within + 1) / 2
            # Not from the distance of the bounds, which may overflow; and exact at both of them.
            drawn = (self._low * (1 - share) + self._high * share).astype(self._space.dtype)
        # Scaled values may be rounded past a bound.
        return (np.clip(drawn, self._low, self._high),)

    def log_prob(self, behaved: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Add up the elements' log-densities: of the values as they are recorded, in their own dtype."""
        mean, log_std = behaved[:, : self._size], behaved[:, self._size :]
        scaled = (action[0].reshape(mean.shape) - mean) / np.exp(log_std)
        log_prob: NDArray[np.float32] = (-0.5 * scaled * scaled - log_std - _LOG_SQRT_2PI).sum(axis=1, dtype=np.float32)
        return log_prob

    def _check_bounds(self, mapping: str, name: str) -> None:
        finite = np.isfinite(self._low) & np.isfinite(self._high)
        if not finite.all():
            element = int(finite.argmin())
            bounds = f"{self._low.flat[element]:g} … {self._high.flat[element]:g}"
            raise PolicyError(
                f"{name}: mapping {mapping!r} needs finite bounds, those of element {element} are {bounds}: use "
                "'clip', or wrap the environment"
            )

    def _uniform(self, n: int, rng: np.random.Generator) -> NDArray[Any]:
        if self.mapping == "clip":
            return uniform(self._space, n, rng)
        drawn = rng.uniform(-1, 1, (n, *self._space.shape))
        if self.mapping == "squash":
            # -1 may be drawn, and is no value's tanh.
            drawn = np.arctanh(np.maximum(drawn, np.nextafter(-1.0, 0.0)))
        return drawn.astype(self._space.dtype)
