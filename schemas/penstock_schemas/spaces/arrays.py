"""The spaces whose values are arrays: the leaves of every space."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from penstock_schemas.errors import SpaceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Json: TypeAlias = "dict[str, Any]"

WIRE_DTYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
# A character takes at most so many bytes in UTF-8.
_CHARACTER_BYTES = 4
# Of a string or a list in Arrow.
OFFSET_BYTES = 4


def travels(dtype: np.dtype[Any]) -> bool:
    """Whether Arrow takes arrays of a dtype as they are; it takes none of the other byte order."""
    return dtype.name in WIRE_DTYPES and dtype.isnative


class LeafSpace(Protocol):
    """A space whose values are arrays of one shape and dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that the environment gives or takes; object for text."""
        ...

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """The dtype that travels and is stored; object for text."""
        ...

    @property
    def item_bytes(self) -> int:
        """How many bytes one value takes on the wire, at most."""
        ...

    def contains(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which of `values`, shape (n, *shape), are of this space, shape (n,); bounds and NaN count."""
        ...

    def outside(self, values: NDArray[Any]) -> str | None:
        """Say why `values`, shape (n, *shape), cannot all be of this space; None where they may be."""
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
        if self.dtype != np.bool_ and not travels(self.dtype):
            raise SpaceError(f"Box of dtype {self.dtype}: not mapped to Arrow; use bool or {', '.join(WIRE_DTYPES)}")
        if prod(self.shape) == 0:
            raise SpaceError(f"Box of shape {self.shape}: an empty box holds nothing to record; drop it")

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """The box's own dtype; a byte for a bool, so that it is read without unpacking bits."""
        return np.dtype(np.uint8) if self.dtype == np.bool_ else self.dtype

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize * prod(self.shape)

    @cached_property
    def _bounds(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Both bounds in the box's dtype; None where they allow all that the dtype holds."""
        low, high = (np.asarray(bounds, np.float64) for bounds in (self.low, self.high))
        if self.dtype.kind != "f":
            least, most = (0, 1) if self.dtype == np.bool_ else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
            if (low <= float(least)).all() and (high >= float(most)).all():
                return None
            low, high = np.clip(low, float(least), float(most)), np.clip(high, float(least), float(most))
        shape = self.shape if low.size > 1 or high.size > 1 else (1,) * len(self.shape)
        dtype = self.dtype if self.dtype.kind == "f" else np.dtype(np.float64)
        return tuple(np.broadcast_to(bound.astype(dtype), prod(shape)).reshape(shape) for bound in (low, high))  # type: ignore[return-value]  # two of them

    def contains(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which values lie within the bounds; NaN does not, an infinity does where the bound is one."""
        n = len(values)
        if self._bounds is None:
            return np.ones(n, np.bool_)
        low, high = self._bounds
        inside = np.asarray(values >= low)
        inside &= values <= high
        if inside.all():  # as nearly always: along an axis it takes several times as long
            return np.ones(n, np.bool_)
        return np.asarray(inside.reshape(n, prod(self.shape)).all(axis=1))

    def outside(self, values: NDArray[Any]) -> str | None:
        """Bounds of boxes are advice that environments often break, so all values of the dtype may be."""
        if self.dtype == np.bool_ and len(values) and values.max() > 1:
            return f"a value of a bool above 1: {values.max()}"
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
        return _smallest(self.start, self.start + self.n - 1, f"Discrete(n={self.n}, start={self.start})")

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return self.wire_dtype.itemsize

    def contains(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which values are among the integers."""
        inside: NDArray[np.bool_] = (values >= self.start) & (values < self.start + self.n)
        return inside

    def outside(self, values: NDArray[Any]) -> str | None:
        """Say which value is none of the space's."""
        if len(values) and not (self.start <= values.min() and values.max() < self.start + self.n):
            return f"a value outside {self.start} … {self.start + self.n - 1}: {values.min()} … {values.max()}"
        return None

    def to_json(self) -> Json:
        """Describe the space."""
        return {"type": "Discrete", "n": self.n, "start": self.start, "dtype": self.dtype.name}


@dataclass(frozen=True)
class MultiDiscrete:
    """An array of integers: element i, in C order, is one of `start[i] … start[i] + nvec[i] - 1`."""

    shape: tuple[int, ...]
    nvec: tuple[int, ...]
    start: tuple[int, ...]
    dtype: np.dtype[Any] = field(default=np.dtype(np.int64))

    def __post_init__(self) -> None:
        if not self.nvec or min(self.nvec) < 1:
            raise SpaceError(f"MultiDiscrete({list(self.nvec)}): each element has at least one value, and there is one")
        if not len(self.nvec) == len(self.start) == prod(self.shape):
            raise SpaceError(f"MultiDiscrete of shape {self.shape}: {len(self.nvec)} nvec and {len(self.start)} starts")

    @cached_property
    def wire_dtype(self) -> np.dtype[Any]:
        """The smallest integer type that holds every element's values."""
        most = max(start + n - 1 for start, n in zip(self.start, self.nvec, strict=True))
        return _smallest(min(self.start), most, f"MultiDiscrete(nvec={list(self.nvec)}, start={list(self.start)})")

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last value of each element; a number of values may be too large for an array."""
        last = [start + n - 1 for start, n in zip(self.start, self.nvec, strict=True)]
        return np.array(self.start, np.int64), np.array(last, np.int64)

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return self.wire_dtype.itemsize * prod(self.shape)

    def contains(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which values have each element among its integers."""
        first, last = self._bounds
        flat = values.reshape(len(values), prod(self.shape))
        return np.asarray(((flat >= first) & (flat <= last)).all(axis=1))

    def outside(self, values: NDArray[Any]) -> str | None:
        """Say that a value is none of the space's."""
        inside = self.contains(values)
        if inside.all():
            return None
        return (
            f"a value outside nvec {list(self.nvec)} from {list(self.start)}: {values[int(inside.argmin())].tolist()}"
        )

    def to_json(self) -> Json:
        """Describe the space."""
        described = {"shape": list(self.shape), "nvec": list(self.nvec), "start": list(self.start)}
        return {"type": "MultiDiscrete", **described, "dtype": self.dtype.name}


@dataclass(frozen=True)
class MultiBinary:
    """An array of zeros and ones."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(default=np.dtype(np.int8))

    def __post_init__(self) -> None:
        if prod(self.shape) == 0:
            raise SpaceError(f"MultiBinary of shape {self.shape}: it holds nothing to record; drop it")

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """A byte."""
        return np.dtype(np.int8)

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return prod(self.shape)

    def contains(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which values are zeros and ones only."""
        inside: NDArray[np.bool_] = ((values == 0) | (values == 1)).reshape(len(values), prod(self.shape)).all(axis=1)
        return inside

    def outside(self, values: NDArray[Any]) -> str | None:
        """Say that a value is neither 0 nor 1."""
        if len(values) and not (values.min() >= 0 and values.max() <= 1):
            return f"a value that is neither 0 nor 1: {values.min()} … {values.max()}"
        return None

    def to_json(self) -> Json:
        """Describe the space."""
        return {"type": "MultiBinary", "shape": list(self.shape), "dtype": self.dtype.name}


@dataclass(frozen=True)
class Text:
    """A string of `min_length` to `max_length` characters; `characters` are those allowed, None for all."""

    max_length: int
    min_length: int = 0
    characters: str | None = None

    shape = ()
    dtype = wire_dtype = np.dtype(object)

    def __post_init__(self) -> None:
        if not 0 <= self.min_length <= self.max_length:
            raise SpaceError(f"Text of {self.min_length} to {self.max_length} characters: no string is of that length")

    @property
    def item_bytes(self) -> int:
        """Bytes of one string, its offset included, at most."""
        return OFFSET_BYTES + _CHARACTER_BYTES * self.max_length

    def contains(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which values are strings of these lengths and characters, and can be written as UTF-8."""
        return np.fromiter((self._holds(value) for value in values), np.bool_, len(values))

    def outside(self, values: NDArray[Any]) -> str | None:
        """Lengths and characters are advice, as the bounds of a box are."""
        del values
        return None

    def to_json(self) -> Json:
        """Describe the space."""
        lengths = {"max_length": self.max_length, "min_length": self.min_length}
        return {"type": "Text", **lengths, "characters": self.characters}

    def _holds(self, value: object) -> bool:
        if not (isinstance(value, str) and self.min_length <= len(value) <= self.max_length):
            return False
        if self.characters is not None and not set(value) <= set(self.characters):
            return False
        return utf8_size(value) is not None


def utf8_size(text: str) -> int | None:
    """Count a text's bytes in UTF-8; None where it has none, for a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _smallest(least: int, most: int, what: str) -> np.dtype[Any]:
    for name in _INTEGERS:
        bounds = np.iinfo(name)
        if bounds.min <= least and most <= bounds.max:
            return np.dtype(name)
    raise SpaceError(f"{what}: its values do not fit into 64 bits")


def _finite(bound: float) -> float | str:
    return bound if np.isfinite(bound) else str(bound)
