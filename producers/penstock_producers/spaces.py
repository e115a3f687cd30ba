"""gymnasium's spaces as the plain descriptions that travel, and its batches as their leaves."""

from __future__ import annotations

from functools import reduce
from operator import attrgetter, getitem, itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np

from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Text,
    Tuple,
    leaves,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_schemas.spaces import LeafSpace, Leaves, Space

Role: TypeAlias = Literal["observation", "action"]
_MAPPED = "Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple"
_REMEDIES: dict[Role, str] = {
    "observation": "wrap the environment, with gymnasium.wrappers.TransformObservation for example",
    "action": "wrap the environment, with gymnasium.wrappers.TransformAction for example",
}


def from_gymnasium(space: gym.Space[Any], role: Role, env: str | None = None) -> Space:
    """Describe a space, nested to any depth.

    Raises `SpaceError` for one that is not mapped to Arrow: it names the `env`, the `role`, the path within the tree
    and the remedy. Only the exact classes are mapped, since a subclass may mean its values differently.
    """
    return _describe(space, f"environment {env}: {role}" if env else role, _REMEDIES[role], ())


def snapshot(space: gym.Space[Any]) -> Any:
    """Take what `from_gymnasium` reads of a space, to see later whether that has changed, in place too.

    It is compared with `==`, in a fraction of what a description costs; None where the space is not mapped.
    """
    kind = type(space)
    return (kind, _CONTENTS[kind](space)) if kind in _CONTENTS else None


def batch_reader(space: Space) -> Callable[[Any], tuple[Any, ...]]:
    """Compile how a batch of n values, as gymnasium's vector environments hold it, becomes its leaves.

    Such a batch is a dict or tuple of batches where the space is a Dict or Tuple, an array (n, *shape) where it is
    a leaf, and a tuple of n strings where that is Text. Arrays are taken as they are, of whatever shape and dtype.

    The compiled function raises `TypeError`, `KeyError`, `IndexError` or `ValueError` where the structure is another.
    """
    if isinstance(space, Text):
        return lambda batch: (np.asarray(batch, object),)
    if not isinstance(space, Dict | Tuple):
        return lambda batch: (batch,)
    parts = leaves(space)
    if isinstance(space, Dict) and len(parts) > 1 and all(len(part.path) == 1 for part in parts) and not _texts(space):
        return itemgetter(*(part.path[0] for part in parts))
    texts = tuple(isinstance(part.space, Text) for part in parts)
    paths = tuple(_paths(space))

    def read(batch: Any) -> tuple[Any, ...]:
        found = (reduce(getitem, path, batch) for path in paths)
        return tuple(np.asarray(value, object) if text else value for value, text in zip(found, texts, strict=True))

    return read


def batch_writer(space: Space) -> Callable[[Leaves], Any]:
    """Compile the contrary of `batch_reader`: the leaves become a batch, cast to the dtypes of the space.

    Where a leaf is of its space's dtype already, the batch holds it without a copy.
    """
    if not isinstance(space, Dict | Tuple):
        return _only_leaf_writer(space)
    writers = tuple(_only_leaf_writer(leaf.space) for leaf in leaves(space))

    def write(values: Leaves) -> Any:
        return unflatten(space, [writer((value,)) for writer, value in zip(writers, values, strict=True)])

    return write


def _describe(space: Any, role: str, remedy: str, path: tuple[str, ...]) -> Space:
    def inner(space: Any, key: object) -> Space:
        return _describe(space, role, remedy, (*path, str(key)))

    kind = type(space)
    where = f"{role} space" + (f" at {'.'.join(path)!r}" if path else "")
    try:
        if kind is gym.spaces.Dict:
            return Dict(tuple((key, inner(part, key)) for key, part in space.spaces.items()))
        if kind is gym.spaces.Tuple:
            return Tuple(tuple(inner(part, position) for position, part in enumerate(space.spaces)))
        if kind in _LEAVES:
            described = _LEAVES[kind](space)
            _ = described.wire_dtype  # raises where there is none
            return described
    except _PlacedError:
        raise
    except SpaceError as error:
        raise _PlacedError(f"{where}: {error}") from error
    raise _PlacedError(
        f"{where}: {kind.__module__}.{kind.__qualname__} is not mapped to Arrow, only {_MAPPED} are, and no classes "
        f"derived from them: {remedy}"
    )


class _PlacedError(SpaceError):
    """It names its place in the tree already."""


def _box(space: gym.spaces.Box) -> Box:
    return Box(space.shape, np.dtype(space.dtype), _bounds(space.low), _bounds(space.high))


def _discrete(space: gym.spaces.Discrete) -> Discrete:
    return Discrete(int(space.n), int(space.start), np.dtype(space.dtype))


def _multi_discrete(space: gym.spaces.MultiDiscrete) -> MultiDiscrete:
    nvec, start = (tuple(int(value) for value in values.reshape(-1)) for values in (space.nvec, space.start))
    return MultiDiscrete(space.shape, nvec, start, np.dtype(space.dtype))


def _multi_binary(space: gym.spaces.MultiBinary) -> MultiBinary:
    return MultiBinary(space.shape, np.dtype(space.dtype))


def _text(space: gym.spaces.Text) -> Text:
    return Text(space.max_length, space.min_length, "".join(sorted(space.character_set)))


_LEAVES: dict[type, Callable[[Any], LeafSpace]] = {
    gym.spaces.Box: _box,
    gym.spaces.Discrete: _discrete,
    gym.spaces.MultiDiscrete: _multi_discrete,
    gym.spaces.MultiBinary: _multi_binary,
    gym.spaces.Text: _text,
}

_CONTENTS: dict[type, Callable[[Any], Any]] = {
    gym.spaces.Box: lambda box: (box.shape, box.dtype, box.low.tobytes(), box.high.tobytes()),
    gym.spaces.Discrete: attrgetter("n", "start", "dtype"),
    gym.spaces.MultiDiscrete: lambda many: (many.shape, many.dtype, many.nvec.tobytes(), many.start.tobytes()),
    gym.spaces.MultiBinary: attrgetter("shape", "dtype"),
    gym.spaces.Text: attrgetter("max_length", "min_length", "character_set"),
    gym.spaces.Dict: lambda parts: tuple((key, snapshot(part)) for key, part in parts.spaces.items()),
    gym.spaces.Tuple: lambda parts: tuple(map(snapshot, parts.spaces)),
}


def _bounds(values: np.ndarray[Any, Any]) -> tuple[float, ...]:
    flat = values.reshape(-1).tolist()
    return (float(flat[0]),) if len(set(flat)) == 1 else tuple(float(bound) for bound in flat)


def _texts(space: Space) -> bool:
    return any(isinstance(leaf.space, Text) for leaf in leaves(space))


def _paths(space: Space, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The keys and positions that lead to each leaf."""
    if isinstance(space, Dict):
        for key, inner in space.spaces:
            yield from _paths(inner, (*path, key))
    elif isinstance(space, Tuple):
        for position, inner in enumerate(space.spaces):
            yield from _paths(inner, (*path, position))
    else:
        yield path


def _only_leaf_writer(space: LeafSpace) -> Callable[[Leaves], Any]:
    if isinstance(space, Text):
        return lambda values: tuple(values[0])
    dtype = space.dtype

    def write(values: Leaves) -> Any:
        (value,) = values
        # A copy in any case: an env may change what it is given, and what was drawn is recorded.
        return value.astype(dtype)

    return write
