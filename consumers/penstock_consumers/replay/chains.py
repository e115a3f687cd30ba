"""Episodes that were cut: which part continues which, wherever in a snapshot they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_consumers.store import layout
from penstock_consumers.store.commits import ranges_of
from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot

_NONE = -1
_CUT = Ends.CUT.value
_ENV = ("producer", "incarnation", "env")
_PART = np.dtype([(name, np.int64) for name in (*_ENV, "episode", "continues", "length", "ends", "row", "step")])


class Before(NamedTuple):
    """What lies before each of n episodes."""

    steps: NDArray[np.int64]
    """(n,) how many steps, as far back as the snapshot holds every one of them."""
    whole: NDArray[np.bool_]
    """(n,) whether the first of those, or of the episode's own, came after a reset."""
    address: NDArray[np.int64]
    """(n,) that of the episode's own first step; those before it have the addresses before it."""


class Steps(NamedTuple):
    """Where n steps lie."""

    number: NDArray[np.int64]
    """(n,) the segment in the snapshot."""
    row: NDArray[np.int64]
    """(n,) the row of the episode."""
    step: NDArray[np.int64]
    """(n,) the step of the segment."""


class Parts:
    """Reads which episodes of a segment are parts of one that was cut; what was read stays, some 72 bytes a part."""

    def __init__(self) -> None:
        self._owners: dict[str, int] = {}
        self._read: dict[str, NDArray[np.void]] = {}

    def of(self, snapshot: Snapshot, number: int) -> NDArray[np.void]:
        """Describe the parts in a segment, in the order of their rows; "step" is that with which each begins."""
        name = snapshot.entries[number].name
        if name not in self._read:
            self._read[name] = self._described(snapshot.segment(number))
        return self._read[name]

    def forget(self, snapshot: Snapshot) -> None:
        """Keep no more than what is of a snapshot."""
        names = {entry.name for entry in snapshot.entries}
        self._read = {name: parts for name, parts in self._read.items() if name in names}

    def _described(self, segment: Segment) -> NDArray[np.void]:
        continues = segment.batch.column("continues")
        row = np.flatnonzero((segment.ends == _CUT) | continues.is_valid().to_numpy(zero_copy_only=False))
        parts = np.empty(len(row), _PART)
        if len(row):
            owners = segment.batch.column("producer").dictionary_encode()
            codes = [self._owners.setdefault(name, len(self._owners)) for name in owners.dictionary.to_pylist()]
            parts["producer"] = np.array(codes)[owners.indices.to_numpy()[row]]
            parts["continues"] = continues.fill_null(_NONE).to_numpy()[row]
            for name in ("incarnation", "env", "episode", "length", "ends"):
                parts[name] = segment.fixed(name)[row]
            parts["row"], parts["step"] = row, segment.step_offsets[row]
        return parts


class Chains:
    """The parts of episodes that were cut, laid end to end: each step of theirs has an address.

    The segments of `numbers` are opened, and, where one holds a part that continues another, those of its partition
    that hold one that was cut.

    Attributes:
        numbers: those segments.

    Args:
        snapshot: which.
        numbers: the segments of whose episodes is asked.
        parts: reads them.
    """

    def __init__(self, snapshot: Snapshot, numbers: Collection[int], parts: Parts) -> None:
        self.numbers = frozenset(numbers)
        held = {number: parts.of(snapshot, number) for number in sorted(self.numbers)}
        partitions = [layout.partition_of(entry.name) for entry in snapshot.entries]
        looked_into = {partitions[number] for number, of in held.items() if (of["continues"] != _NONE).any()}
        for number, entry in enumerate(snapshot.entries):
            if partitions[number] in looked_into and number not in held and _CUT in ranges_of(entry).ends:
                held[number] = parts.of(snapshot, number)
        self._lay(held)

    def before(self, number: int, row: NDArray[np.int64]) -> Before:
        """Find what lies before episodes of one of the segments asked for, given by their rows, shape (n,)."""
        rows, place = self._places[number]
        if not len(rows):
            nothing = np.zeros(len(row), np.int64)
            return Before(nothing, np.ones(len(row), np.bool_), nothing)
        at = np.minimum(np.searchsorted(rows, row), len(rows) - 1)
        alone, place = rows[at] != row, place[at]
        return Before(np.where(alone, 0, self._steps[place]), alone | self._whole[place], self._address[place])

    def find(self, address: NDArray[np.int64]) -> Steps:
        """Find steps by their addresses, shape (n,)."""
        part = np.searchsorted(self._address, address, side="right") - 1
        return Steps(self._number[part], self._row[part], self._step[part] + address - self._address[part])

    def _lay(self, held: dict[int, NDArray[np.void]]) -> None:
        sizes = [len(of) for of in held.values()]
        parts = np.concatenate([np.empty(0, _PART), *held.values()])
        order = np.lexsort([parts[name] for name in ("episode", *reversed(_ENV))])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        each = np.split(place, np.cumsum(sizes, dtype=np.int64))[:-1]
        self._places = {number: (of["row"], at) for (number, of), at in zip(held.items(), each, strict=True)}
        parts = parts[order]
        self._number = np.repeat(np.array([*held], np.int64), sizes)[order]
        self._row, self._step = parts["row"].copy(), parts["step"].copy()
        self._address = np.cumsum(parts["length"]) - parts["length"]
        # An env's episodes come one after the other; a part that was not cut lost its end, wherever it was lost.
        follows = np.zeros(len(parts), np.bool_)
        follows[1:] = (parts["continues"][1:] == parts["episode"][:-1]) & (parts["ends"][:-1] == _CUT)
        for name in _ENV:
            follows[1:] &= parts[name][1:] == parts[name][:-1]
        first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(parts))))
        self._steps = self._address - self._address[first]
        self._whole = parts["continues"][first] == _NONE
