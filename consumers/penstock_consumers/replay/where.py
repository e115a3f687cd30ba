"""Conditions on what a view gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock_consumers.replay.criteria import MEASURES, Bounds, Ended, Produced, Within, metric
from penstock_consumers.replay.runs import Runs
from penstock_consumers.store.commits import ranges_of
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.criteria import Criterion
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.store.commits import SegmentEntry

    # The least and the most, both included; None is no bound.
    Pair: TypeAlias = "tuple[float | None, float | None]"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which steps a view gives: those that fulfil all that is asked; everything by default.

    `policy_version` and `versions_behind` are asked of each step, all else of its episode. A part of an episode that
    was cut counts as an episode. A pair is the least and the most, both included, None being no bound; what is not a
    number lies within no pair.

    Ages are measured from the newest that the snapshot holds and never by a clock, so that a snapshot gives the same
    for ever.

    Attributes:
        policy_version: which chose the action.
        versions_behind: how many versions that one is older than the newest of the snapshot.
        age_seconds: how long before the newest episode of the snapshot its episode ended, by the log's times.
        return_: the sum of the episode's rewards.
        length: of the episode, in steps.
        ends: how the episode ended: in any of these ways, which `|` combines. An episode that the env terminated and
            truncated at once ended in both.
        producer: the name of the episode's producer, or several.
        metrics: what callbacks measured of the episode, by name; an episode of which it was not measured fulfils
            nothing, so that `(None, None)` asks that it was.

    Raises:
        SettingsError: one of these makes no sense.
    """

    policy_version: Pair | None = None
    versions_behind: Pair | None = None
    age_seconds: Pair | None = None
    return_: Pair | None = None
    length: Pair | None = None
    ends: Ends | None = None
    producer: str | Collection[str] | None = None
    metrics: Mapping[str, Pair] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in MEASURES:
            if getattr(self, name) is not None:
                Bounds.of(name, getattr(self, name))
        # What is given may be of any type, whatever is declared.
        ends: object = self.ends
        if ends is not None and not (isinstance(ends, Ends) and ends):
            raise SettingsError(f"where ends {ends!r}: members of `Ends`, combined with |; every stored episode ended")
        if self.producer is not None:
            _names(self.producer)
        metrics: object = self.metrics
        if not isinstance(metrics, Mapping):
            raise SettingsError(f"where metrics {metrics!r}: a pair (least, most) for each name")
        for name, pair in metrics.items():
            Bounds.of(f"metrics {name!r}", pair)

    def at(self, snapshot: Snapshot) -> Condition:
        """Take ages from what a snapshot holds; raises `SettingsError` where its stream has no such metric."""
        return Condition(tuple(self._criteria(snapshot)))

    def _criteria(self, snapshot: Snapshot) -> Iterator[Criterion]:
        known = snapshot.opener.spec.metrics
        for name, pair in self.metrics.items():
            if name not in known:
                raise SettingsError(f"where metrics {name!r}: the stream's are {', '.join(known) or 'none'}")
            yield Within(metric(name), Bounds.of(name, pair))
        asked = {name: pair for name in MEASURES if (pair := getattr(self, name)) is not None}
        ranges = [ranges_of(entry) for entry in snapshot.entries] if asked else []
        for name, pair in asked.items():
            yield Within(MEASURES[name](ranges), Bounds.of(name, pair))
        if self.ends is not None:
            yield Ended(self.ends)
        if self.producer is not None:
            yield Produced(_names(self.producer))


