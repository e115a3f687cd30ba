"""What came of computing recorded steps again."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Farther from 0 than what a network answers of itself, and nearer than what it masks choices with.
_FAR = 1e6


@dataclass
class Column:
    """One recorded column: how many items were compared, and how far the farthest was off, in which episode."""

    compared: int = 0
    largest: float = 0.0
    episode: str | None = None


@dataclass
class Report:
    """What was computed again, and how far it was off.

    A difference is a share of the largest number that was computed beside it, or of the recorded one where that is
    larger; absolute where both are at most 1. Equal infinities do not differ, and a NaN that was recorded is one that
    is computed.
    """

    tolerance: float
    steps: int = 0
    chunks: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    """By name; "state.<name>" is the recurrent state with which the next chunk began."""
    lost: Counter[str] = field(default_factory=Counter)
    """How many chunks could not be computed again, by the reason."""

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max((column.largest for column in self.columns.values()), default=0.0)

    @property
    def worst(self) -> str | None:
        """The episode in which it was; None where nothing differs at all."""
        return max(self.columns.values(), key=lambda column: column.largest, default=Column()).episode

    @property
    def same(self) -> bool:
        """Whether all that was compared is within the tolerance."""
        return self.largest <= self.tolerance

    @property
    def whole(self) -> bool:
        """Whether every chunk was computed again."""
        return not self.lost

    @property
    def status(self) -> int:
        """The exit status: 1 where something differs, 2 where it does not but some chunks could not be computed."""
        if not self.same:
            return 1
        return 0 if self.whole else 2

    def compare(
        self,
        name: str,
        recorded: NDArray[Any],
        computed: NDArray[Any],
        episodes: NDArray[np.intp],
        ids: list[str],
        scale: NDArray[Any] | None = None,
    ) -> None:
        """Compare items, shape (n, *item), the first axis being of the episodes of these places among `ids`.

        Items that are masked were not recorded. `scale`, shape (n,), is what differences are shares of, instead of the
        largest number.
        """
        column = self.columns.setdefault(name, Column())
        there = present(recorded)
        scale = np.full(len(computed), largest(computed)) if scale is None else scale
        off = _differences(np.ma.getdata(recorded)[there], computed[there], scale[there])
        column.compared += len(off)
        if len(off) and (most := float(off.max())) > column.largest:
            column.largest, column.episode = most, ids[int(episodes[there][int(off.argmax())])]

    def to_json(self) -> dict[str, Any]:
        """Describe it in values that JSON has; an infinite difference is a string."""
        columns = {name: asdict(column) | {"largest": _finite(column.largest)} for name, column in self.columns.items()}
        told = {"ok": self.status == 0, "largest": _finite(self.largest), "worst": self.worst}
        return told | {**asdict(self), "columns": columns, "lost": dict(self.lost)}


def format_report(report: Report) -> str:
    """Lay a report out as text for a person."""
    lines = [f"{report.steps:,} steps in {report.chunks:,} chunks computed again"]
    if report.columns:
        width = max(map(len, report.columns))
        lines.append(f"{'':{width}}{'compared':>14}{'largest difference':>22}")
    for name, column in sorted(report.columns.items()):
        of = f"  in {column.episode}" if column.episode else ""
        lines.append(f"{name:{width}}{column.compared:14,}{column.largest:22.2e}{of}")
    lines += [f"{count:,} chunks could not be computed again: {reason}" for reason, count in report.lost.most_common()]
    return "\n".join([*lines, _verdict(report)])


def largest(computed: NDArray[Any]) -> float:
    """The largest magnitude among numbers, those aside that stand for an infinity; 0 where there are none."""
    sizes = np.abs(computed)
    return float(sizes.max(where=sizes < _FAR, initial=0.0))


def present(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which items, shape (n, *item), are not masked, shape (n,)."""
    mask = np.ma.getmaskarray(values)
    return np.asarray(~mask.any(axis=tuple(range(1, mask.ndim))))


def _verdict(report: Report) -> str:
    if not report.same:
        return f"WHAT WAS RECORDED DIFFERS BY MORE THAN {report.tolerance:g}, most in episode {report.worst}"
    within = f"all that was compared is within {report.tolerance:g}"
    return within if report.whole else f"{within}, BUT {report.lost.total():,} CHUNKS COULD NOT BE COMPUTED AGAIN"


def _differences(recorded: NDArray[Any], computed: NDArray[Any], scale: NDArray[Any]) -> NDArray[np.float64]:
    """The largest difference within each item, shape (n,)."""
    n = len(recorded)
    one, other = (np.asarray(of, np.float64).reshape(n, of.size // max(1, n)) for of in (recorded, computed))
    with np.errstate(invalid="ignore"):
        off = np.abs(one - other) / np.maximum(np.maximum(1.0, scale)[:, np.newaxis], np.abs(one))
    off[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    off[np.isnan(off)] = np.inf
    most: NDArray[np.float64] = off.max(axis=1, initial=0.0)
    return most


def _finite(number: float) -> float | str:
    return number if np.isfinite(number) else str(number)
