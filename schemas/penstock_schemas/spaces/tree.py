"""Spaces as trees: Dict and Tuple of spaces, nested, down to the leaves whose values are arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces.arrays import Box, Discrete, LeafSpace, MultiBinary, MultiDiscrete, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock_schemas.spaces.arrays import Json

Space: TypeAlias = "LeafSpace | Dict | Tuple"
Leaves: TypeAlias = "tuple[NDArray[Any], ...]"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Dict:
    """A value for each key, in this order."""

    spaces: tuple[tuple[str, Space], ...]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise SpaceError("Dict without keys: it holds nothing to record; drop it")
        keys = [key for key, _ in self.spaces]
        if len(set(keys)) < len(keys) or not all(isinstance(key, str) for key in keys):
            raise SpaceError(f"Dict with the keys {keys}: keys are strings, each once")

    def to_json(self) -> Json:
        """Describe the space."""
        return {"type": "Dict", "spaces": [[key, space.to_json()] for key, space in self.spaces]}


@dataclass(frozen=True)
class Tuple:
    """A value of each space, in this order."""

    spaces: tuple[Space, ...]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise SpaceError("Tuple without spaces: it holds nothing to record; drop it")

    def to_json(self) -> Json:
        """Describe the space."""
        return {"type": "Tuple", "spaces": [space.to_json() for space in self.spaces]}


@dataclass(frozen=True)
class Leaf:
    """A leaf of a space, and the keys and positions that lead to it."""

    path: tuple[str, ...]
    space: LeafSpace

    def name(self, root: str) -> str:
        """Name the leaf's column: `root`, then the path; dots within keys are written `~1`, tildes `~0`."""
        return ".".join([root, *(key.replace("~", "~0").replace(".", "~1") for key in self.path)])


def leaves(space: Space) -> tuple[Leaf, ...]:
    """The leaves of a space, in the tree's order; a space that is a leaf is its own, with an empty path."""
    return tuple(_leaves(space, ()))


def flatten(space: Space, value: Any) -> tuple[Any, ...]:
    """Part a value of the space's structure, or a batch in that structure, into what its leaves hold.

    Raises `TypeError`, `KeyError` or `ValueError` where the structure is another.
    """
    return tuple(_flatten(space, value))


def unflatten(space: Space, values: Iterable[_T]) -> Any:
    """Put what the leaves hold into the space's structure: dicts, tuples, or the one value of a leaf."""
    iterator = iter(values)
    return _unflatten(space, iterator)


def bounded(space: Space) -> tuple[int, ...]:
    """Which leaves cannot have every value of their dtype: all but plain boxes and text."""
    found = leaves(space)
    return tuple(i for i, leaf in enumerate(found) if not (_is_box(leaf.space) or isinstance(leaf.space, Text)))


def space_from_json(described: Mapping[str, Any]) -> Space:
    """Read a space that `to_json` described; raises `SpaceError` for a type that is not mapped."""
    space: Space
    match described["type"]:
        case "Box":
            low, high = (tuple(float(bound) for bound in described[side]) for side in ("low", "high"))
            space = Box(tuple(described["shape"]), np.dtype(described["dtype"]), low, high)
        case "Discrete":
            space = Discrete(described["n"], described["start"], np.dtype(described["dtype"]))
        case "MultiDiscrete":
            shape, nvec, start = (tuple(described[name]) for name in ("shape", "nvec", "start"))
            space = MultiDiscrete(shape, nvec, start, np.dtype(described["dtype"]))
        case "MultiBinary":
            space = MultiBinary(tuple(described["shape"]), np.dtype(described["dtype"]))
        case "Text":
            space = Text(described["max_length"], described["min_length"], described["characters"])
        case "Dict":
            space = Dict(tuple((key, space_from_json(inner)) for key, inner in described["spaces"]))
        case "Tuple":
            space = Tuple(tuple(space_from_json(inner) for inner in described["spaces"]))
        case other:
            raise SpaceError(f"space type {other!r}: this version of Penstock does not map it to Arrow")
    return space


def _is_box(space: LeafSpace) -> bool:
    return isinstance(space, Box) and space.dtype != np.bool_


def _leaves(space: Space, path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(space, Dict):
        for key, inner in space.spaces:
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, Tuple):
        for position, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, str(position)))
    else:
        yield Leaf(path, space)


def _flatten(space: Space, value: Any) -> Iterator[Any]:
    if isinstance(space, Dict):
        for key, inner in space.spaces:
            yield from _flatten(inner, value[key])
    elif isinstance(space, Tuple):
        for inner, part in zip(space.spaces, value, strict=True):
            yield from _flatten(inner, part)
    else:
        yield value


def _unflatten(space: Space, values: Iterator[Any]) -> Any:
    if isinstance(space, Dict):
        return {key: _unflatten(inner, values) for key, inner in space.spaces}
    if isinstance(space, Tuple):
        return tuple(_unflatten(inner, values) for inner in space.spaces)
    return next(values)
