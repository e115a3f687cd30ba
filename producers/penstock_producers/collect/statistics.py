"""Figures of what was collected: of one call, of the last ones, of all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Figures:
    """What many numbers come to; all but the count are NaN where there are none."""

    mean: float
    std: float
    """Of these numbers themselves, not an estimate for others."""
    min: float
    max: float
    count: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> Figures:
        """Compute those of an array, shape (n,)."""
        if not len(values):
            return _NOTHING
        return cls(float(values.mean()), float(values.std()), float(values.min()), float(values.max()), len(values))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of whole episodes, and of calls.

    An episode counts in the call that has its last step, with all of its steps, also those that earlier calls gave.
    """

    returns: Figures
    """The sums of the rewards, an item an episode."""
    lengths: Figures
    """In steps, an item an episode."""
    durations: Figures
    """In seconds from the reset to the last step, an item an episode."""
    speed: Figures
    """Steps a second, an item a call."""
    seconds: Figures
    """How long it took, an item a call."""
    pauses: Figures
    """How many seconds went by since the call before, an item a call but the first."""
    metrics: Mapping[str, Figures]
    """What callbacks measured, by name, an item an episode for which it was."""
    steps: int
    """How many there are, those of episodes that go on included."""
    aborts: int
    """How many episodes ended aborted; they are in none of the figures of episodes.

    Of a call by episodes those that ended with a forced reset are left out, for it begins with one.
    """


class Measured(NamedTuple):
    """The numbers of one call."""

    steps: int
    aborts: int
    numbers: Mapping[str, NDArray[np.float64]]
    """By the names of the figures; those of callbacks by `METRIC` and theirs."""


METRIC = "metric."
_NOTHING = Figures(nan, nan, nan, nan, 0)


def statistics_of(measured: Measured) -> Statistics:
    """The statistics of one call."""
    return _statistics(measured.steps, measured.aborts, {n: Figures.of(v) for n, v in measured.numbers.items()})


class Window:
    """The last episodes, and the last calls.

    Args:
        size: how many numbers each figure is of, at most.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._calls: deque[tuple[int, int]] = deque(maxlen=size)
        self._numbers: dict[str, deque[float]] = {}

    def add(self, measured: Measured) -> None:
        """Add a call."""
        self._calls.append((measured.steps, measured.aborts))
        for name, values in measured.numbers.items():
            self._numbers.setdefault(name, deque(maxlen=self._size)).extend(values[-self._size :].tolist())

    @property
    def statistics(self) -> Statistics:
        """What they come to; `steps` and `aborts` are those of the last calls."""
        figures = {name: Figures.of(np.array(values)) for name, values in self._numbers.items()}
        return _statistics(sum(steps for steps, _ in self._calls), sum(aborts for _, aborts in self._calls), figures)


@dataclass(slots=True)
class _Sums:
    """Numbers so far: how many, their mean, and the sum of the squared distances from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    min: float = inf
    max: float = -inf

    def add(self, values: NDArray[np.float64]) -> None:
        # Pairwise, after Chan, Golub and LeVeque: sums of squares themselves would lose what they differ by.
        n = len(values)
        if not n:
            return
        mean = float(values.mean())
        apart, count = mean - self.mean, self.count + n
        self.squares += float(((values - mean) ** 2).sum()) + apart * apart * self.count * n / count
        self.mean += apart * n / count
        self.count = count
        self.min, self.max = min(self.min, float(values.min())), max(self.max, float(values.max()))

    @property
    def figures(self) -> Figures:
        if not self.count:
            return _NOTHING
        return Figures(self.mean, sqrt(max(self.squares, 0.0) / self.count), self.min, self.max, self.count)


@dataclass(slots=True)
class Lifetime:
    """Everything since the beginning, in constant space."""

    steps: int = 0
    aborts: int = 0
    calls: int = 0
    _sums: dict[str, _Sums] = field(default_factory=dict)

    def add(self, measured: Measured) -> None:
        """Add a call."""
        self.calls += 1
        self.steps += measured.steps
        self.aborts += measured.aborts
        for name, values in measured.numbers.items():
            self._sums.setdefault(name, _Sums()).add(values)

    @property
    def statistics(self) -> Statistics:
        """What it comes to."""
        return _statistics(self.steps, self.aborts, {name: sums.figures for name, sums in self._sums.items()})

    def to_json(self) -> dict[str, Any]:
        """Describe it; `from_json` reads it back."""
        sums = {
            name: [s.count, s.mean, s.squares, s.min, s.max] for name, s in self._sums.items() if s.count
        }  # an infinite least or most is that of nothing, and JSON has none
        return {"steps": self.steps, "aborts": self.aborts, "calls": self.calls, "sums": sums}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Lifetime:
        """Read what `to_json` described; raises `KeyError`, `TypeError` or `ValueError` where it is not that."""
        steps, aborts, calls = (described[name] for name in ("steps", "aborts", "calls"))
        sums = {name: _Sums(*values) for name, values in described["sums"].items()}
        counts = [steps, aborts, calls, *(of.count for of in sums.values())]
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"counts {counts}")
        if not all(isfinite(number) for of in sums.values() for number in (of.mean, of.squares, of.min, of.max)):
            raise ValueError(f"sums {described['sums']}")
        return cls(steps, aborts, calls, sums)


def _statistics(steps: int, aborts: int, figures: Mapping[str, Figures]) -> Statistics:
    metrics = {name.removeprefix(METRIC): of for name, of in figures.items() if name.startswith(METRIC)}
    returns, lengths, durations, speed, seconds, pauses = (
        figures.get(name, _NOTHING) for name in ("returns", "lengths", "durations", "speed", "seconds", "pauses")
    )
    return Statistics(returns, lengths, durations, speed, seconds, pauses, metrics, steps, aborts)
