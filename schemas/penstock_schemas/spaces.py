"""Spaces ↔ Arrow: how one observation or action is typed, stored and read back, bit for bit.

A space here is a plain description that needs no gymnasium, so that a learner can read it; a producer makes it
from the environment's own space.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock_schemas.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Json: TypeAlias = "dict[str, Any]"

BOX_DTYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")


class Space(Protocol):
    """What a mapped space can do."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that the environment gives or takes."""
        ...

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """The dtype that travels and is stored."""
        ...

    def outside(self, values: NDArray[Any]) -> str | None:
        """Say why `values`, shape (n, *shape), are not all of this space; None where they are."""
        ...

    def to_json(self) -> Json:
        """Describe the space; `space_from_json` reads it back."""
        ...


@dataclass(frozen=True)
class Box:
    """An array of one shape and dtype; `low` and `high` are C-ordered values, or one for all elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: tuple[float, ...] = (-np.inf,)
    high: tuple[float, ...] = (np.inf,)

    def __post_init__(self) -> None:
        if self.dtype.name not in BOX_DTYPES:
            raise SpaceError(f"Box of dtype {self.dtype}: not mapped to Arrow; use one of {', '.join(BOX_DTYPES)}")
        if prod(self.shape) == 0:
            raise SpaceError(f"Box of shape {self.shape}: an empty box holds nothing to record; drop it")

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """The box's own dtype."""
        return self.dtype

    def outside(self, values: NDArray[Any]) -> str | None:
        """Bounds of boxes are advice that environments often break, so all values of the dtype are allowed."""
        del values
        return None

    def to_json(self) -> Json:
        """Describe the space; infinities are written as strings, since JSON has none."""
        return {
            "type": "Box",
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "low": [_finite(bound) for bound in self.low],
            "high": [_finite(bound) for bound in self.high],
        }


@dataclass(frozen=True)
class Discrete:
    """The integers `start … start + n - 1`, stored in the smallest integer type that holds them."""

    n: int
    start: int = 0
    dtype: np.dtype[Any] = field(default=np.dtype(np.int64))

    def __post_init__(self) -> None:
        if self.n < 1:
            raise SpaceError(f"Discrete({self.n}): a discrete space has at least one value")

    @property
    def shape(self) -> tuple[int, ...]:
        """A scalar."""
        return ()

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """The smallest integer type that holds every value."""
        for name in _INTEGERS:
            bounds = np.iinfo(name)
            if bounds.min <= self.start and self.start + self.n - 1 <= bounds.max:
                return np.dtype(name)
        raise SpaceError(f"Discrete(n={self.n}, start={self.start}): its values do not fit into 64 bits")

    def outside(self, values: NDArray[Any]) -> str | None:
        """Say which value is none of the space's."""
        if len(values) and not (self.start <= values.min() and values.max() < self.start + self.n):
            return f"a value outside {self.start} … {self.start + self.n - 1}: {values.min()} … {values.max()}"
        return None

    def to_json(self) -> Json:
        """Describe the space."""
        return {"type": "Discrete", "n": self.n, "start": self.start, "dtype": self.dtype.name}


def space_from_json(described: Mapping[str, Any]) -> Space:
    """Read a space that `Space.to_json` described; raises `SpaceError` for a type that is not mapped."""
    match described["type"]:
        case "Box":
            low, high = (tuple(float(bound) for bound in described[side]) for side in ("low", "high"))
            return Box(tuple(described["shape"]), np.dtype(described["dtype"]), low, high)
        case "Discrete":
            return Discrete(described["n"], described["start"], np.dtype(described["dtype"]))
        case other:
            raise SpaceError(f"space type {other!r}: this version of Penstock does not map it to Arrow")


def arrow_type(shape: tuple[int, ...], dtype: np.dtype[Any]) -> pa.DataType:
    """Type one item: a primitive, or a flat fixed-size list in C order where it has a rank."""
    primitive = pa.from_numpy_dtype(dtype)
    return pa.list_(pa.field("item", primitive, nullable=False), prod(shape)) if shape else primitive


def to_arrow(values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> pa.Array:
    """Wrap `values`, shape (n, *shape) of `dtype`, without a copy where they are contiguous."""
    flat = pa.array(np.ascontiguousarray(values, dtype).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=arrow_type(shape, dtype)) if shape else flat


def to_numpy(array: pa.Array, shape: tuple[int, ...]) -> NDArray[Any]:
    """View an array of items without nulls as shape (n, *shape), without a copy."""
    flat: NDArray[Any] = (array.flatten() if shape else array).to_numpy(zero_copy_only=True)
    return flat.reshape(len(array), *shape)


def _finite(bound: float) -> float | str:
    return bound if np.isfinite(bound) else str(bound)
