"""A figure: what was measured, against what, and whether it holds."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the bench: `ratio` is `value` to `reference`; `holds` says whether the target is met."""

    name: str
    value: float
    unit: str
    reference: float
    ratio: float
    target: str
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """Write the figure."""
        return asdict(self)


def paired(measure: Callable[[], float], reference: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Measure two things in turn; answer the median of each, and of the ratios pair by pair.

    In turn, because a machine's speed drifts: the two of a pair see the same machine.
    """
    pairs = [(measure(), reference()) for _ in range(rounds)]
    ratio = statistics.median(ours / other for ours, other in pairs)
    return statistics.median(ours for ours, _ in pairs), statistics.median(other for _, other in pairs), ratio


def speed(draw: Callable[[], object], batches: int, size: int) -> float:
    """Draw batches of so many items; answer items per second."""
    started = time.perf_counter()
    for _ in range(batches):
        draw()
    return batches * size / (time.perf_counter() - started)


def pin(pid: int, *, first: bool) -> None:
    """Pin a process and its threads, as they are now, to the first processor it may use, or to all others."""
    cores = sorted(os.sched_getaffinity(0) if pid == 0 else os.sched_getaffinity(pid))
    chosen = set(cores[:1] if first else cores[1:] or cores)
    for thread in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with suppress(ProcessLookupError):  # threads come and go
            os.sched_setaffinity(int(thread.name), chosen)