class Condition:
    """A `Where` at a snapshot; false where it leaves nothing out.

    Args:
        criteria: all of which must hold.
    """

    def __init__(self, criteria: Sequence[Criterion] = ()) -> None:
        self._criteria = criteria

    def __bool__(self) -> bool:
        return bool(self._criteria)

    def __str__(self) -> str:
        return " and ".join(map(str, self._criteria))

    def may_hold(self, entry: SegmentEntry) -> bool:
        """Tell whether a segment may hold a step that fulfils this, without opening it."""
        return all(criterion.may_hold(ranges_of(entry)) for criterion in self._criteria)

    def runs(self, segment: Segment) -> Runs:
        """Find the stretches of steps that fulfil this, as long as they can be."""
        episodes, chunks = self._episodes(segment), self._chunks(segment)
        if chunks is None:
            row = np.flatnonzero(episodes)
            return _some(Runs(row, segment.step_offsets[row], segment.step_offsets[row + 1]))
        row = segment.chunk_episode
        end = np.append(segment.chunk_start[1:], segment.entry.steps)
        parts = _some(Runs(row, segment.chunk_start, end), chunks & episodes[row])
        # A chunk goes on with the run of the one before where nothing lies between.
        first = np.ones(len(parts.row), np.bool_)
        first[1:] = (parts.row[1:] != parts.row[:-1]) | (parts.begin[1:] != parts.end[:-1])
        return Runs(parts.row[first], parts.begin[first], parts.end[np.roll(first, -1)])

    def rows(self, segment: Segment) -> NDArray[np.intp]:
        """Find the rows of the episodes of which every step fulfils this, ascending, shape (n,)."""
        episodes, chunks = self._episodes(segment), self._chunks(segment)
        if chunks is not None:
            # What a chunk without steps says is said of no step.
            some = np.diff(segment.chunk_start, append=segment.entry.steps) > 0
            episodes[segment.chunk_episode[some & ~chunks]] = False
        return np.flatnonzero(episodes)

    @property
    def whole(self) -> Condition:
        """What this is a share of; itself where it is none."""
        return self

    def check_found(self, snapshot: Snapshot, what: str = "step") -> None:
        """Where a view gave nothing: raise `StoreError` if something was asked, and no other share has it either."""
        whole = self.whole
        if whole and not whole.finds(snapshot, what):
            raise StoreError(whole.nothing(snapshot, what))

    def finds(self, snapshot: Snapshot, what: str = "step") -> bool:
        """Tell whether a snapshot holds anything that fulfils this; `what` a view gives."""
        segments = (snapshot.segment(number) for number, entry in enumerate(snapshot.entries) if self.may_hold(entry))
        return any(len(self.runs(of).row if what == "step" else self.rows(of)) > 0 for of in segments)

    def nothing(self, snapshot: Snapshot, what: str = "step") -> str:
        """Say that a snapshot holds nothing that fulfils this, and what there is; `what` a view gives."""
        read = f"commits read, by partition: {snapshot.numbers}"
        if not snapshot.entries or not self:
            return f"no steps in the store yet ({read}): wait until a consumer has stored an episode, then refresh()"
        ranges = [ranges_of(entry) for entry in snapshot.entries]
        # Those that nothing fulfils by itself say it all.
        alone = [of for of in self._criteria if not any(map(of.may_hold, ranges))]
        criteria = alone or self._criteria
        found = "; ".join(criterion.found(ranges) for criterion in criteria)
        return f"no {what} in the store fulfils {Condition(criteria)}: {found} ({read}): ask for less, or refresh()"

    def _episodes(self, segment: Segment) -> NDArray[np.bool_]:
        """Which episodes fulfil what is asked of episodes, shape (E,)."""
        holds = np.ones(segment.entry.rows, np.bool_)
        for criterion in self._criteria:
            if not criterion.of_chunks:
                holds &= criterion.holds(segment)
        return holds

    def _chunks(self, segment: Segment) -> NDArray[np.bool_] | None:
        """Which chunks fulfil what is asked of chunks, shape (C,); None where nothing is."""
        asked = [criterion.holds(segment) for criterion in self._criteria if criterion.of_chunks]
        return np.logical_and.reduce(asked) if asked else None


def _some(runs: Runs, mask: NDArray[np.bool_] | None = None) -> Runs:
    """Keep the runs of `mask` that are not empty."""
    some = runs.begin < runs.end
    kept = np.flatnonzero(some if mask is None else some & mask)
    return Runs(runs.row[kept], runs.begin[kept], runs.end[kept])


def _names(given: object) -> frozenset[str]:
    """Read the name of a producer, or several."""
    names = [given] if isinstance(given, str) else given
    if not (isinstance(names, Collection) and names and all(isinstance(name, str) for name in names)):
        raise SettingsError(f"where producer {given!r}: the name of one, or a collection of names")
    return frozenset(names)
