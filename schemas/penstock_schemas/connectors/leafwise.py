"""Leaves of spaces, as connectors choose, bound and replace them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.errors import PolicyError, SpaceError
from penstock_schemas.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaf, LeafSpace, Space

_ROOT = "observation"


def choose(space: Space, only: Sequence[str] | None, refused: Callable[[LeafSpace], str | None]) -> dict[int, Leaf]:
    """Choose the leaves that a connector maps, by their places: those named by `only`, or all that it takes.

    A leaf's name is its path with dots in between, as its column is named behind "observation."; "" is that of a space
    which is a leaf itself. `refused` says why a leaf is not taken, None where it is. Raises `PolicyError` for a name
    that is no leaf's, `SpaceError` for a named leaf that is not taken, and where there is none to take.
    """
    found = {name_of(leaf): (at, leaf) for at, leaf in enumerate(leaves(space))}
    if only is not None:
        if isinstance(only, str) or not only or (unknown := [name for name in only if name not in found]):
            wrong = only if isinstance(only, str) or not only else unknown
            raise PolicyError(f"only={wrong!r}: a list of leaves' names, of which the observation has {list(found)}")
        found = {name: found[name] for name in found if name in only}
    reasons = {name: refused(leaf.space) for name, (_, leaf) in found.items()}
    if only is not None or all(reason is not None for reason in reasons.values()):
        for name, reason in reasons.items():
            if reason is not None:
                refuse(found[name][1], reason)
    return {at: leaf for name, (at, leaf) in found.items() if reasons[name] is None}


def refuse(leaf: Leaf, reason: str, root: str = _ROOT) -> None:
    """Raise `SpaceError` for a leaf that a connector does not take."""
    raise SpaceError(f"{leaf.name(root)} is {described(leaf.space)}: {reason}")


def name_of(leaf: Leaf) -> str:
    """Name a leaf by its path; "" where the space is the leaf."""
    return leaf.name("").removeprefix(".")


def described(space: LeafSpace) -> str:
    """Describe a leaf in an error."""
    if isinstance(space, Text):
        return "Text"
    size = f"{space.n} values" if isinstance(space, Discrete) else f"shape {space.shape}"
    return f"{type(space).__name__} of {size} and dtype {space.dtype}"


def not_numeric(space: LeafSpace) -> str | None:
    """Say that a leaf is text; None where it is numbers."""
    return "it takes numbers, and text is none; choose other leaves with only=[…]" if isinstance(space, Text) else None


def replaced(space: Space, by: Mapping[int, LeafSpace]) -> Space:
    """Put other leaves into a space, by their places; the others stay."""
    return _replaced(space, iter([by.get(at, leaf.space) for at, leaf in enumerate(leaves(space))]))


def bounds(space: LeafSpace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the most that each element of a leaf of numbers can be, each of the leaf's shape."""
    least: Any = 0
    most: Any = 1
    if isinstance(space, Box):
        least, most = space.low, space.high
        if space.dtype.kind != "f":
            of = (0, 1) if space.dtype == np.bool_ else (np.iinfo(space.dtype).min, np.iinfo(space.dtype).max)
            least, most = np.clip(least, *of), np.clip(most, *of)
    elif isinstance(space, Discrete):
        least, most = space.start, space.start + space.n - 1
    elif isinstance(space, MultiDiscrete):
        least, most = space.start, [start + n - 1 for start, n in zip(space.start, space.nvec, strict=True)]
    size = prod(space.shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), size).reshape(space.shape) for bound in (least, most))
    return low, high


def box(dtype: np.dtype[Any], low: NDArray[Any], high: NDArray[Any]) -> Box:
    """Make a box of the bounds of each element, whose shape they have, rounded as its values are."""
    if dtype.kind == "f":
        low, high = (cast(bound, dtype) for bound in (low, high))
    return Box(low.shape, dtype, _collapsed(low), _collapsed(high))


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast, without a copy where nothing changes; what a narrower float cannot hold becomes an infinity, unsaid."""
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _collapsed(bound: NDArray[Any]) -> tuple[float, ...]:
    flat = bound.astype(np.float64).reshape(-1)
    return (float(flat[0]),) if (flat == flat[0]).all() else tuple(flat.tolist())


def _replaced(space: Space, found: Iterator[LeafSpace]) -> Space:
    if isinstance(space, Dict):
        return Dict(tuple((key, _replaced(inner, found)) for key, inner in space.spaces))
    if isinstance(space, Tuple):
        return Tuple(tuple(_replaced(inner, found) for inner in space.spaces))
    return next(found)
