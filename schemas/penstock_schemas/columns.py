"""List columns: an item a step, or one more, as numpy arrays and as Arrow lists, without a copy either way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces.arrays import OFFSET_BYTES, WIRE_DTYPES, travels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaf
    from penstock_schemas.spaces.arrays import Json

_TEXT = "str"
# What one string counts where nothing bounds its length.
_TEXT_BYTES = 64


@dataclass(frozen=True)
class Column:
    """One list column: an item a step, or, where `overlap`, one more (an observation on either side).

    Attributes:
        name: of the column.
        shape: of one item.
        dtype: of one item; object for text.
        overlap: whether there is an item before the first step too.
        nullable: whether an item may be absent.
        max_item_bytes: how many bytes one string takes at most, its offset included; None for arrays.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    overlap: bool = False
    nullable: bool = False
    max_item_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.is_text:
            if self.shape:
                raise SpaceError(f"column {self.name!r} of strings of shape {self.shape}: a string has no shape")
        elif not travels(self.dtype):
            raise SpaceError(f"column {self.name!r} of dtype {self.dtype}: use one of {', '.join(WIRE_DTYPES)}")
        if any(extent < 1 for extent in self.shape):
            raise SpaceError(f"column {self.name!r} of shape {self.shape}: every extent is at least 1")

    @classmethod
    def of(cls, leaf: Leaf, root: str, *, overlap: bool = False) -> Column:
        """The column of a space's leaf, named below `root`."""
        space = leaf.space
        most = space.item_bytes if space.wire_dtype.kind == "O" else None
        return cls(leaf.name(root), space.shape, space.wire_dtype, overlap, max_item_bytes=most)

    @cached_property
    def is_text(self) -> bool:
        """Whether the items are strings."""
        return self.dtype.kind == "O"

    @cached_property
    def item_type(self) -> pa.DataType:
        """The Arrow type of one item: a primitive, a string, or a flat fixed-size list in C order."""
        if self.is_text:
            return pa.string()
        primitive = pa.from_numpy_dtype(self.dtype)
        return pa.list_(pa.field("item", primitive, nullable=False), prod(self.shape)) if self.shape else primitive

    @cached_property
    def field(self) -> pa.Field:
        """The Arrow field; shape and dtype stand in its metadata, for readers that know only Arrow."""
        item = pa.field("item", self.item_type, nullable=self.nullable)
        return pa.field(self.name, pa.list_(item), nullable=False, metadata=self._metadata)

    @cached_property
    def row_field(self) -> pa.Field:
        """The Arrow field of a column that has one item a row, and no list."""
        return pa.field(self.name, self.item_type, nullable=self.nullable, metadata=self._metadata)

    @cached_property
    def _metadata(self) -> dict[str, str]:
        return {"shape": json.dumps(list(self.shape)), "dtype": _name(self.dtype)}

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes of one item; of a string, those of its offset."""
        return OFFSET_BYTES if self.is_text else self.dtype.itemsize * prod(self.shape)

    @cached_property
    def item_bytes(self) -> int:
        """Bytes of one item and of whether it is there; of a string, at most."""
        return (self.max_item_bytes or _TEXT_BYTES if self.is_text else self.fixed_bytes) + self.nullable

    def to_json(self) -> Json:
        """Describe the column; `from_json` reads it back."""
        described = {"name": self.name, "shape": list(self.shape), "dtype": _name(self.dtype)}
        # Few are: what is said of every column travels with every message.
        return described | {"nullable": True} if self.nullable and not self.overlap else described

    @classmethod
    def from_json(cls, described: Mapping[str, Any], *, overlap: bool = False, nullable: bool = False) -> Column:
        """Read a description; raises `KeyError`, `TypeError`, `ValueError` or `SpaceError` where it is none."""
        name, kind = described["name"], described["dtype"]
        if not isinstance(name, str):
            raise TypeError(f"a column named {name!r}: a name is text")
        dtype = np.dtype(object) if kind == _TEXT else np.dtype(kind)
        nullable = nullable or bool(described.get("nullable", False))
        return cls(name, tuple(described["shape"]), dtype, overlap, nullable)


def list_column(
    column: Column, values: NDArray[Any], offsets: NDArray[np.int32], valid: NDArray[np.bool_] | None = None
) -> pa.ListArray:
    """Make a list column of `values`, shape (n, *column.shape), row i being `offsets[i]:offsets[i + 1]`.

    Items are null where `valid`, shape (n,), is False.
    """
    items = _items(column, values, None if valid is None or valid.all() else ~valid)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=column.field.type)


def item_column(column: Column, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Make a column of one item a row of `values`, shape (rows, *column.shape); null where `valid` is False."""
    return _items(column, values, None if valid is None or valid.all() else ~valid)


