"""Burn-in: the steps before a window on which a recurrent network finds its state, and which it does not learn from.

They are context and no data: a condition that leaves them out does not keep them from being given.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.index import Index
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.replay.gather import Part
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.where import Condition


@dataclass(frozen=True)
class BurnIn:
    """How windows begin: with as many as `steps` steps before them, or at a stored state as far back as that.

    Attributes:
        length: of a window, steps.
        overlap: steps that a window has in common with the next.
        steps: of burn-in, at most.
        from_state: whether each window has to begin where a chunk does, since a state is stored there.
    """

    length: int
    overlap: int
    steps: int
    from_state: bool

    def index(self, snapshot: Snapshot, condition: Condition, before: Index | None = None) -> Index:
        """Lay the windows, as `before` has them by now; without burn-in, those that begin at a state are the chunks.

        Raises `SettingsError` where one has no state near enough, `StoreError` where there is none.
        """
        index = self._index(snapshot, condition, before, by_chunk=self.from_state and not self.steps)
        if self.from_state and _least(index) > self.steps:
            over_runs = index if self.steps else self._index(snapshot, condition)
            raise SettingsError(self._told(_longest(index), _least(over_runs)))
        return index

    def first(self, part: Part) -> NDArray[np.int64]:
        """The step of the segment with which the burn-in of each draw begins, or the window where it has none."""
        segment = part.segment
        first: NDArray[np.int64] = np.maximum(part.step - self.steps, segment.step_offsets[part.row])
        if self.from_state:
            chunk = segment.chunk_of(first)
            # The one that begins there, or else the next one: `index` saw that it does not begin behind the window.
            chunk += segment.chunk_start[chunk] < first
            first = segment.chunk_start[chunk]
        return first

    def _index(
        self, snapshot: Snapshot, condition: Condition, before: Index | None = None, *, by_chunk: bool = False
    ) -> Index:
        stride = self.length - self.overlap
        return Index(snapshot, condition, stride=stride, overlap=self.overlap, by_chunk=by_chunk, before=before)

    def _told(self, longest: int, least: int) -> str:
        enough = f"pass burn_in={least} or more, or leave the states out of columns"
        if self.steps:
            return f"burn_in {self.steps}: a sequence begins {least} steps behind the nearest stored state: {enough}"
        return (
            f"length {self.length}: without burn-in each chunk is a sequence, as states are stored where chunks begin, "
            f"and one has {longest} steps: pass length={longest} or more; or {enough}"
        )


def _least(index: Index) -> int:
    """How many steps a window begins behind its chunk, at most."""
    return max(_behind(index, number) for number in _numbers(index))


def _behind(index: Index, number: int) -> int:
    segment: Segment = index.snapshot.segment(number)
    step = index.places(number, np.arange(index.first_item[number + 1] - index.first_item[number])).step
    return int((step - segment.chunk_start[segment.chunk_of(step)]).max())


def _longest(index: Index) -> int:
    """How many steps a run has, at most."""
    runs = map(index.runs, _numbers(index))
    return max(int((of.end - of.begin).max()) for of in runs)


def _numbers(index: Index) -> list[int]:
    """The segments that hold a window."""
    return [number for number, (first, behind) in enumerate(pairwise(index.first_item.tolist())) if first < behind]
