"""Flattening whatever is numbers into one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_schemas.connectors.connector import Plain
from penstock_schemas.connectors.leafwise import bounds, box, not_numeric, refuse
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import Leaves, Space

_FLOAT32 = np.dtype(np.float32)


class Flatten(Plain):
    """Lays all leaves, each in C order, side by side: one box of float32, each element within its leaf's bounds.

    A discrete leaf is one number, its value: see `OneHot`.

    Args:
        observation: what comes in.
        action: the action space.
    """

    recalls = False

    def __init__(self, observation: Space, action: Space) -> None:
        del action
        found = leaves(observation)
        for leaf in found:
            if (reason := not_numeric(leaf.space)) is not None:
                refuse(leaf, reason.partition(";")[0] + "; wrap the environment")
        sides = zip(*(bounds(leaf.space) for leaf in found), strict=True)
        self.space: Space = box(_FLOAT32, *(np.concatenate([bound.reshape(-1) for bound in side]) for side in sides))

    def __call__(self, seen: Seen) -> Leaves:
        """Flatten n rows."""
        n = len(seen.age)
        with np.errstate(all="ignore"):
            flat = [leaf.reshape(n, -1) for leaf in seen.observation]
            return (np.concatenate(flat, axis=1, dtype=_FLOAT32, casting="unsafe"),)
