"""Windows of observations, and what is looked back at from them, wherever in a snapshot it lies."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.columns import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from penstock_consumers.replay.chains import Chains
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_schemas.columns import Column


class Wanted(NamedTuple):
    """n windows of observations of one segment, each within one episode."""

    number: int
    """The segment's, in the snapshot."""
    row: NDArray[np.int64]
    """(n,) the row of the episode."""
    first: NDArray[np.int64]
    """(n,) the item of the segment's observations with which each begins."""
    size: NDArray[np.int64]
    """(n,) how many there are, at least one."""


class Windows(NamedTuple):
    """n windows of observations, each within one episode; all arrays are (n,)."""

    number: NDArray[np.int64]
    row: NDArray[np.int64]
    place: NDArray[np.int64]
    """That of the first observation in the episode."""
    size: NDArray[np.int64]
    step: NDArray[np.int64]
    """The step of the segment with which the episode begins."""
    steps: NDArray[np.int64]
    """How many the episode has."""
    before: NDArray[np.int64]
    """How many steps lie before the episode, and are there."""
    whole: NDArray[np.bool_]
    address: NDArray[np.int64]


class Looked(NamedTuple):
    """R observations, those that are wanted behind those that are looked back at; all arrays are (R,).

    `first`, `lead` and `age` are as in `penstock_schemas.connectors.Rows`.
    """

    first: NDArray[np.int64]
    lead: NDArray[np.int64]
    age: NDArray[np.int64]
    number: NDArray[np.int64]
    row: NDArray[np.int64]
    step: NDArray[np.int64]
    """The step of the segment that comes after it, or would."""
    step_acted: NDArray[np.int64]
    """The step whose version saw it."""
    number_before: NDArray[np.int64]
    step_before: NDArray[np.int64]
    """The step that led to it; where `age` is 0, no matter what."""


def windows(snapshot: Snapshot, chains: Chains, wanted: Iterable[Wanted]) -> Windows:
    """Find the episodes of windows; those that go on where the one before ends become one."""
    return Windows(*map(np.concatenate, zip(*(_windows(snapshot, chains, of) for of in wanted), strict=True)))


def look(at: Windows, chains: Chains, lookback: int) -> Looked:
    """Look back from windows, so many observations, but not beyond the first one of an episode that is there."""
    # One more is there for its step alone, which led to the next.
    back = np.minimum(lookback + 1, at.place + at.before)
    size = back + at.size
    of = np.repeat(np.arange(len(size)), size)
    place = ranges(at.place - back, size)
    number, row, step = at.number[of], at.row[of], at.step[of] + place
    earlier = np.flatnonzero(place < 0)
    if len(earlier):
        number[earlier], row[earlier], step[earlier] = chains.find(at.address[of[earlier]] + place[earlier])
    lead = np.maximum(at.place[of] - place, 0)
    kept = np.flatnonzero(lead <= lookback)
    first = np.searchsorted(kept, np.cumsum(size) - size)
    return Looked(
        first[of[kept]],
        lead[kept],
        (place + at.before[of])[kept],
        number[kept],
        row[kept],
        step[kept],
        (step - (place == at.steps[of]))[kept],
        number[kept - 1],
        step[kept - 1],
    )


class Reader:
    """Reads items of several segments, shape (n,) of each `number` and `index`, segment by segment."""

    def __init__(self, snapshot: Snapshot, number: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        # They lie in order but for what lies in another part of an episode.
        ascending = bool((number[1:] >= number[:-1]).all())
        self._order = None if ascending else np.argsort(number, kind="stable")
        number, self._index = (of if self._order is None else of[self._order] for of in (number, index))
        begins = np.flatnonzero(np.diff(number, prepend=-1))
        self._parts = [
            (snapshot.segment(at), slice(begin, end))
            for at, (begin, end) in zip(number[begins].tolist(), pairwise([*begins.tolist(), len(number)]), strict=True)
        ]

    def items(self, column: Column) -> NDArray[Any]:
        """Read items of a list column, in the dtype in which they are stored, shape (n, *column shape)."""
        lying = np.empty((len(self._index), *column.shape), column.dtype)
        for segment, at in self._parts:
            segment.items(column.name).take(self._index[at], lying[at])
        return self._given(lying)

    def own(self, values: Callable[[Segment, NDArray[np.int64]], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Find an integer for each item, shape (n,)."""
        return self._given(np.concatenate([values(segment, self._index[at]) for segment, at in self._parts]))

    def _given(self, lying: NDArray[Any]) -> NDArray[Any]:
        if self._order is None:
            return lying
        given = np.empty_like(lying)
        given[self._order] = lying
        return given


def _windows(snapshot: Snapshot, chains: Chains, wanted: Wanted) -> Windows:
    number, row, first, size = wanted
    begins = np.ones(len(row), np.bool_)
    begins[1:] = (row[1:] != row[:-1]) | (first[1:] != first[:-1] + size[:-1])
    at = np.flatnonzero(begins)
    offsets = snapshot.segment(number).step_offsets
    step, end = offsets[row[at]], offsets[row[at] + 1]
    # Each episode before has one more observation than it has steps.
    place = first[at] - step - row[at]
    total = np.add.reduceat(size, at)
    return Windows(np.full(len(at), number), row[at], place, total, step, end - step, *chains.before(number, row[at]))
