"""The newer the likelier."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.choosing.chooser import positive
from penstock_consumers.replay.choosing.groups import Groups, holding
from penstock_consumers.replay.choosing.weighted import Weighted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing.chooser import Sampler
    from penstock_consumers.replay.index import Index

# Steeper than this nothing but the very newest is ever drawn, and products would overflow.
_STEEPEST = 1e4


@dataclass(frozen=True)
class Recency:
    """A step's weight halves with every so many newer ones of those that the view gives.

    Of two episodes, that is newer whose end the log has the later time of, whatever the partitions; of those that ended
    in the same millisecond, that which comes later in the order of `episodes()`. A window of steps has the weight of
    the step with which it begins.

    Args:
        half_life_steps: how many.

    Raises:
        SettingsError: it is not above 0.
    """

    half_life_steps: float

    def __post_init__(self) -> None:
        positive("half_life_steps", self.half_life_steps)

    def over(self, index: Index) -> Sampler:
        """Draw from an index; opens every segment once."""
        groups = Groups(index)
        rate = min(log(2.0) / self.half_life_steps, _STEEPEST)
        return Weighted(groups, -rate * _newer(index, groups), rate * index.stride)


def _newer(index: Index, groups: Groups) -> NDArray[np.float64]:
    """Count the steps that are newer than that with which each group's last item begins, shape (G,)."""
    closed, steps = [], []
    for number in holding(index):
        runs = index.runs(number)
        closed.append(index.snapshot.segment(number).fixed("closed_ms")[runs.row])
        steps.append(runs.end - runs.begin)
    length = np.concatenate(steps)
    newest_first = np.argsort(np.concatenate(closed), kind="stable")[::-1]
    # Of each run, with those of the newer ones.
    counted = np.empty(len(length), np.int64)
    counted[newest_first] = np.cumsum(length[newest_first])
    behind, first_run = [], 0
    for at in groups.steps():
        runs = index.runs(at.number)
        run = np.searchsorted(runs.begin, at.step, side="right") - 1
        behind.append(counted[first_run + run] - (at.step - runs.begin[run]) - 1)
        first_run += len(runs.begin)
    ahead = (groups.items - 1) * index.stride
    newer: NDArray[np.float64] = (np.concatenate(behind) - ahead).astype(np.float64)
    return newer
