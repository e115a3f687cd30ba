"""Where the observations of a fragment lie: small ones in the order of the log, large ones env by env."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.columns import Column

# From here on copying a value costs more than finding its place.
LARGE_BYTES = 1024


class Values(Protocol):
    """One value for each row of the log."""

    large: bool
    """Whether those of an env lie end to end, so that they need not be gathered."""

    def put(self, rows: slice, env: NDArray[np.int32], values: NDArray[Any]) -> None:
        """Copy the values of rows that are logged now, which are of these envs."""
        ...

    def take(self, rows: NDArray[np.intp], ends: Sequence[int]) -> list[NDArray[Any]]:
        """Gather the values of rows, sorted by env and in the order of the log, in parts that end where `ends` says.

        A part may be a view, which holds until the next `put`, also over a `carry`.
        """
        ...

    def carry(self, rows: NDArray[np.intp], env: NDArray[np.int32]) -> None:
        """Begin anew with these rows, which are of these envs."""
        ...


def values_of(column: Column, rows: int, num_envs: int) -> Values:
    """Make room for so many rows."""
    large = not column.is_text and column.item_bytes >= LARGE_BYTES
    return _EnvByEnv(column, rows, num_envs) if large else _InOrder(column, rows)


class _InOrder:
    large = False

    def __init__(self, column: Column, rows: int) -> None:
        self._values = np.empty((rows, *column.shape), column.dtype)

    def put(self, rows: slice, env: NDArray[np.int32], values: NDArray[Any]) -> None:
        del env
        self._values[rows] = values

    def take(self, rows: NDArray[np.intp], ends: Sequence[int]) -> list[NDArray[Any]]:
        return np.split(np.take(self._values, rows, axis=0), ends[:-1])

    def carry(self, rows: NDArray[np.intp], env: NDArray[np.int32]) -> None:
        del env
        self._values[: len(rows)] = self._values[rows]


class _EnvByEnv:
    large = True

    def __init__(self, column: Column, rows: int, num_envs: int) -> None:
        each = rows // num_envs + 1
        self._shape = column.shape
        # In two dimensions, so that each value is copied as one run of bytes; and the same in three.
        self._values = np.empty((num_envs * each, prod(column.shape)), column.dtype)
        self._by_env = self._values.reshape(num_envs, each, -1)
        self._starts = np.arange(num_envs) * each
        # How many values each env has: one number while it is the same for all, as it is in lockstep, else of each.
        self._level: int | None = 0
        self._count = np.zeros(num_envs, np.intp)
        self._place = np.empty(rows, np.intp)
        # What goes on from the rows before is moved to its place when the views that were taken no longer count.
        self._carried: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None

    def put(self, rows: slice, env: NDArray[np.int32], values: NDArray[Any]) -> None:
        self._settle()
        values = values.reshape(len(env), -1)
        if self._level is not None and len(env) == len(self._starts):
            np.add(self._starts, self._level, out=self._place[rows])
            self._by_env[:, self._level] = values
            self._level += 1
            return
        self._part_ways()
        place = self._starts[env] + self._count[env]
        self._place[rows] = place
        self._values[place] = values
        self._count[env] += 1

    def take(self, rows: NDArray[np.intp], ends: Sequence[int]) -> list[NDArray[Any]]:
        self._settle()
        place = self._place[rows]
        # How many, up to each, lie behind the one before.
        behind = np.append(0, np.cumsum(np.diff(place) == 1))
        return [
            self._part(place[start:end], whole=behind[end - 1] - behind[start] == end - 1 - start)
            for start, end in pairwise((0, *ends))
        ]

    def _part(self, place: NDArray[np.intp], *, whole: bool) -> NDArray[Any]:
        part = self._values[place[0] : place[-1] + 1] if whole else self._gathered(place)
        return part.reshape(len(place), *self._shape)

    def _gathered(self, place: NDArray[np.intp]) -> NDArray[Any]:
        # In memory of Arrow's, which keeps pages for the next message; numpy would ask the system for new ones.
        room = pa.allocate_buffer(len(place) * self._values[0].nbytes)
        part = np.frombuffer(room, self._values.dtype).reshape(len(place), -1)
        return np.take(self._values, place, axis=0, out=part, mode="clip")

    def carry(self, rows: NDArray[np.intp], env: NDArray[np.int32]) -> None:
        self._settle()
        self._carried = self._starts[env], self._place[rows]
        self._place[: len(rows)] = self._starts[env]
        # The first place of an env that does not go on stays empty.
        self._level = 1

    def _part_ways(self) -> None:
        """Count the values of each env by itself from here on."""
        if self._level is not None:
            self._count.fill(self._level)
            self._level = None

    def _settle(self) -> None:
        if self._carried is not None:
            to, come = self._carried
            self._values[to] = self._values[come]
            self._carried = None
