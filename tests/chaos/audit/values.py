"""List columns as values that can be cut by rows, joined by episodes and hashed, the same however they were cut."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

# One item a step: an array (items, width), or a list where an item may be absent or is text.
Items: TypeAlias = "np.ndarray[Any, Any] | list[Any]"


def overlaps(name: str) -> bool:
    """Whether a column has an item on either side of each step."""
    return name.startswith(("observation", "info."))


class Lists:
    """The rows of a list column."""

    def __init__(self, column: pa.ListArray) -> None:
        self._offsets = column.offsets.to_pylist()
        field = column.type.value_field
        if field.nullable or pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            self._items: Items = column.values.to_pylist()
        else:
            self._items = numbers(column.values)

    def __getitem__(self, row: int) -> Items:
        return self._items[self._offsets[row] : self._offsets[row + 1]]

    def length(self, row: int) -> int:
        return int(self._offsets[row + 1] - self._offsets[row])

    @property
    def end_to_end(self) -> bool:
        """Whether the rows are all that there is."""
        return bool(self._offsets[0] == 0 and self._offsets[-1] == len(self._items))


def numbers(values: pa.Array) -> np.ndarray[Any, Any]:
    """Fixed-size items without nulls, shape (items, width)."""
    if pa.types.is_fixed_size_list(values.type):
        flat: np.ndarray[Any, Any] = values.flatten().to_numpy()
        return flat.reshape(len(values), -1)
    plain: np.ndarray[Any, Any] = values.to_numpy()
    return plain.reshape(-1, 1)


def joined(name: str, pieces: Sequence[Items]) -> Items:
    """The items of consecutive chunks; what two share, the later one holds."""
    kept = [piece[:-1] for piece in pieces[:-1]] + [pieces[-1]] if overlaps(name) else list(pieces)
    if isinstance(kept[0], np.ndarray):
        return np.concatenate(kept)
    return [item for piece in kept for item in piece]


def content_hash(items: Items) -> bytes:
    """A hash that every bit of every item has a part in."""
    data = np.ascontiguousarray(items).tobytes() if isinstance(items, np.ndarray) else repr(items).encode()
    return hashlib.blake2b(data, digest_size=16).digest()


def first_difference(expected: Items, found: Items) -> str:
    """Where two columns part, and whether one is the other in another order."""
    ours, theirs = (
        [repr(item) for item in np.asarray(part).tolist()]
        if isinstance(part, np.ndarray)
        else [repr(item) for item in part]
        for part in (expected, found)
    )
    if ours == theirs:
        return "values that look alike and are not the same bits"
    order = "the right items in the wrong order, " if sorted(ours) == sorted(theirs) else ""
    at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    shown = [part[at] if at < len(part) else "nothing" for part in (ours, theirs)]
    return f"{order}item {at} is {shown[1]}, the log says {shown[0]}"


def same(expected: Any, found: Any) -> bool:
    """Equal, not-a-number being itself, and a sum of floats being the same in any order."""
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12) or (
            math.isnan(expected) and math.isnan(found)
        )
    return bool(expected == found)
