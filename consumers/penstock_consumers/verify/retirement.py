"""What retention removed, as the commits tell it, held against what the log tells of episodes that are not stored."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock_consumers.store.commits import Live, Retired, in_log_order, ranges_of
from penstock_consumers.store.segments import key_sum
from penstock_schemas.chunks import fixed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.store.commits import Commit, SegmentEntry

# What names an episode, and where the log has it.
_COLUMNS = ("producer", "incarnation", "env", "episode", "length", "closed_offset")


class Retirement:
    """The segments of a partition that were retired after a commit, and the episodes that are absent.

    An episode that is absent was retired if it ended within the records of retired segments, and all that are absent of
    those are as many, of as many steps, and of the same names, by the sum of their hashes, as these segments held.
    """

    def __init__(self, base: Commit | None, live: Live) -> None:
        self._retired = base.retired if base else Retired()
        self._entries = {entry.name: entry for entry in live.segments}
        self._gone: list[SegmentEntry] = []
        self._absent: list[pa.RecordBatch] = []
        self.wrong: list[str] = []
        """What contradicts itself, in words."""

    def apply(self, commit: Commit) -> None:
        """Go on by a commit."""
        removed = [self._entries.pop(name) for name in commit.segments_removed if name in self._entries]
        self._entries |= {entry.name: entry for entry in commit.segments_added}
        if commit.retired != self._retired:
            if commit.retired == reduce(Retired.plus, removed, self._retired):
                self._gone += removed
            else:
                self.wrong.append(f"commit {commit.name}: it retired {commit.retired}, which is not what it removed")
            self._retired = commit.retired

    def absent(self, episodes: pa.RecordBatch) -> None:
        """Tell of episodes that the log expects and the store does not have, of the columns of a segment."""
        if episodes.num_rows:
            self._absent.append(episodes.select(list(_COLUMNS)))

    def settle(self, offset: int) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        """Give the absent episodes, and which of them were retired, shape (rows,).

        The log was judged from `offset` on. Of segments that also have episodes that ended before, none can be held
        against it; what is absent of those is taken for retired.
        """
        if not self._absent:
            found = pa.RecordBatch.from_arrays([pa.array([], pa.int64())] * len(_COLUMNS), names=list(_COLUMNS))
        else:
            found = pa.concat_batches(self._absent)
        closed = fixed(found, "closed_offset")
        retired = np.zeros(len(closed), np.bool_)
        for first, last, held in self._spans():
            within = (closed >= first) & (closed <= last)
            rows = found.filter(pa.array(within))
            told = Retired(rows.num_rows, int(fixed(rows, "length").sum()), key_sum(rows) if rows.num_rows else 0)
            if told == held or (first < offset and told.episodes <= held.episodes and told.steps <= held.steps):
                retired |= within
            elif last >= offset:
                self.wrong.append(
                    f"offsets {first} to {last}: {held.episodes} episodes of {held.steps} steps were retired, of those "
                    f"that ended there {told.episodes} of {told.steps} steps are not stored, or not the same"
                )
        return found, retired

    def _spans(self) -> Iterator[tuple[int, int, Retired]]:
        """The records with which retired episodes ended, first and last, and what was retired; none overlap."""
        first, last, held = 0, -1, Retired()
        for entry in in_log_order(self._gone):
            begin, end = ranges_of(entry).closed_offset
            if begin > last:
                if held.episodes:
                    yield first, last, held
                first, held = begin, Retired()
            last, held = max(last, end), held.plus(entry)
        if held.episodes:
            yield first, last, held
