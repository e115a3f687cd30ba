"""What a store has of a partition, read to be compared with the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_consumers.store import commits, segments
from penstock_consumers.verify.entries import fault_of_episodes, fault_of_rows
from penstock_consumers.verify.reading import Read, Segments, read_living

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Live
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class Newest:
    """A partition's newest commit, and what lives there."""

    commit: Commit
    live: Live


@dataclass(frozen=True, slots=True)
class Stored:
    """A partition's newest commit, and the segments that live there: of whole episodes, and of open rows."""

    commit: Commit
    episodes: list[Read[pa.RecordBatch]]
    rows: list[Read[pa.RecordBatch]]


class Reading:
    """Reads a partition of a store; what was read once is not read again, however often the newest is asked for."""

    def __init__(self, bucket: Bucket, spec: StreamSpec, partition: int) -> None:
        self._bucket = bucket
        self._partition = partition
        self._episodes = Segments(bucket, segments.episode_schema(spec), lambda batch: batch, fault_of_episodes)
        self._rows = Segments(bucket, segments.open_schema(spec), lambda batch: batch, fault_of_rows)

    def newest(self) -> Stored | None:
        """Read the partition at its newest commit; None where it has none."""
        first = commits.newest(self._bucket, self._partition)
        if first is None:
            return None

        def newest() -> Newest:
            commit = commits.newest(self._bucket, self._partition, known=first.number) or first
            return Newest(commit, commits.live_at(self._bucket, commit))

        found = read_living(newest, self._episodes, self._rows)
        return Stored(found.commit, self._episodes.read(found.live.segments), self._rows.read(found.live.open))
