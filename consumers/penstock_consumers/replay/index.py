"""What can be drawn from a snapshot: its items, numbered, and where each lies."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_schemas.errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.replay.runs import Runs
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.where import Condition


class Pieces(NamedTuple):
    """P groups of consecutive items of a segment: those of a group begin in one chunk, of one episode."""

    items: NDArray[np.int64]
    """(P,) how many there are in each."""
    row: NDArray[np.int64]
    """(P,) the row of its episode."""
    policy_version: NDArray[np.int64]
    """(P,) the version that chose the action of the step with which each of its items begins."""


class Place(NamedTuple):
    """Where items of one segment lie."""

    step: NDArray[np.int64]
    """(n,) the step of the segment with which each begins."""
    row: NDArray[np.int64]
    """(n,) the row of its episode."""


class Index:
    """The items of a snapshot that fulfil a condition: windows of `stride + overlap` steps, laid every `stride` steps.

    With a stride of 1 and no overlap, items are steps. A run of T steps has as many windows as cover it, at least one;
    only the last may be shorter than the others. Segments that cannot hold an item are not opened, nor is any where
    all steps are items.

    Attributes:
        snapshot: of which.
        first_item: the item with which each segment begins, and their number, shape (segments + 1,).
        stride: how many steps lie between the beginnings of windows.
        overlap: how many steps a window has in common with the next.

    Args:
        condition: which steps.
        by_chunk: whether runs end where chunks do.
        before: one of an older snapshot, of the same layout and of a condition that holds for the same steps of any
            segment: what it found in the segments that are still there is not looked for again.

    Raises:
        StoreError: there is no item.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        condition: Condition,
        *,
        stride: int = 1,
        overlap: int = 0,
        by_chunk: bool = False,
        before: Index | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._condition = condition
        self.stride = stride
        self.overlap = overlap
        self._by_chunk = by_chunk
        self._runs: dict[int, _Windows] = {}
        self.first_item = snapshot.first_step if self._all_steps else self._counted(before.known if before else {})
        if not self.first_item[-1]:
            raise StoreError(condition.nothing(snapshot))

    def __len__(self) -> int:
        return int(self.first_item[-1])

    def places(self, number: int, items: NDArray[np.int64]) -> Place:
        """Find items of a segment, given by their numbers in it."""
        if self._all_steps:
            return Place(items, self.snapshot.segment(number).row_of(items))
        windows, run = self._runs[number], self._run_of(number, items)
        step = windows.runs.begin[run] + (items - windows.first[run]) * self.stride
        return Place(step, windows.runs.row[run])

    def bounds(self, number: int, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the run that each item of a segment lies in: the step with which it begins, and that behind it."""
        runs = self.runs(number)
        run = self._run_of(number, items)
        return runs.begin[run], runs.end[run]

    def pieces(self, number: int) -> Pieces:
        """Part the items of a segment; in the order of their numbers."""
        segment = self.snapshot.segment(number)
        runs = self.runs(number)
        parts = segment.by_chunk(runs)
        run = np.searchsorted(runs.begin, parts.begin, side="right") - 1
        # A window is of the part in which it begins.
        first, behind = (-((runs.begin[run] - step) // self.stride) for step in (parts.begin, parts.end))
        most = self._windows_of(runs)[run]
        items = np.minimum(behind, most) - np.minimum(first, most)
        some = items > 0
        return Pieces(items[some], parts.row[some], segment.policy_version[segment.chunk_of(parts.begin[some])])

    def runs(self, number: int) -> Runs:
        """The runs of steps that the items of a segment cover."""
        if number in self._runs:
            return self._runs[number].runs
        return self._fulfilling(self.snapshot.segment(number))

    def _run_of(self, number: int, items: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._all_steps:
            return self.snapshot.segment(number).row_of(items)
        return np.searchsorted(self._runs[number].first, items, side="right") - 1

    @cached_property
    def _all_steps(self) -> bool:
        return not self._condition and self.stride == 1 and not self.overlap and not self._by_chunk

    @property
    def known(self) -> dict[str, _Windows]:
        """The windows of each segment that was looked into, by its name."""
        return {self.snapshot.entries[number].name: windows for number, windows in self._runs.items()}

    def _counted(self, known: dict[str, _Windows]) -> NDArray[np.int64]:
        counts = np.zeros(len(self.snapshot.entries) + 1, np.int64)
        for number, entry in enumerate(self.snapshot.entries):
            if entry.name in known:
                self._runs[number] = known[entry.name]
            elif self._condition.may_hold(entry):
                runs = self._fulfilling(self.snapshot.segment(number))
                self._runs[number] = _Windows(runs, np.concatenate([[0], np.cumsum(self._windows_of(runs))]))
            else:
                continue
            counts[number + 1] = self._runs[number].first[-1]
        return np.cumsum(counts)

    def _fulfilling(self, segment: Segment) -> Runs:
        runs = self._condition.runs(segment)
        return segment.by_chunk(runs) if self._by_chunk else runs

    def _windows_of(self, runs: Runs) -> NDArray[np.int64]:
        """How many windows cover each run, shape (R,)."""
        windows: NDArray[np.int64] = -((self.overlap - (runs.end - runs.begin)) // self.stride)
        return np.maximum(windows, 1)


class _Windows(NamedTuple):
    """The windows of a segment."""

    runs: Runs
    first: NDArray[np.int64]
    """(R + 1,) the number in the segment of the first window of each run, and how many there are."""
