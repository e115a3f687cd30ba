"""Convolutions over images."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from penstock_producers.policy.networks.mlp import checked_widths
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_schemas.spaces import Space

# (channels out, kernel, stride)
Filter: TypeAlias = "tuple[int, int, int]"

# The layers of Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015), and
# smaller ones where an image is too small for them; each with the shortest side that it is meant for.
_DEFAULTS: tuple[tuple[int, tuple[Filter, ...]], ...] = (
    (36, ((32, 8, 4), (64, 4, 2), (64, 3, 1))),
    (10, ((32, 4, 2), (64, 3, 1))),
    (3, ((32, 3, 1),)),
)
_GREY, _COLOURED = 2, 3


class Convolutions(nn.Module):
    """Convolutions and linear layers, each followed by a ReLU. Bytes are scaled to 0 … 1, floats taken as they are.

    Args:
        space: a `Box` of shape (height, width), or with the channels as `channels` says.
        channels: "last" for (height, width, channels), "first" for (channels, height, width).
        filters: (channels out, kernel, stride) of each convolution; None for some that suit the image.
        hidden: the widths of the linear layers behind them.

    Attributes:
        width: how many numbers come out.

    Raises `PolicyError` for a space that holds no images, and for images too small for the convolutions.
    """

    def __init__(
        self,
        space: Space,
        channels: str = "last",
        filters: Sequence[Sequence[int]] | None = None,
        hidden: Sequence[int] = (512,),
    ) -> None:
        super().__init__()
        if not isinstance(space, Box) or len(space.shape) not in {_GREY, _COLOURED}:
            raise PolicyError(
                f"observations {space!r}: convolutions take a Box of shape (height, width) or (height, width, "
                "channels); choose another policy, or make images of it with connectors"
            )
        if channels not in {"first", "last"}:
            raise PolicyError(f"channels {channels!r}: there are 'first' and 'last'")
        self._grey = len(space.shape) == _GREY
        self._last = channels == "last" and not self._grey
        self._scale = 1 / 255 if space.dtype == np.uint8 else None
        *sizes, depth = (*space.shape, 1) if self._grey else space.shape
        if not self._grey and not self._last:
            depth, *sizes = space.shape
        convolutions: list[nn.Module] = []
        for out, kernel, stride in _filters(space, sizes, filters):
            convolutions += [nn.Conv2d(depth, out, kernel, stride), nn.ReLU()]
            sizes, depth = [(size - kernel) // stride + 1 for size in sizes], out
        self.convolutions = nn.Sequential(*convolutions)
        dense: list[nn.Module] = []
        widths = (depth * prod(sizes), *checked_widths(hidden))
        for before, after in pairwise(widths):
            dense += [nn.Linear(before, after), nn.ReLU()]
        self.dense = nn.Sequential(*dense)
        self.width = widths[-1]

    def forward(self, observation: Tensor) -> Tensor:
        """Map images (n, *shape) to (n, `width`)."""
        image = observation.float()
        if self._scale is not None:
            image = image * self._scale
        if self._grey:
            image = image[:, None]
        elif self._last:
            image = image.permute(0, 3, 1, 2)
        features: Tensor = self.dense(self.convolutions(image).flatten(1))
        return features


def _filters(space: Box, sizes: Sequence[int], filters: Sequence[Sequence[Any]] | None) -> Sequence[Filter]:
    """Choose the convolutions of an image, or check those that were given."""
    if filters is None:
        for least, suited in _DEFAULTS:
            if min(sizes) >= least:
                return suited
        raise PolicyError(
            f"images {_told(space, sizes)}: too small for convolutions, which need {_DEFAULTS[-1][0]} pixels a side; "
            "say where the channels stand (channels: 'first' or 'last'), or choose another policy"
        )
    checked: list[Filter] = []
    for place, layer in enumerate(filters):
        if len(layer) != len(("out", "kernel", "stride")) or not all(isinstance(v, int) and v > 0 for v in layer):
            raise PolicyError(f"filter {place}, {list(layer)}: [channels out, kernel, stride], whole numbers above 0")
        out, kernel, stride = layer
        if min(sizes) < kernel:
            raise PolicyError(
                f"images {_told(space, sizes)} before filter {place}, {list(layer)}: too small for its kernel; "
                "give fewer or smaller filters"
            )
        sizes = [(size - kernel) // stride + 1 for size in sizes]
        checked.append((out, kernel, stride))
    return checked


def _told(space: Box, sizes: Sequence[int]) -> str:
    return f"of shape {space.shape}, {' x '.join(map(str, sizes))} pixels"
