"""What the policy saw of what is stored: the connectors over windows of observations, wherever these lie."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_consumers.replay.chains import Chains, Parts
from penstock_consumers.replay.frozen import frozen
from penstock_consumers.replay.lookback import Reader, Wanted, look, windows
from penstock_consumers.replay.runs import Runs
from penstock_consumers.replay.segment import given_dtypes
from penstock_consumers.replay.versions import Acting
from penstock_consumers.replay.where import Condition
from penstock_schemas.connectors import Pipeline, Rows, make_pipeline, shown
from penstock_schemas.errors import SettingsError, StoreError
from penstock_schemas.spaces import leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.gather import Gather, Part
    from penstock_consumers.replay.lookback import Looked
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.versions import Weights
    from penstock_consumers.replay.where import Where
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaves
    from penstock_schemas.stream import StreamSpec

# As much of whole episodes is shown at a time; one may be larger.
_EPISODES_BYTES = 16 << 20


class Lens:
    """Shows stored observations as a policy's connectors show them.

    An episode that continues one that was cut is left out where the store does not hold the steps before it that the
    connectors look back at.

    Attributes:
        space: of what is shown.
        item_bytes: of one observation, with what is read to show it.

    Args:
        spec: the stream's.
        pipeline: the connectors.
        acting: finds the parameters of the versions that acted; None to show everything by the pipeline's own, as
            they are when a block is read.
    """

    def __init__(self, spec: StreamSpec, pipeline: Pipeline, acting: Acting | None = None) -> None:
        if pipeline.observation != spec.observation:
            raise SettingsError(
                f"connectors for observations of {pipeline.observation}: the stream's are of {spec.observation}; make "
                "them by make_pipeline(connectors, replay.spec.observation, replay.spec.action)"
            )
        self.space = pipeline.space
        self.item_bytes = sum(leaf.space.item_bytes for leaf in leaves(pipeline.space)) + pipeline.reach * sum(
            column.item_bytes for column in spec.observation_columns
        )
        self._spec = spec
        self._pipeline = pipeline
        self._acting = acting
        self._parts = Parts()
        self._chains: tuple[Snapshot, Chains] | None = None

    @classmethod
    def of(cls, connectors: Pipeline | bool | None, spec: StreamSpec, bucket: Bucket) -> Lens | None:  # noqa: FBT001  (what the views' argument may be)
        """Make what a view's `connectors` ask for; None where observations are given as they are stored.

        Raises `SettingsError` for connectors of other observations, `PolicyError` where the stream's cannot be made.
        """
        if connectors is True:
            pipeline = make_pipeline(spec.policy.get("connectors", ()), spec.observation, spec.action)
            return cls(spec, pipeline, Acting(bucket, pipeline) if pipeline.weights else None) if pipeline else None
        if connectors is None or connectors is False:
            return None
        if not isinstance(connectors, Pipeline):
            raise SettingsError(
                f"connectors {connectors!r}: True for the stream's own, a pipeline that make_pipeline made, or None"
            )
        lens = cls(spec, connectors)
        return lens if connectors else None

    def condition(self, condition: Condition, snapshot: Snapshot, among: Collection[int] | None = None) -> Condition:
        """Leave out what cannot be shown of what fulfils a condition; the segments that may hold it are opened.

        Only those of `among` are asked for, where it is given: nothing is said of others then.
        """
        asked = range(len(snapshot.entries)) if among is None else among
        numbers = [number for number in asked if condition.may_hold(snapshot.entries[number])]
        hidden = self.hidden(snapshot, numbers)
        return _Shown(condition, {snapshot.entries[number].name: of for number, of in hidden.items()}, self, snapshot)

    def hidden(self, snapshot: Snapshot, numbers: Collection[int]) -> dict[int, NDArray[np.bool_]]:
        """Which episodes of some segments cannot be shown, shape (E,) of each."""
        chains = self._chains_of(snapshot, numbers)
        before = {number: chains.before(number, np.arange(snapshot.entries[number].rows)) for number in numbers}
        return {number: ~of.whole & (of.steps < self._pipeline.reach) for number, of in before.items()}

    def items(self, gather: Gather, item: Callable[[Part], NDArray[np.int64]]) -> Leaves:
        """Show one observation for each draw, in the order drawn: arrays (n, *shape), a leaf of `space` each.

        Args:
            gather: the draws.
            item: the items of the segment's observations, of a part's draws, shape (n of the part,).
        """
        wanted = [Wanted(part.number, part.row, item(part), np.ones_like(part.row)) for part in gather.parts]
        return tuple(gather.as_drawn(leaf) for leaf in self.show(gather.snapshot, wanted))

    def show(self, snapshot: Snapshot, wanted: Sequence[Wanted]) -> Leaves:
        """Show windows of observations, end to end: arrays (observations, *shape), a leaf of `space` each.

        Raises `StoreError` where one lies in an episode that is `hidden`, or where the store has not all the versions
        that acted; `CorruptStoreError` where those are others.
        """
        chains = self._chains_of(snapshot, [of.number for of in wanted])
        asked = windows(snapshot, chains, wanted)
        missing = ~asked.whole & (asked.before < self._pipeline.reach)
        if missing.any():
            at = int(missing.argmax())
            name = snapshot.segment(int(asked.number[at])).ids(asked.row[at : at + 1])[0]
            raise StoreError(
                f"episode {name} continues another one, and the store does not hold the {self._pipeline.reach} steps "
                "before it: its connectors look back at them"
            )
        return self._shown(snapshot, look(asked, chains, self._pipeline.lookback))

    def episodes(self, snapshot: Snapshot, number: int, rows: NDArray[np.int64]) -> Iterator[Any]:
        """Show whole episodes of a segment, given by their rows, in the structure of `space`: arrays (T + 1, *leaf).

        The arrays are read-only, and each episode's own.
        """
        offsets = snapshot.segment(number).step_offsets
        begin, end = offsets[rows], offsets[rows + 1]
        first, size = begin + rows, end - begin + 1
        # Many episodes at a time, as much as fits.
        group = np.cumsum(size) * self.item_bytes // _EPISODES_BYTES
        for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(group)) + 1) if len(rows) else ():
            shown = self.show(snapshot, [Wanted(number, rows[some], first[some], size[some])])
            for at in pairwise([0, *np.cumsum(size[some]).tolist()]):
                # As copies: a view would keep all that was shown with it.
                yield unflatten(self.space, [frozen(leaf[slice(*at)].copy()) for leaf in shown])

    def _shown(self, snapshot: Snapshot, looked: Looked) -> Leaves:
        observed = Reader(snapshot, looked.number, looked.step + looked.row)
        led = np.flatnonzero(looked.age)
        before = Reader(snapshot, looked.number_before[led], looked.step_before[led])
        versions, acted = self._acted(snapshot, looked)
        reward, dtypes = self._spec.reward_column, given_dtypes(self._spec)

        def behind(column: Column, dtype: np.dtype[Any]) -> NDArray[Any]:
            """What came with the step before each observation; 0 where there was none."""
            values = np.zeros((len(looked.age), *column.shape), dtype)
            values[led] = before.items(column)
            return values

        rows = Rows(
            looked.first,
            looked.lead,
            looked.age,
            tuple(map(observed.items, self._spec.observation_columns)),
            tuple(behind(column, dtypes[column.name]) for column in self._spec.action_columns),
            behind(reward, reward.dtype),
            acted,
        )
        return shown(self._pipeline, rows, versions)

    def _acted(self, snapshot: Snapshot, looked: Looked) -> tuple[list[Weights], NDArray[np.intp]]:
        """Find whose parameters show each observation: those parameters, and their places among them."""
        acting = self._acting
        if acting is None:
            return [self._pipeline.weights], np.zeros(len(looked.age), np.intp)
        acted = Reader(snapshot, looked.number, looked.step_acted)
        places = acted.own(lambda segment, steps: acting.places(segment)[segment.chunk_of(steps)])
        each, of_row = np.unique(places, return_inverse=True)
        return acting.weights(each.tolist()), of_row

    def _chains_of(self, snapshot: Snapshot, numbers: Collection[int]) -> Chains:
        at, chains = self._chains or (None, None)
        asked = set(numbers)
        if at is not snapshot or chains is None:
            self._parts.forget(snapshot)
        else:
            asked |= chains.numbers
        if chains is None or at is not snapshot or asked != chains.numbers:
            chains = Chains(snapshot, asked, self._parts)
            self._chains = snapshot, chains
        return chains


class Visible(NamedTuple):
    """Which steps a view gives: those that fulfil what is asked, less those that its lens cannot show."""

    where: Where
    lens: Lens | None

    def at(self, snapshot: Snapshot) -> Condition:
        """Find them in a snapshot; where there is a lens, the segments that may hold one are opened."""
        condition = self.where.at(snapshot)
        return self.lens.condition(condition, snapshot) if self.lens else condition

    @property
    def steady(self) -> bool:
        """Whether they are the same ones of a segment whatever else a snapshot holds."""
        # Ages are taken from the newest; what a lens can show is a matter of what came before.
        return self.where.versions_behind is None and self.where.age_seconds is None and self.lens is None


class _Shown(Condition):
    """A condition, less the episodes that are hidden, by the names of segments."""

    def __init__(
        self, asked: Condition, hidden: Mapping[str, NDArray[np.bool_]], lens: Lens, snapshot: Snapshot
    ) -> None:
        super().__init__()
        self._asked = asked
        self._lens = lens
        self._snapshot = snapshot
        self._hidden = {name: of for name, of in hidden.items() if of.any()}

    def __bool__(self) -> bool:
        return bool(self._asked) or bool(self._hidden)

    def may_hold(self, entry: SegmentEntry) -> bool:
        return self._asked.may_hold(entry)

    def runs(self, segment: Segment) -> Runs:
        runs = self._asked.runs(segment)
        hidden = self._hidden.get(segment.entry.name)
        return runs if hidden is None else Runs(*(of[~hidden[runs.row]] for of in runs))

    def rows(self, segment: Segment) -> NDArray[np.intp]:
        rows = self._asked.rows(segment)
        hidden = self._hidden.get(segment.entry.name)
        return rows if hidden is None else rows[~hidden[rows]]

    @property
    def whole(self) -> Condition:
        # Of another share, what is hidden was not looked for.
        return self._lens.condition(self._asked.whole, self._snapshot)

    def nothing(self, snapshot: Snapshot, what: str = "step") -> str:
        if not self._asked.finds(snapshot, what):
            return self._asked.nothing(snapshot, what)
        asked = f" that fulfils {self._asked}" if self._asked else ""
        return (
            f"no {what} in the store{asked} can be shown as the policy saw it: all are of episodes that continue "
            "others, and the steps before them, which the connectors look back at, are not in the store: read without "
            "connectors"
        )
