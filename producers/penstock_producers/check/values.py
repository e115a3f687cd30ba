"""Comparing what environments give, value by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.check.rules import Rule
from penstock_producers.contained import told
from penstock_schemas.spaces import Box, Dict, MultiBinary, Text, Tuple, flatten, leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.spaces import LeafSpace, Leaves, Space


class Misfit(NamedTuple):
    """Why a value is none of its space."""

    rule: Rule
    expected: str
    found: str

    @property
    def outside_only(self) -> bool:
        """Whether only the bounds are not kept, so that it can be recorded all the same."""
        return self.rule is Rule.OBSERVATION_BOUNDS


def arrays(space: Space, value: Any) -> Leaves:
    """Copy one value that is of the space, but for its bounds, into an array of each leaf's shape and dtype."""
    return tuple(
        np.array(part, leaf.space.dtype) for leaf, part in zip(leaves(space), flatten(space, value), strict=True)
    )


def misfit(space: Space, value: Any) -> Misfit | None:
    """Say why an env's value has not the space's structure, shapes and dtypes, or not its bounds; None where it has."""
    try:
        parts = flatten(space, value)
    except (TypeError, KeyError, ValueError, IndexError) as error:
        found = f"a {type(value).__name__} ({told(error)})"
        return Misfit(Rule.OBSERVATION_SPACE, f"the structure of {type(space).__name__}", found)
    if unknown := _unknown(space, value, "observation"):
        return Misfit(Rule.OBSERVATION_SPACE, f"the structure of {type(space).__name__}", f"{unknown} too")
    outside = None
    for leaf, part in zip(leaves(space), parts, strict=True):
        name = leaf.name("observation")
        expected = f"{name} of shape {leaf.space.shape} and dtype {leaf.space.dtype}"
        if not _fits(leaf.space, part):
            array = _array(part)
            found = f"a {type(part).__name__} of shape {array.shape} and dtype {array.dtype}"
            return Misfit(Rule.OBSERVATION_SPACE, expected, found)
        outside = outside or _outside(leaf.space, part, name)
    return outside


def _unknown(space: Space, value: Any, name: str) -> str | None:
    """Name a key that a Dict space has not; None where there is none."""
    if isinstance(space, Dict) and isinstance(value, Mapping):
        known = dict(space.spaces)
        for key in value:
            found = _unknown(known[key], value[key], f"{name}.{key}") if key in known else f"{name}.{key}"
            if found:
                return found
    if isinstance(space, Tuple):
        for at, (inner, part) in enumerate(zip(space.spaces, value, strict=True)):
            if found := _unknown(inner, part, f"{name}.{at}"):
                return found
    return None


def difference(
    space: Space, expected: Leaves, found: Leaves, root: str = "observation", *, tolerance: float = 0.0
) -> tuple[str, str] | None:
    """Name the first element in which two values differ, and what each has there; None where none does."""
    for leaf, one, other in zip(leaves(space), expected, found, strict=True):
        differs = unequal(one, other, tolerance)
        if differs.any():
            at = np.unravel_index(int(differs.argmax()), one.shape)
            element = f"[{', '.join(map(str, at))}]" if at else ""
            name = f"{leaf.name(root)}{element}"
            return f"{name} = {one[at]}", f"{name} = {other[at]}"
    return None


def unequal(one: Any, other: Any, tolerance: float) -> NDArray[np.bool_]:
    """Tell where floats are farther apart than `tolerance`, relative above 1, and where others are not the same."""
    differs = np.asarray(one != other)
    if np.asarray(one).dtype.kind != "f" or not differs.any():
        return differs
    with np.errstate(invalid="ignore"):  # of two infinities
        near = np.abs(one - other) <= tolerance * np.maximum(1, np.abs(one))
    return np.asarray(differs & ~near & ~(np.isnan(one) & np.isnan(other)))


def describe(answer: Any) -> str:
    """Say what kind of thing was answered."""
    if isinstance(answer, np.ndarray):
        return f"an array of shape {answer.shape} and dtype {answer.dtype}"
    length = f" of {len(answer)}" if isinstance(answer, tuple) else ""
    return f"a {type(answer).__name__}{length}"


def _fits(space: LeafSpace, part: Any) -> bool:
    if isinstance(space, Text):
        return isinstance(part, str)
    if isinstance(space, Box) and not isinstance(part, np.ndarray | np.generic) and space.shape:
        return False
    array = _array(part)
    if array.shape != space.shape:
        return False
    # As gymnasium: what a dtype holds without loss is of it; an integer is an integer in the other spaces.
    if isinstance(space, Box):
        return np.can_cast(array.dtype, space.dtype)
    return array.dtype.kind in ("iub" if isinstance(space, MultiBinary) else "iu")


def _array(part: Any) -> NDArray[Any]:
    try:
        return np.asarray(part)
    except ValueError:  # nested lists of different lengths
        return np.asarray(part, object)


def _outside(space: LeafSpace, part: Any, name: str) -> Misfit | None:
    if isinstance(space, Text):
        if space.contains(np.array([part], object))[0]:
            return None
        lengths = f"{name} of {space.min_length} to {space.max_length} allowed characters"
        return Misfit(Rule.OBSERVATION_BOUNDS, lengths, repr(part))
    # In the dtype that travels: a bound of float64 is not the nearest one of float32.
    array = np.asarray(part, space.dtype if isinstance(space, Box) else None)
    if space.contains(array[None])[0]:
        return None
    at, bounds = _where_outside(space, array) if isinstance(space, Box) else ((), repr(space))
    element = f"[{', '.join(map(str, at))}]" if at else ""
    return Misfit(Rule.OBSERVATION_BOUNDS, f"{name}{element} within {bounds}", str(array[at] if at else array))


def _where_outside(space: Box, array: NDArray[Any]) -> tuple[tuple[int, ...], str]:
    dtype = array.dtype if array.dtype.kind == "f" else np.float64
    low, high = (
        np.broadcast_to(np.asarray(bound, dtype), array.size).reshape(array.shape) for bound in (space.low, space.high)
    )
    inside = (array >= low) & (array <= high)
    at = tuple(int(index) for index in np.unravel_index(int(np.argmin(inside)), array.shape)) if array.shape else ()
    return at, f"{low[at]} … {high[at]}"
