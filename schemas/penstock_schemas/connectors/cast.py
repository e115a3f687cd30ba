"""Casting leaves to another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.connector import Plain
from penstock_schemas.connectors.leafwise import bounds, box, cast, choose, not_numeric, replaced
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces.arrays import WIRE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_schemas.connectors.connector import Seen
    from penstock_schemas.spaces import LeafSpace, Leaves, Space


class Cast(Plain):
    """Casts leaves of numbers, which become boxes: to a float, or to an integer that holds all that they can.

    Args:
        observation: what comes in.
        action: the action space.
        dtype: the name of the dtype.
        only: the names of the leaves; all that are numbers by default.
    """

    recalls = False

    def __init__(
        self, observation: Space, action: Space, *, dtype: str = "float32", only: Sequence[str] | None = None
    ) -> None:
        del action
        if dtype not in WIRE_DTYPES:
            raise PolicyError(f"dtype={dtype!r}: there are {', '.join(WIRE_DTYPES)}")
        self._dtype = np.dtype(dtype)
        chosen = choose(observation, only, self._refused)
        self._chosen = frozenset(chosen)
        self.space = replaced(observation, {at: box(self._dtype, *bounds(leaf.space)) for at, leaf in chosen.items()})

    def __call__(self, seen: Seen) -> Leaves:
        """Cast n rows."""
        return tuple(
            cast(values, self._dtype) if at in self._chosen else values for at, values in enumerate(seen.observation)
        )

    def _refused(self, space: LeafSpace) -> str | None:
        if (reason := not_numeric(space)) is not None:
            return reason
        return (
            None
            if self._dtype.kind == "f" or _held(space.dtype, self._dtype)
            else (f"not every value of it is one of {self._dtype}, and machines differ in what becomes of the others")
        )


def _held(dtype: np.dtype[Any], by: np.dtype[Any]) -> bool:
    return np.can_cast(dtype, by, "safe")
