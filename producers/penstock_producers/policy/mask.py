"""Which choices an env allows: an info of its own, found among those that are recorded."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock_schemas.errors import PolicyError
from penstock_schemas.stream import INFO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Info
    from penstock_schemas.columns import Column

    Mask: TypeAlias = Callable[[tuple[Info, ...]], NDArray[Any]]


def mask_among(key: str, infos: Sequence[Column], choices: int) -> Mask:
    """Make what finds the mask among the infos of n envs, in these columns: an array (n, choices), not 0 where allowed.

    An info that is not there allows all choices. Raises `PolicyError` unless it is recorded, as so many numbers.
    """
    names = [column.name for column in infos]
    if INFO + key not in names:
        recorded = ", ".join(repr(name.removeprefix(INFO)) for name in names) or "none"
        raise PolicyError(
            f"behaviour: mask {key!r}: no such info is recorded, {recorded} is: name it in --infos, so that what was "
            "allowed is stored beside what was done"
        )
    at = names.index(INFO + key)
    column = infos[at]
    if column.is_text or prod(column.shape) != choices:
        what = "text" if column.is_text else f"of shape {column.shape}"
        raise PolicyError(f"behaviour: mask {key!r}: the info is {what}, the action has {choices} choices")

    def mask(given: tuple[Info, ...]) -> NDArray[Any]:
        values, valid = given[at]
        values = values.reshape(len(values), choices)
        return values if valid.all() else np.where(valid[:, np.newaxis], values, 1)

    return mask