def item_values(array: pa.Array, column: Column) -> NDArray[Any]:
    """View the items of a column that has one a row, shape (rows, *column.shape).

    What stands where an item is null has no meaning.
    """
    return _values(array, column)


def list_values(array: pa.ListArray, column: Column) -> NDArray[Any]:
    """View the items of a list column whose lists lie end to end, shape (n, *column.shape).

    What stands where an item is null has no meaning, but None for text.
    """
    return _values(array.flatten(), column)


def _values(items: pa.Array, column: Column) -> NDArray[Any]:
    if column.is_text:
        texts: NDArray[Any] = items.to_numpy(zero_copy_only=False)
        return texts
    size = prod(column.shape)
    flat = items.values.slice(items.offset * size, len(items) * size) if column.shape else items
    if flat.null_count:
        flat = pa.Array.from_buffers(flat.type, len(flat), [None, flat.buffers()[1]], offset=flat.offset)
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=True)
    return values.reshape(len(items), *column.shape)


def list_valid(array: pa.ListArray) -> NDArray[np.bool_] | None:
    """Tell which items of a list column are there, shape (n,); None where all are."""
    items = array.flatten()
    if not items.null_count:
        return None
    valid: NDArray[np.bool_] = items.is_valid().to_numpy(zero_copy_only=False)
    return valid


def lists_valid(arrays: Sequence[pa.ListArray]) -> NDArray[np.bool_] | None:
    """Tell which items of list columns, laid end to end, are there, shape (n,); None where all are."""
    parts = [list_valid(array) for array in arrays]
    if all(part is None for part in parts):
        return None
    return np.concatenate(
        [
            np.ones(len(array.flatten()), np.bool_) if part is None else part
            for part, array in zip(parts, arrays, strict=True)
        ]
    )


def ranges(start: NDArray[Any], length: NDArray[Any]) -> NDArray[np.int64]:
    """Lay the ranges `start[i]:start[i] + length[i]` end to end: the items of some lists."""
    ends = np.cumsum(length)
    laid: NDArray[np.int64] = np.repeat(start - (ends - length), length) + np.arange(ends[-1] if len(ends) else 0)
    return laid


def list_offsets(array: pa.ListArray) -> NDArray[np.int32]:
    """View the offsets of a list column, shape (rows + 1,)."""
    offsets: NDArray[np.int32] = array.offsets.to_numpy(zero_copy_only=True)
    return offsets


def _items(column: Column, values: NDArray[Any], absent: NDArray[np.bool_] | None) -> pa.Array:
    if column.is_text:
        return pa.array(values, pa.string(), mask=absent)
    if not column.shape:
        return pa.array(np.ascontiguousarray(values, column.dtype), mask=absent)
    flat = pa.array(np.ascontiguousarray(values, column.dtype).reshape(-1))
    mask = None if absent is None else pa.array(absent)
    return pa.FixedSizeListArray.from_arrays(flat, type=column.item_type, mask=mask)


def _name(dtype: np.dtype[Any]) -> str:
    return _TEXT if dtype.kind == "O" else dtype.name
