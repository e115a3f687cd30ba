"""What is asked of one property of an episode or of a chunk: told of a segment's ranges, or of each in the segment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from penstock_schemas.stream import METRIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.store.commits import Ranges

# A message names no more producers than this.
_NAMED = 8


class Criterion(Protocol):
    """One property, and what it must be; as a string, what is asked."""

    @property
    def of_chunks(self) -> bool:
        """Whether each chunk has its own; else each episode has one."""
        ...

    def may_hold(self, ranges: Ranges) -> bool:
        """Tell whether it may hold anywhere among what has these ranges; False only where it does nowhere."""
        ...

    def holds(self, segment: Segment) -> NDArray[np.bool_]:
        """Tell of each episode, shape (E,), or of each chunk, shape (C,), whether it holds there."""
        ...

    def found(self, ranges: Sequence[Ranges]) -> str:
        """Say what there is instead, in segments with these ranges."""
        ...


class Bounds(NamedTuple):
    """From the least to the most, both included; nothing that is not a number lies within any."""

    least: float
    most: float

    @classmethod
    def of(cls, name: str, given: Any) -> Bounds:
        """Read a pair of which either may be None; raises `SettingsError` where it is none."""
        if not (isinstance(given, tuple | list) and len(given) == 2):  # noqa: PLR2004 - a pair
            raise SettingsError(f"where {name} {given!r}: a pair (least, most), None where there is no such bound")
        if not all(bound is None or isinstance(bound, Real) for bound in given):
            raise SettingsError(f"where {name} {given!r}: bounds are numbers, or None")
        least, most = given
        bounds = cls(-math.inf if least is None else least, math.inf if most is None else most)
        if any(math.isnan(bound) for bound in bounds):
            raise SettingsError(f"where {name} {given!r}: a bound that is not a number holds nothing; None is no bound")
        if bounds.least > bounds.most:
            raise SettingsError(f"where {name} {given!r}: the least comes first, and is above the most here")
        return bounds


class Measure(NamedTuple):
    """A number that each episode, or each chunk, has."""

    name: str
    span: Callable[[Ranges], tuple[float, float] | None]
    """The least and the largest that there are, by ranges; None or NaN where none is a number."""
    values: Callable[[Segment], NDArray[Any]]
    """That of each episode, shape (E,), or of each chunk, shape (C,)."""
    of_chunks: bool = False


@dataclass(frozen=True)
class Within:
    """A number within bounds."""

    measure: Measure
    bounds: Bounds

    def __str__(self) -> str:
        least, most = (None if math.isinf(bound) else bound for bound in self.bounds)
        return f"{self.measure.name} ({least}, {most})"

    @property
    def of_chunks(self) -> bool:
        """As the measure."""
        return self.measure.of_chunks

    def may_hold(self, ranges: Ranges) -> bool:
        """Tell whether the two spans meet."""
        span = self.measure.span(ranges)
        return span is not None and span[0] <= self.bounds.most and self.bounds.least <= span[1]

    def holds(self, segment: Segment) -> NDArray[np.bool_]:
        """Compare each."""
        values = self.measure.values(segment)
        within: NDArray[np.bool_] = (self.bounds.least <= values) & (values <= self.bounds.most)
        return within

    def found(self, ranges: Sequence[Ranges]) -> str:
        """From where to where the numbers reach."""
        spans = [span for span in map(self.measure.span, ranges) if span is not None and not math.isnan(span[0])]
        if not spans:
            return f"{self.measure.name} is nowhere a number"
        least, most = min(span[0] for span in spans), max(span[1] for span in spans)
        return f"{self.measure.name} reaches from {least} to {most}"


def _policy_version(_: Sequence[Ranges]) -> Measure:
    return Measure("policy_version", lambda of: of.policy_version, lambda of: of.policy_version, of_chunks=True)


def _versions_behind(ranges: Sequence[Ranges]) -> Measure:
    newest = max((each.policy_version[1] for each in ranges), default=0)
    return Measure(
        "versions_behind",
        lambda of: (newest - of.policy_version[1], newest - of.policy_version[0]),
        lambda of: newest - of.policy_version,
        of_chunks=True,
    )


def _age_seconds(ranges: Sequence[Ranges]) -> Measure:
    newest = max((each.closed_ms[1] for each in ranges), default=0)
    return Measure(
        "age_seconds",
        lambda of: ((newest - of.closed_ms[1]) / 1000, (newest - of.closed_ms[0]) / 1000),
        lambda of: (newest - of.fixed("closed_ms")) / 1000,
    )


def _return(_: Sequence[Ranges]) -> Measure:
    return Measure("return_", lambda of: of.return_, lambda of: of.fixed("return"))


def _length(_: Sequence[Ranges]) -> Measure:
    return Measure("length", lambda of: of.length, lambda of: of.fixed("length"))


# By name, those that every stream has, at a snapshot with these ranges.
MEASURES: dict[str, Callable[[Sequence[Ranges]], Measure]] = {
    "policy_version": _policy_version,
    "versions_behind": _versions_behind,
    "age_seconds": _age_seconds,
    "return_": _return,
    "length": _length,
}


def metric(name: str) -> Measure:
    """What callbacks measured."""
    return Measure(
        f"metrics {name!r}",
        lambda of: of.metrics.get(name),
        # Where it was not measured there is a NaN.
        lambda of: of.batch.column(METRIC + name).to_numpy(zero_copy_only=False),
    )


@dataclass(frozen=True)
class Ended:
    """An episode that ends in one of these ways."""

    ends: Ends
    of_chunks = False

    def __str__(self) -> str:
        return f"ends {_shown(self.ends)}"

    def may_hold(self, ranges: Ranges) -> bool:
        """Tell whether one of them occurs."""
        return any(value & self.ends for value in ranges.ends)

    def holds(self, segment: Segment) -> NDArray[np.bool_]:
        """Look at the bits of each."""
        ended: NDArray[np.bool_] = (segment.ends & np.uint8(self.ends)) != 0
        return ended

    def found(self, ranges: Sequence[Ranges]) -> str:
        """In which ways episodes end."""
        values = sorted({value for each in ranges for value in each.ends})
        return f"episodes end {', '.join(_shown(Ends(value)) for value in values)}"


@dataclass(frozen=True)
class Produced:
    """An episode of one of these producers."""

    producers: frozenset[str]
    of_chunks = False

    def __str__(self) -> str:
        return f"producer {', '.join(sorted(self.producers))}"

    def may_hold(self, ranges: Ranges) -> bool:
        """Tell whether one of them is there, or too many are to be named."""
        return ranges.producers is None or not self.producers.isdisjoint(ranges.producers)

    def holds(self, segment: Segment) -> NDArray[np.bool_]:
        """Look each name up once."""
        names = segment.batch.column("producer").dictionary_encode()
        wanted = np.array([name in self.producers for name in names.dictionary.to_pylist()], np.bool_)
        of_these: NDArray[np.bool_] = wanted[names.indices.to_numpy()]
        return of_these

    def found(self, ranges: Sequence[Ranges]) -> str:
        """Who there is."""
        names = sorted({name for each in ranges for name in each.producers or ()})
        more = len(names) > _NAMED or any(each.producers is None for each in ranges)
        return f"producers are {', '.join(names[:_NAMED])}{' and others' if more else ''}"


def _shown(ends: Ends) -> str:
    return " | ".join(end.name or "" for end in ends)
