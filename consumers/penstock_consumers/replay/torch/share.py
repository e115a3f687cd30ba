"""One reader's share of what is read once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.where import Condition, Where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.criteria import Criterion
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.store.commits import SegmentEntry


@dataclass(frozen=True, kw_only=True)
class Share(Where):
    """What fulfils a `Where` in one of several shares: a stretch of whole episodes, of about as many steps as others.

    Of one snapshot, the shares have nothing in common, and everything together. Where one is empty, reading it gives
    nothing; where all are, it raises what reading the whole does.

    Attributes:
        number: which share.
        of: how many there are.
    """

    number: int
    of: int

    @classmethod
    def of_where(cls, where: Where, number: int, of: int) -> Share:
        """Take a share of a condition."""
        return cls(**{field.name: getattr(where, field.name) for field in fields(Where)}, number=number, of=of)

    def at(self, snapshot: Snapshot) -> Condition:
        """Divide a snapshot."""
        return _Shared(tuple(self._criteria(snapshot)), snapshot, self.number, self.of)


class _Shared(Condition):
    def __init__(self, criteria: Sequence[Criterion], snapshot: Snapshot, number: int, of: int) -> None:
        super().__init__(criteria)
        self._whole = Condition(criteria)
        # Only what may be read counts, so that each share has as much to do.
        steps = [entry.steps if self._whole.may_hold(entry) else 0 for entry in snapshot.entries]
        behind = np.cumsum([0, *steps]).tolist()
        self._first = dict(zip((entry.name for entry in snapshot.entries), behind, strict=False))
        self._begin, self._end = (behind[-1] * at // of for at in (number, number + 1))
        if number + 1 == of:
            self._end += 1  # the last episodes may have no steps

    def __bool__(self) -> bool:
        return True

    def may_hold(self, entry: SegmentEntry) -> bool:
        first = self._first[entry.name]
        return first < self._end and self._begin <= first + entry.steps and super().may_hold(entry)

    @property
    def whole(self) -> Condition:
        return self._whole

    def _episodes(self, segment: Segment) -> NDArray[np.bool_]:
        begins = self._first[segment.entry.name] + segment.step_offsets[:-1]
        mine: NDArray[np.bool_] = super()._episodes(segment) & (self._begin <= begins) & (begins < self._end)
        return mine
