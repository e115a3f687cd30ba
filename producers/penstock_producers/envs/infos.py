"""Infos: which keys are recorded, as which columns, and where their values wait to be recorded."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.envs.casting import cast
from penstock_schemas.columns import Column
from penstock_schemas.errors import EnvError, SpaceError
from penstock_schemas.spaces.arrays import OFFSET_BYTES, utf8_size
from penstock_schemas.stream import INFO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Info

_LOG = logging.getLogger(__name__)
# A longer text is left out: messages are planned by what a step takes at most.
MAX_TEXT_BYTES = 256
_DETAIL_CHARACTERS = 100
_NUMBERS = "biuf"


def info_columns(keys: Sequence[str], samples: Iterable[Mapping[str, Any]], name: str) -> tuple[Column, ...]:
    """Type the columns of the infos `keys`, each by the first of `samples` that has it.

    A bool becomes uint8, an int int64, a float float64 and a string text; an array keeps its dtype and shape. Where a
    later sample is of the same shape and a wider dtype, it is that one's: an int may be a float elsewhere.

    Args:
        keys: top-level keys of an env's infos.
        samples: infos of single envs; None as a value is as if the key were not there.
        name: of the environment, for the error.

    Raises:
        EnvError: a key that no sample has, or whose value cannot be recorded.
    """
    seen: dict[str, Any] = {}
    for sample in samples:
        seen |= {key: _wider(seen.get(key), value) for key, value in sample.items() if value is not None}
    columns = []
    for key in keys:
        if key not in seen:
            there = ", ".join(sorted(map(repr, seen))) or "none at all"
            raise EnvError(
                f"environment {name}: no info {key!r} came with its first reset and steps; the keys that did are "
                f"{there}; choose among them"
            )
        columns.append(_column(key, seen[key], name))
    return tuple(columns)


class LeftOut(NamedTuple):
    """Values that their column cannot hold, and so many of them."""

    key: str
    times: int
    first: str
    """What the first of the key ever was, in words."""


class Unstorable(Counter[str]):
    """How many values were left out since their column cannot hold them, by key; the first of each key is logged."""

    def add(self, left_out: Iterable[LeftOut]) -> None:
        """Count what was left out."""
        for key, times, first in left_out:
            if key not in self:
                _LOG.warning("%s", first)
            self[key] += times


class InfoBuffer:
    """The recorded infos of n envs: of each column the values, and whether they are there.

    Args:
        columns: named "info.<key>".
        n: the number of envs.
        allocate: makes an array of a shape and a dtype.

    Attributes:
        values: an array (n, *column shape) for each column; None stands for a text that is not there.
        valid: an array (n,) of bools for each column.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        n: int,
        allocate: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]] = np.zeros,
    ) -> None:
        self.values = tuple(allocate((n, *column.shape), column.dtype) for column in columns)
        self.valid = tuple(allocate((n,), np.dtype(np.bool_)) for _ in columns)
        self._left_out: Counter[str] = Counter()
        # The first of each key that was ever left out.
        self._first: dict[str, str] = {}
        keys = (column.name.removeprefix(INFO) for column in columns)
        self._slots = tuple(zip(keys, columns, self.values, self.valid, strict=True))

    def put(self, i: int, info: Mapping[str, Any]) -> None:
        """Keep what `info`, of env i, holds of the columns; what a column cannot hold is left out."""
        for key, column, values, valid in self._slots:
            value = info.get(key)
            stored = None if value is None else _fitted(value, column)
            valid[i] = there = stored is not None
            if there or column.is_text:
                values[i] = stored
            if not there and value is not None:
                self._leave_out(key, value, column)

    def rows(self, n: int) -> tuple[Info, ...]:
        """View the first n envs' infos."""
        return tuple((values[:n], valid[:n]) for values, valid in zip(self.values, self.valid, strict=True))

    def take_left_out(self) -> tuple[LeftOut, ...]:
        """Tell what was left out since this was asked before."""
        if not self._left_out:
            return ()
        taken = tuple(LeftOut(key, times, self._first[key]) for key, times in self._left_out.items())
        self._left_out.clear()
        return taken

    def _leave_out(self, key: str, value: Any, column: Column) -> None:
        self._left_out[key] += 1
        if key not in self._first:
            self._first[key] = (
                f"info {key!r} is recorded with shape {column.shape} and dtype {column.dtype}, so "
                f"{repr(value)[:_DETAIL_CHARACTERS]} cannot be stored: such values are left out"
            )


def _column(key: str, value: Any, name: str) -> Column:
    if isinstance(value, str):
        return Column(
            INFO + key, (), np.dtype(object), overlap=True, nullable=True, max_item_bytes=OFFSET_BYTES + MAX_TEXT_BYTES
        )
    try:
        array = np.asarray(value)
        dtype = np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype
        # Whatever numpy makes an object of is no text, which a column of objects would take it for.
        dtype = np.dtype(np.void) if dtype.kind == "O" else dtype
        return Column(INFO + key, array.shape, dtype, overlap=True, nullable=True)
    except (SpaceError, ValueError) as error:
        raise EnvError(
            f"environment {name}: info {key!r} is a {type(value).__name__}, which cannot be recorded: {error}; "
            "leave it out, or have it be a number, a string or an array"
        ) from error


def _wider(seen: Any, value: Any) -> Any:
    """What types a column: what was seen first, in the dtype of both where both are numbers of one shape."""
    if seen is None:
        return value
    one, other = _array(seen), _array(value)
    if one is None or other is None or one.shape != other.shape:
        return seen
    numbers = one.dtype.kind in _NUMBERS and other.dtype.kind in _NUMBERS
    return one.astype(np.result_type(one, other)) if numbers else seen


def _fitted(value: Any, column: Column) -> Any:
    """Cast a value to its column's dtype; None where that would change its shape or value."""
    if column.is_text:
        size = utf8_size(value) if isinstance(value, str) else None
        return None if size is None or size > MAX_TEXT_BYTES else value
    array = _array(value)
    if array is None or array.shape != column.shape or not np.can_cast(array.dtype, column.dtype, "same_kind"):
        return None
    return cast(array, column.dtype)


def _array(value: Any) -> NDArray[Any] | None:
    """Read a value as an array; None where it is none, as a list of lists of unequal lengths."""
    try:
        return np.asarray(value)
    except Exception:  # noqa: BLE001 - an object of the env's own may raise anything when it is read
        return None
