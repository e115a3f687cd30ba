"""A partition that this member holds: taken on from its newest commit, checked against the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock_consumers.partition import record_digest
from penstock_schemas.errors import TopicError

if TYPE_CHECKING:
    from penstock_consumers.beside import Call
    from penstock_consumers.partition import Committed, Partition
    from penstock_consumers.store.commits import LastRecord
    from penstock_schemas.log import Record, TopicInfo

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Held:
    """A partition that this member holds, and what its clock knows of it; times are the worker's, in seconds."""

    partition: Partition
    last_record: float
    next_upkeep: float
    # The newest commit's last record, until it was read again and found the same.
    unchecked: LastRecord | None = None
    dirty_since: float | None = None
    timestamp_ms: int = 0
    # How many records the last commit judged, and how many were judged since.
    records_committed: int = 0
    records: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    # What a thread beside does with the partition: a commit, and the seconds that it took; upkeep.
    committing: Call[tuple[Committed | None, float]] | None = None
    upkeep: Call[Any] | None = None

    @property
    def begin(self) -> int:
        """The offset from which to read."""
        return self.partition.high_water - (self.unchecked is not None)

    def take(self, record: Record, now: float) -> None:
        """Judge a record; the first may be the newest commit's last, which must be the one that was judged."""
        if self.unchecked is not None:
            self._check(record, self.unchecked)
            self.unchecked = None
            return
        self.partition.take(record)
        self.last_record = now
        self.timestamp_ms = record.timestamp_ms
        self.records += 1
        if self.dirty_since is None:
            self.dirty_since = now

    def committed(self) -> None:
        """What was judged is in the store."""
        self.dirty_since = None
        self.records_committed, self.records = self.records, 0

    def _check(self, record: Record, last: LastRecord) -> None:
        found = (record.offset, record.timestamp_ms, record_digest(record))
        if found != (last.offset, last.timestamp_ms, last.digest):
            raise TopicError(
                f"topic {record.topic!r}, partition {record.partition}: the record at offset {record.offset} is not "
                f"the one that the store has read up to {last.offset}: the log was rewritten; begin a new store and "
                "topic"
            )


def take_on(partition: Partition, topic: TopicInfo, bounds: tuple[int, int], *, now: float, upkeep_at: float) -> Held:
    """Hold a partition whose log has the offsets `bounds`, from the first up to the end.

    Raises `TopicError` where the log is not the one that the store has read.
    """
    start, end = bounds
    held = Held(partition, now, upkeep_at)
    found = partition.commit_found
    if found is not None:
        if (found.topic_id, found.cluster_id) != (topic.topic_id, topic.cluster_id):
            raise TopicError(
                f"topic {topic.name!r}: its id is {topic.topic_id} in cluster {topic.cluster_id}, commit {found.name} "
                f"was read from {found.topic_id} in {found.cluster_id}: it was recreated; begin a new store"
            )
        if end < partition.high_water:
            raise TopicError(
                f"topic {topic.name!r}, partition {partition.partition}: it ends at offset {end}, the store has read "
                f"up to {partition.high_water}: the log lost its end; begin a new store and topic"
            )
        held.counted = dict(found.counters)
        held.timestamp_ms = found.last.timestamp_ms if found.last else 0
        held.unchecked = found.last if start < partition.high_water else None
    if start > partition.high_water:
        _LOG.error(
            "partition %d: the log begins at offset %d, the store has read up to %d: %d offsets are lost",
            *(partition.partition, start, partition.high_water, start - partition.high_water),
        )
        partition.skip_to(start)
    return held
