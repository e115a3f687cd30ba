"""Observations of many envs, checked and copied into arrays with a call per leaf of their space."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.contained import told
from penstock_producers.envs.casting import cast
from penstock_producers.envs.lanes.containment import OBSERVATION, Fault
from penstock_schemas.spaces import Box, Dict, Text, Tuple, leaves
from penstock_schemas.spaces.arrays import utf8_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaf, Leaves, Space

# So many numbers are compared one by one sooner than by numpy.
_FEW = 32


class Observations:
    """Room for the observations of n envs: an array (n, *shape) for each leaf of their space, in `leaves`.

    An array of another dtype is taken where numpy calls its cast safe, which is what gymnasium's spaces take too: no
    value changes by it but integers above 2^53, which float64 rounds. Plain numbers and lists of them are cast where
    none changes.
    """

    def __init__(
        self,
        space: Space,
        n: int,
        allocate: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]],
        *,
        check_bounds: bool,
    ) -> None:
        self._space = space
        self._plain = not isinstance(space, Dict | Tuple)
        self._columns = tuple(_LeafColumn(leaf, n, allocate, check_bounds=check_bounds) for leaf in leaves(space))
        self.leaves: Leaves = tuple(column.values for column in self._columns)

    def put(self, start: int, observations: Sequence[Any]) -> None:
        """Copy observations to the rows from `start` on; raises `Fault` where any of them is not of the space."""
        if self._plain:
            self._columns[0].put(start, observations)
            return
        try:
            parts = list(_part(self._space, observations))
        except (TypeError, KeyError, IndexError, ValueError) as error:
            detail = f"its structure is not the space's: {told(error)}"
            raise Fault(OBSERVATION, detail) from None
        for column, values in zip(self._columns, parts, strict=True):
            column.put(start, values)


class _LeafColumn:
    def __init__(
        self,
        leaf: Leaf,
        n: int,
        allocate: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]],
        *,
        check_bounds: bool,
    ) -> None:
        self._leaf = leaf
        self._space = space = leaf.space
        self._check = check_bounds or not isinstance(space, Box | Text)
        self._limits = _limits(space) if isinstance(space, Box) and space.dtype.kind == "f" else None
        self.values = allocate((n, *space.shape), space.dtype)
        self._joined = self.values.reshape(-1, *space.shape[1:]) if space.shape else None

    def put(self, start: int, values: Sequence[Any]) -> None:
        stop = start + len(values)
        if self._joined is None or not self._join(start, values):
            self.values[start:stop] = self._convert(values)
        if self._check and not self._contains(self.values[start:stop]):
            raise self._fault(f"it is outside its space: {_summary(self.values[start])}")

    def _contains(self, values: NDArray[Any]) -> bool:
        if self._limits is not None and values.size <= _FEW:
            pairs = zip(values.ravel().tolist(), cycle(self._limits), strict=False)
            return all(low <= value <= high for value, (low, high) in pairs)
        return bool(self._space.contains(values).all())

    def _join(self, start: int, values: Sequence[Any]) -> bool:
        """Copy arrays as they are, in one call; whether that was possible."""
        joined, extent = self._joined, self._space.shape[0]
        assert joined is not None  # noqa: S101 - asked by the caller, for the type checker only
        try:
            np.concatenate(values, out=joined[start * extent : (start + len(values)) * extent], casting="safe")
            return list(map(len, values)).count(extent) == len(values)
        except (TypeError, ValueError):
            return False

    def _convert(self, values: Sequence[Any]) -> NDArray[Any]:
        space = self._space
        if isinstance(space, Text):
            for value in values:
                self._check_text(value, space)
            return np.array(values, object)
        try:
            array = np.array(values)
        except ValueError:  # of unequal shapes
            array = np.empty((), object)
        if array.shape != (len(values), *space.shape) or array.dtype.kind not in "fiub":
            raise self._fault(f"it is {_kind_of(values[0])}, but its space has shape {space.shape}")
        if isinstance(space, Box):
            plain = not any(isinstance(value, np.ndarray) for value in values)
            integers = plain and array.dtype.kind in "iu" and space.dtype.kind in "iu"
            if not (integers or np.can_cast(array.dtype, space.dtype, "same_kind" if plain else "safe")):
                raise self._fault(f"it is {_kind_of(values[0])}, but its space has dtype {space.dtype}")
            kept = cast(array, space.dtype)
            if kept is None:
                raise self._fault(f"it is {values[0]!r}, which its space's dtype {space.dtype} does not hold")
            return kept
        if array.dtype.kind == "f":
            raise self._fault(f"it is {_kind_of(values[0])}, but its space has dtype {space.dtype}")
        if not space.contains(array).all():  # before a cast could wrap it
            raise self._fault(f"it is outside its space: {_summary(array[0])}")
        return array

    def _check_text(self, value: Any, space: Text) -> None:
        """Refuse what no message holds, also where bounds are not checked: messages are planned by the length."""
        if not isinstance(value, str):
            raise self._fault(f"it is no string but a {type(value).__name__}")
        if len(value) > space.max_length:
            raise self._fault(f"it has {len(value)} characters, but its space has {space.max_length} at most")
        if utf8_size(value) is None:
            raise self._fault("it has a lone surrogate, which UTF-8 has not")

    def _fault(self, detail: str) -> Fault:
        return Fault(OBSERVATION, f"{self._leaf.name('observation')}: {detail}")


def _part(space: Space, observations: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Part observations of the space's structure into what each leaf holds of all of them."""
    if isinstance(space, Dict):
        if any(len(observation) != len(space.spaces) for observation in observations):
            raise ValueError(f"it has not the keys {[key for key, _ in space.spaces]}")
        for key, inner in space.spaces:
            yield from _part(inner, [observation[key] for observation in observations])
    elif isinstance(space, Tuple):
        for inner, values in zip(space.spaces, zip(*observations, strict=True), strict=True):
            yield from _part(inner, values)
    else:
        yield observations


def _limits(space: Box) -> list[tuple[float, float]]:
    """Each element's bounds in the box's dtype, or one pair for all elements."""
    bounds = (np.array(bound).astype(space.dtype).tolist() for bound in np.broadcast_arrays(space.low, space.high))
    return list(zip(*bounds, strict=True))


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"


def _summary(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"values from {value.min()} to {value.max()}"
    return repr(value.item() if isinstance(value, np.generic | np.ndarray) else value)
