"""What views are asked for: told by its name where it is none."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from penstock_consumers.replay.where import Where
from penstock_schemas.errors import SettingsError

_MOST_STEPS = 1 << 40


def whole(name: str, value: Any, least: int, why: str) -> int:
    """Read a whole number; raises `SettingsError` where it is none, or less than the least."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingsError(f"{name} {value!r}: a whole number, from {least} on")
    if value < least:
        raise SettingsError(f"{name} {value}: {why}")
    return int(value)


def steps(name: str, value: Any, least: int, why: str) -> int:
    """Read a number of steps, as `whole`; more than any episode has are as good as what can be reckoned with."""
    return min(whole(name, value, least, why), _MOST_STEPS)


def batch_size(value: Any) -> int:
    """Read how many items a batch has; raises `SettingsError` where it is no number of them."""
    return whole("batch_size", value, 1, "a batch has at least one item")


def number(name: str, value: Any) -> float:
    """Read a number; raises `SettingsError` where it is none."""
    if not isinstance(value, Real):
        raise SettingsError(f"{name} {value!r}: a number")
    return float(value)


def condition(where: Any) -> Where:
    """Read a `Where`; raises `SettingsError` where it is none. None leaves nothing out."""
    if where is None:
        return Where()
    if not isinstance(where, Where):
        raise SettingsError(f"where {where!r}: a Where, as in where=Where(length=(10, None))")
    return where


def generator(seed: Any) -> np.random.Generator:
    """Make a generator of a seed, or take the one that is given; raises `SettingsError` where it is neither."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(whole("seed", seed, 0, "a seed is at least 0, or a numpy.random.Generator"))
