"""What is drawn: returns of whole episodes along an axis, in as many groups as an eye can tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_consumers.outcomes import Outcome, batches
from penstock_consumers.progress import Progress
from penstock_consumers.replay import snapshot
from penstock_consumers.store import commits
from penstock_consumers.summary import Summary
from penstock_schemas.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.outcomes import Outcomes
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry

# The axes along which returns are drawn.
BY = ("version", "time", "steps")
_MOST_GROUPS = 200


class Curve(NamedTuple):
    """Returns of whole episodes in G groups along an axis."""

    at: NDArray[np.float64]
    """(G,) the middle of each group: a version, milliseconds since 1970, or steps that were stored by then."""
    width: int
    """Of a group, likewise."""
    summary: Summary
    """Of each group that has an episode."""


def curves(bucket: Bucket, by: Collection[str] = BY, progress: Progress | None = None) -> dict[str, Curve]:
    """Read the returns of a store's whole episodes at its newest commits, along each axis of `by`.

    Along "version" they are grouped by the version that chose the last action, along "time" by the log's time of the
    end, along "steps" by how many steps had ended by then; neighbours together where there are many. The store is read
    once, a few columns of a batch at a time. `progress` is told of steps. Raises `StoreError` where there is no store,
    or no whole episode in it.
    """
    progress = progress or Progress()
    spec = snapshot.existing(bucket).spec
    entries = [entry for commit in commits.newest_of_each(bucket) for entry in commits.live_at(bucket, commit).segments]
    progress.expect(sum(entry.steps for entry in entries))
    drawn = [_Drawn(name, entries) for name in by] if entries else []
    outcome = Outcome()
    for batch in batches(bucket, spec, entries, progress):
        episodes = outcome.of(batch)
        for one in drawn:
            one.add(episodes)
    joined = outcome.joined()
    for one in drawn:
        one.add(joined)
    found = {one.name: one.curve for one in drawn}
    if not any(len(curve.at) for curve in found.values()):
        raise StoreError(
            f"store {bucket.url}: no episode in it that its env ended, so there is no return to draw: wait until a "
            "consumer has stored one"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of whole numbers in equal groups, `_MOST_GROUPS` at most."""

    first: int
    width: int

    @classmethod
    def over(cls, ranges: Sequence[tuple[int, int]]) -> _Axis:
        first = min(least for least, _ in ranges)
        size = max(most for _, most in ranges) + 1 - first
        return cls(first, -(-size // _MOST_GROUPS))

    def group(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return (values - self.first) // self.width

    def middle(self, group: NDArray[np.int64]) -> NDArray[np.float64]:
        # Of a group of one number, that number.
        return np.float64(self.first + (self.width - 1) / 2) + group * self.width


class _Ended:
    """How many steps had ended by when: those of a segment are taken to be spread evenly over its time."""

    def __init__(self, entries: Sequence[SegmentEntry]) -> None:
        spans = np.array([commits.ranges_of(entry).closed_ms for entry in entries], np.int64)
        # What ended within one millisecond takes it.
        begin, end = spans[:, 0], spans[:, 1] + 1
        rate = np.array([entry.steps for entry in entries]) / (end - begin)
        self._times, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
        rates = np.cumsum(np.bincount(place, np.concatenate([rate, -rate])))
        self._steps = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(self._times))])

    def by(self, episodes: Outcomes) -> NDArray[np.int64]:
        steps: NDArray[np.float64] = np.interp(episodes.closed_ms, self._times, self._steps)
        return steps.astype(np.int64)


class _Drawn:
    """Gathers one curve."""

    def __init__(self, name: str, entries: Sequence[SegmentEntry]) -> None:
        self.name = name
        self._summary = Summary()
        self._place: Callable[[Outcomes], NDArray[np.int64]]
        if name == "version":
            self._axis = _Axis.over([commits.ranges_of(entry).policy_version for entry in entries])
            self._place = lambda episodes: episodes.policy_version
        elif name == "time":
            self._axis = _Axis.over([commits.ranges_of(entry).closed_ms for entry in entries])
            self._place = lambda episodes: episodes.closed_ms
        else:
            self._axis = _Axis.over([(0, sum(entry.steps for entry in entries))])
            self._place = _Ended(entries).by

    def add(self, episodes: Outcomes) -> None:
        self._summary.add(self._axis.group(self._place(episodes)), episodes.return_, episodes.length)

    @property
    def curve(self) -> Curve:
        return Curve(self._axis.middle(self._summary.group), self._axis.width, self._summary)
