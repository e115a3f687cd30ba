"""Stretches of steps within a segment: where each begins and ends, and which of them a step lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD = 64
_SHIFT, _LOW = 6, _WORD - 1
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Runs(NamedTuple):
    """R stretches of consecutive steps of a segment, each within one episode and none empty; apart, and in order."""

    row: NDArray[np.int64]
    """(R,) the row of its episode."""
    begin: NDArray[np.int64]
    """(R,) the step of the segment with which it begins."""
    end: NDArray[np.int64]
    """(R,) the step behind its last one."""


class Rank:
    """Finds the stretch that a step lies in, in constant time and an eighth of a byte a step.

    A bit stands for each step with which a stretch begins, and for each word of them how many bits come before it (the
    rank of a bit vector: Jacobson, 1989).

    Args:
        starts: where each stretch begins, ascending from 0; of several that begin at one step, the last is found.
        steps: how many steps there are.
    """

    def __init__(self, starts: NDArray[np.int64], steps: int) -> None:
        starts = starts[: np.searchsorted(starts, steps)]
        flags = np.zeros(-(-max(steps, 1) // _WORD) * _WORD, np.bool_)
        flags[starts] = True
        self._bits = np.packbits(flags, bitorder="little").view("<u8")
        ones = np.bitwise_count(self._bits).astype(np.int64)
        # Less one, so that the first stretch is number 0.
        self._before = np.cumsum(ones) - ones - 1
        last = np.flatnonzero(np.diff(starts, append=steps))
        self._last = None if len(last) == len(starts) else last

    def __call__(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the number of the stretch that each step lies in, of the same shape."""
        word = steps >> _SHIFT
        up_to = self._bits[word] & (_ALL >> (_LOW - (steps & _LOW)).astype(np.uint64))
        found: NDArray[np.int64] = self._before[word] + np.bitwise_count(up_to)
        return found if self._last is None else self._last[found]
