"""Stacking the last observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.connector import Plain
from penstock_schemas.connectors.leafwise import bounds, box, choose, not_numeric, replaced
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Discrete, MultiBinary, MultiDiscrete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import LeafSpace, Leaves, Space


class Stack(Plain):
    """Shows the last `frames` observations of the episode, the oldest first; the first one stands for those before it.

    Args:
        observation: what comes in.
        action: the action space.
        frames: how many, the newest among them.
        axis: the axis of an observation along which they are laid; None for a new one in front.
        only: the names of the leaves; all that are numbers by default.
    """

    recalls = False

    def __init__(
        self,
        observation: Space,
        action: Space,
        *,
        frames: int = 4,
        axis: int | None = None,
        only: Sequence[str] | None = None,
    ) -> None:
        del action
        if not _whole(frames) or frames < 1:
            raise PolicyError(f"frames={frames!r}: how many observations, at least 1")
        if axis is not None and not _whole(axis):
            raise PolicyError(f"axis={axis!r}: an axis of an observation, or null for a new one in front")
        self.lookback = frames - 1
        self._frames = frames
        self._axis = axis
        chosen = choose(observation, only, self._refused)
        self._rank = {at: len(leaf.space.shape) for at, leaf in chosen.items()}
        self.space = replaced(observation, {at: self._stacked(leaf.space) for at, leaf in chosen.items()})

    def __call__(self, seen: Seen) -> Leaves:
        """Stack n windows."""
        if not self.lookback:
            seen = seen._replace(observation=tuple(values[:, np.newaxis] for values in seen.observation))
        return tuple(
            self._joined(values, self._rank[at]) if at in self._rank else values[:, -1]
            for at, values in enumerate(seen.observation)
        )

    def _joined(self, window: NDArray[Any], rank: int) -> NDArray[Any]:
        if self._axis is None:
            return window
        axis = 1 + self._axis % rank
        laid = np.moveaxis(window, 1, axis)
        return laid.reshape(*laid.shape[:axis], -1, *laid.shape[axis + 2 :])

    def _stacked(self, space: LeafSpace) -> LeafSpace:
        if isinstance(space, Box):
            return box(space.dtype, *map(self._repeated, bounds(space)))
        if isinstance(space, Discrete | MultiDiscrete):
            n, start = (space.n, space.start) if isinstance(space, Discrete) else (space.nvec, space.start)
            # As Python's integers: a number of values may be too large for an array's.
            counts, starts = (self._repeated(np.array(of, object).reshape(space.shape)) for of in (n, start))
            return MultiDiscrete(counts.shape, tuple(counts.flat), tuple(starts.flat), space.dtype)
        return MultiBinary(self._repeated(np.empty(space.shape)).shape, space.dtype)

    def _repeated(self, one: NDArray[Any]) -> NDArray[Any]:
        """Stack what is the same of every observation."""
        repeated = np.broadcast_to(one, (1, self._frames, *one.shape))
        stacked: NDArray[Any] = self._joined(repeated, one.ndim)[0]
        return stacked

    def _refused(self, space: LeafSpace) -> str | None:
        rank = len(space.shape)
        if self._axis is not None and not -rank <= self._axis < rank:
            return f"it has no axis {self._axis}; leave the axis out to stack along a new one"
        return not_numeric(space)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
