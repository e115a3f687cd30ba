"""Normalizing by statistics that come with each version of the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.leafwise import box, choose, replaced
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import LeafSpace, Leaves, Space

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class Normalize:
    """Subtracts the mean and divides by the deviation: (x - mean) / sqrt(variance + epsilon), clipped, in float32.

    Its parameters are "mean" and "variance" of the observation, or "mean.<leaf>" and "variance.<leaf>" of each leaf
    where it is nested: float64, of the leaf's shape. Before the first version they are 0 and 1.

    Args:
        observation: what comes in.
        action: the action space.
        epsilon: what is added to the variance; above 0, since a variance can be 0.
        clip: the largest magnitude that comes out; None for any.
        only: the names of the leaves; all boxes of numbers by default.
    """

    lookback = 0
    recalls = False

    def __init__(
        self,
        observation: Space,
        action: Space,
        *,
        epsilon: float = 1e-8,
        clip: float | None = 10.0,
        only: Sequence[str] | None = None,
    ) -> None:
        del action
        self._epsilon = _positive("epsilon", epsilon)
        self._clip = None if clip is None else _positive("clip", clip)
        chosen = choose(observation, only, _refused)
        self._names = {at: (leaf.name("mean"), leaf.name("variance")) for at, leaf in chosen.items()}
        most = np.inf if self._clip is None else self._clip
        self.space = replaced(
            observation,
            {
                at: box(_FLOAT32, np.full(leaf.space.shape, -most), np.full(leaf.space.shape, most))
                for at, leaf in chosen.items()
            },
        )
        self.parameters: Mapping[str, NDArray[Any]] = {
            name: np.full(leaf.space.shape, value, _FLOAT64)
            for at, leaf in chosen.items()
            for name, value in zip(self._names[at], (0.0, 1.0), strict=True)
        }

    def check(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Raise `ValueError` for a variance below 0."""
        for _, name in self._names.values():
            if (least := parameters[name].min()) < 0:
                raise ValueError(f"{name} has the value {least:g}: a variance is at least 0")

    def __call__(self, seen: Seen) -> Leaves:
        """Normalize n rows."""
        return tuple(
            self._normalized(values, *(seen.parameters[name] for name in self._names[at]))
            if at in self._names
            else values
            for at, values in enumerate(seen.observation)
        )

    def _normalized(self, values: NDArray[Any], mean: NDArray[Any], variance: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            normalized = np.subtract(values, mean, dtype=_FLOAT64)
            normalized /= np.sqrt(variance + self._epsilon)
            if self._clip is not None:
                np.clip(normalized, -self._clip, self._clip, out=normalized)
            rounded: NDArray[Any] = normalized.astype(_FLOAT32)
        return rounded


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < np.inf:
        raise PolicyError(f"{name}={value!r}: a finite number above 0")
    return float(value)


def _refused(space: LeafSpace) -> str | None:
    numbers = isinstance(space, Box) and space.dtype != np.bool_
    return None if numbers else "it takes boxes of numbers; put 'one_hot' or 'cast' before this one"
