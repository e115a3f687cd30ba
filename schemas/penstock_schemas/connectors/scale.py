"""Scaling images to [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.connector import Plain
from penstock_schemas.connectors.leafwise import bounds, box, choose, replaced
from penstock_schemas.spaces import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import LeafSpace, Leaves, Space

_UINT8, _FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
_MOST = np.float32(255)
_IMAGE_RANK = 3


class Scale(Plain):
    """Divides boxes of uint8 by 255, in float32; can put the channels first, as torch's convolutions want them.

    Args:
        observation: what comes in.
        action: the action space.
        channel_first: whether (height, width, channels) becomes (channels, height, width).
        only: the names of the leaves; all boxes of uint8 by default.
    """

    recalls = False

    def __init__(
        self, observation: Space, action: Space, *, channel_first: bool = False, only: Sequence[str] | None = None
    ) -> None:
        del action
        self._channel_first = channel_first
        chosen = choose(observation, only, self._refused)
        self._chosen = frozenset(chosen)
        self.space = replaced(
            observation, {at: box(_FLOAT32, *map(self._one, bounds(leaf.space))) for at, leaf in chosen.items()}
        )

    def __call__(self, seen: Seen) -> Leaves:
        """Scale n rows."""
        return tuple(
            self._scaled(values) if at in self._chosen else values for at, values in enumerate(seen.observation)
        )

    def _one(self, bound: NDArray[Any]) -> NDArray[Any]:
        # A bound as its value would be: below it nothing is rounded.
        one: NDArray[Any] = self._scaled(bound.astype(np.uint8)[np.newaxis])[0]
        return one

    def _scaled(self, values: NDArray[Any]) -> NDArray[Any]:
        if self._channel_first:
            values = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        scaled: NDArray[Any] = np.divide(values, _MOST, dtype=_FLOAT32)
        return scaled

    def _refused(self, space: LeafSpace) -> str | None:
        if not isinstance(space, Box) or space.dtype != _UINT8:
            return "it takes images, which are boxes of uint8"
        if self._channel_first and len(space.shape) != _IMAGE_RANK:
            return "channel_first needs an image of shape (height, width, channels)"
        return None
