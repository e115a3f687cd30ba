"""Every step once, in the order in which they lie."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.progress import Progress
from penstock_consumers.replay import arguments
from penstock_consumers.replay.gather import Gather, Part
from penstock_consumers.replay.runs import Runs
from penstock_consumers.replay.segment import given_dtypes
from penstock_consumers.replay.transitions import Transitions
from penstock_schemas.columns import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.blocks import Batch
    from penstock_consumers.replay.seen import Lens
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.where import Condition, Where
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

# A batch whose size is not asked for has this many steps, fewer where they would take more memory than this.
_BATCH_STEPS = 65_536
_BATCH_BYTES = 256 << 20
# Undiscounted: a value counts or it does not.
_GAMMA = 1.0


def scan(
    snapshot: Snapshot,
    spec: StreamSpec,
    where: Where,
    *,
    batch_size: int | None = None,
    columns: Collection[str] | None = None,
    lens: Lens | None = None,
    progress: Progress | None = None,
) -> Iterator[Batch]:
    """Give every step of a snapshot once, segment by segment, as batches of which the last may be shorter.

    Observations are as `lens` shows them, and steps that it cannot show are left out; as they are stored by default.

    Raises `SettingsError` at once, and `StoreError` with the first batch where no step fulfils `where`; a store without
    steps gives nothing. `progress` is told of the steps of the segments that are opened.
    """
    view = Transitions(spec, where, n_step=1, gamma=_GAMMA, columns=columns, lens=lens)
    size = batch_steps(view.item_bytes) if batch_size is None else arguments.batch_size(batch_size)
    return _batches(snapshot, view.condition(snapshot), view, spec, size, progress or Progress())


def batch_steps(item_bytes: int) -> int:
    """How many steps of so many bytes a batch has whose size is not asked for."""
    return max(1, min(_BATCH_STEPS, _BATCH_BYTES // item_bytes))


def _batches(
    snapshot: Snapshot, condition: Condition, view: Transitions, spec: StreamSpec, size: int, progress: Progress
) -> Iterator[Batch]:
    numbers = [number for number, entry in enumerate(snapshot.entries) if condition.may_hold(entry)]
    progress.expect(sum(snapshot.entries[number].steps for number in numbers))
    stretches: list[Part] = []
    filled, given = 0, False
    for number in numbers:
        runs = condition.runs(snapshot.segment(number))
        behind = np.cumsum(runs.end - runs.begin)
        at, steps = 0, int(behind[-1]) if len(behind) else 0
        while at < steps:
            until = min(steps, at + size - filled)
            here = slice(filled, filled + until - at)
            stretches.append(_Stretch(snapshot, number, here, _between(runs, behind, at, until)))
            at, filled = until, here.stop
            if filled == size:
                yield view.read(_InOrder(snapshot, stretches, spec))(slice(None))
                stretches, filled, given = [], 0, True
        progress.advance(snapshot.entries[number].steps)
    if filled:
        yield view.read(_InOrder(snapshot, stretches, spec))(slice(None))
    elif not given:
        condition.check_found(snapshot)


def _between(runs: Runs, behind: NDArray[np.int64], at: int, until: int) -> Runs:
    """Cut the stretch from step `at` to `until` out of runs laid end to end; `behind` is where each ends so, (R,)."""
    first, last = np.searchsorted(behind, [at, until - 1], side="right")
    row, begin, end = (values[first : last + 1].copy() for values in runs)
    begin[0] = end[0] - (behind[first] - at)
    end[-1] -= behind[last] - until
    return Runs(row, begin, end)


class _Stretch(Part):
    """Steps of one segment, in order."""

    def __init__(self, snapshot: Snapshot, number: int, at: slice, runs: Runs) -> None:
        self._snapshot = snapshot
        self.number = number
        self.segment = snapshot.segment(number)
        self.at = at
        self.runs = runs
        self._steps = runs.end - runs.begin
        self.step = ranges(runs.begin, self._steps)
        self.row = np.repeat(runs.row, self._steps)

    @property
    def first_episode(self) -> int:
        return int(self._snapshot.first_episode[self.number])

    @cached_property
    def chunk(self) -> NDArray[np.int64]:
        begin, end = int(self.runs.begin[0]), int(self.runs.end[-1])
        if end - begin > len(self.step):
            return self.segment.chunk_of(self.step)
        # Nothing is left out: each chunk from the first to the last, as often as it has steps here.
        starts = self.segment.chunk_start
        first, last = np.searchsorted(starts, [begin, end - 1], side="right")
        counts = np.diff(starts[first:last], prepend=begin, append=end)
        return np.repeat(np.arange(first - 1, last), counts)


class _InOrder(Gather):
    """Reads what belongs to steps that are wanted as they lie."""

    def __init__(self, snapshot: Snapshot, stretches: list[Part], spec: StreamSpec) -> None:
        self.snapshot = snapshot
        self.parts = stretches
        self._dtypes = given_dtypes(spec)

    def __len__(self) -> int:
        return int(self.parts[-1].at.stop)

    def items(self, column: Column, index: Callable[[Part], NDArray[np.int64]]) -> NDArray[Any]:
        values = np.empty((len(self), *column.shape), self._dtypes[column.name])
        for part in self.parts:
            at, items = index(part), part.segment.items(column.name)
            here = slice(int(at[0]), int(at[-1]) + 1)
            if here.stop - here.start == len(at):
                values[part.at] = items.view(here)
            elif values.dtype == column.dtype:
                items.take(at, values[part.at])
            else:
                taken = np.empty((len(at), *column.shape), column.dtype)
                items.take(at, taken)
                values[part.at] = taken
        return values

    def lying(self, values: Callable[[Part], NDArray[Any]]) -> NDArray[Any]:
        # What is of one segment needs no other place.
        return values(self.parts[0]) if len(self.parts) == 1 else super().lying(values)

    def as_drawn(self, lying: NDArray[Any]) -> NDArray[Any]:
        return lying
