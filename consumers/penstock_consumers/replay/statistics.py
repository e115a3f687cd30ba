"""The statistics that a learner publishes for the connectors that normalize: accumulated from what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_consumers.progress import bar
from penstock_consumers.replay.episodes import new_since
from penstock_consumers.replay.lookback import Wanted
from penstock_consumers.replay.moments import Moments
from penstock_consumers.replay.seen import Lens
from penstock_consumers.replay.versions import Acting
from penstock_schemas.columns import ranges
from penstock_schemas.connectors import Pipeline, make_pipeline
from penstock_schemas.connectors.normalize import Normalize
from penstock_schemas.connectors.pipeline import PREFIX
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.replay.replay import Replay
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaf
    from penstock_schemas.stream import StreamSpec

# What is read at a time.
_BYTES = 8 << 20


class RunningStatistics:
    """Accumulates what each "normalize" among a stream's connectors is given.

    One that stands behind others is given what these showed with the parameters of the versions that acted; an episode
    that continues one that was cut counts there only where the steps before it are stored. Nothing is kept from one
    process to the next: a new one takes in all that is stored again.

    Args:
        replay: the reader of the store.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._before: Snapshot | None = None
        self._count = 0
        self._stages = _stages(replay.spec, self._now.opener.bucket)

    @property
    def count(self) -> int:
        """How many observations were taken in; those with a NaN, or a number beyond 1e140, are, but have no say."""
        return self._count

    @property
    def weights(self) -> dict[str, NDArray[np.float64]]:
        """The connectors' parameters as they travel among a version's weights, by name; none where none normalizes.

        A mean of 0 and a variance of 1 where nothing was taken in.
        """
        return {
            stage.prefix + leaf.name(name): value
            for stage in self._stages
            for leaf, moments in stage.moments.values()
            for name, value in (("mean", moments.mean.copy()), ("variance", moments.variance))
        }

    def update(self, *, progress: bool = False) -> int:
        """Take in what the reader's snapshot holds and an earlier one did not; tell how many observations that was.

        Each observation counts once, also the one at a cut, which two parts of an episode hold: with the part before
        it. Raises what reading raises; nothing was taken in then. `progress` shows a bar on stderr.
        """
        now = self._now
        if now is self._before or not self._stages:
            return 0
        stages = [stage.copy() for stage in self._stages]
        new = new_since(self._before, now)
        taken = 0
        with bar("statistics", shown=progress) as told:
            told.expect(sum(now.entries[number].steps for number in new))
            hidden = [stage.lens.hidden(now, new.keys()) if stage.lens else None for stage in stages]
            for number, since in new.items():
                segment = now.segment(number)
                rows = np.flatnonzero(segment.fixed("closed_offset") >= since)
                for stage, of in zip(stages, hidden, strict=True):
                    stage.add(now, number, rows if of is None else rows[~of[number][rows]])
                taken += int(_observations(segment, rows)[1].sum())
                told.advance(segment.entry.steps)
        self._stages, self._before, self._count = stages, now, self._count + taken
        return taken

    @property
    def _now(self) -> Snapshot:
        return self._replay._snapshot  # noqa: SLF001  (the reader is of this package; its users have no snapshots)


class _Stage(NamedTuple):
    """One connector that normalizes."""

    prefix: str
    """Of its parameters among a version's weights."""
    lens: Lens | None
    """Shows what comes into it; None where that is what is stored."""
    columns: tuple[Column, ...]
    """Of the observations that are stored."""
    moments: dict[int, tuple[Leaf, Moments]]
    """Of the leaves that it normalizes, by their places."""

    @property
    def item_bytes(self) -> int:
        """What is read of one observation takes."""
        return self.lens.item_bytes if self.lens else sum(column.item_bytes for column in self.columns)

    def copy(self) -> _Stage:
        """Make one that goes on by itself."""
        return self._replace(moments={at: (leaf, moments.copy()) for at, (leaf, moments) in self.moments.items()})

    def add(self, snapshot: Snapshot, number: int, rows: NDArray[np.int64]) -> None:
        """Add the episodes of a segment, given by their rows."""
        first, size = _observations(snapshot.segment(number), rows)
        row, items = np.repeat(rows, size), ranges(first, size)
        most = max(1, _BYTES // self.item_bytes)
        for begin in range(0, len(items), most):
            some = slice(begin, begin + most)
            for at, values in self._values(snapshot, number, row[some], items[some]).items():
                self.moments[at][1].add(values)

    def _values(
        self, snapshot: Snapshot, number: int, row: NDArray[np.int64], items: NDArray[np.int64]
    ) -> dict[int, NDArray[Any]]:
        if self.lens:
            seen = self.lens.show(snapshot, [Wanted(number, row, items, np.ones_like(items))])
            return {at: seen[at] for at in self.moments}
        here = slice(int(items[0]), int(items[-1]) + 1)
        segment = snapshot.segment(number)
        stored = {at: segment.items(self.columns[at].name).view(here) for at in self.moments}
        if len(items) == here.stop - here.start:
            return stored
        return {at: values[items - here.start] for at, values in stored.items()}


def _stages(spec: StreamSpec, bucket: Bucket) -> list[_Stage]:
    pipeline = make_pipeline(spec.policy.get("connectors", ()), spec.observation, spec.action)
    stages = []
    for at, connector in enumerate(pipeline.connectors):
        if isinstance(connector, Normalize):
            before = Pipeline(spec.observation, pipeline.connectors[:at])
            lens = Lens(spec, before, Acting(bucket, before) if before.weights else None) if before else None
            normalized = {
                place: (leaf, Moments(leaf.space.shape))
                for place, leaf in enumerate(leaves(before.space))
                if leaf.name("mean") in connector.parameters
            }
            stages.append(_Stage(f"{PREFIX}{at}.", lens, spec.observation_columns, normalized))
    return stages


def _observations(segment: Segment, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the observations that count with episodes: the item with which those of each begin, and how many they are.

    A part begins with the observation with which the one before it ended.
    """
    continues = segment.batch.column("continues").is_valid().to_numpy(zero_copy_only=False)[rows]
    begin, end = segment.step_offsets[rows], segment.step_offsets[rows + 1]
    return begin + rows + continues, end - begin + 1 - continues
