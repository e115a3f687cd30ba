"""Verifying: the log is judged again, and every episode that comes of it is looked up in the store.

It begins at offset 0, or at the oldest commit that the log still reaches; what ended before is taken as it is. What the
store holds beyond that, twice, or otherwise is counted as well; so are the rows of open episodes, and every chunk row
and step of the log, in disjoint classes.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING

from penstock_consumers.progress import Progress
from penstock_consumers.store import commits, layout, manifest
from penstock_consumers.verify.partition import MovedOnError, Verification
from penstock_consumers.verify.quick import quick
from penstock_consumers.verify.report import Report
from penstock_consumers.verify.stored import Reading
from penstock_consumers.verify.traces import expect_no_traces
from penstock_schemas.errors import StoreError, TopicError

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.manifest import Manifest
    from penstock_consumers.verify.stored import Stored
    from penstock_schemas.log import Log, Reader, TopicInfo

__all__ = ["Report", "quick", "verify"]

# How often a partition is judged from where its log begins by then.
_TRIES = 10


def verify(bucket: Bucket, log: Log, topic_name: str | None = None, *, progress: Progress | None = None) -> Report:
    """Compare a store at its newest commits with the log that it was read from.

    `progress` is told of the log's offsets. Raises `StoreError` or `TopicError` where the two cannot be compared at
    all.
    """
    found = manifest.load(bucket)
    if found is None:
        raise StoreError(f"store {bucket.url}: there is no {layout.MANIFEST}, so nothing was stored yet: check the URL")
    # In this order: partitions may be added to a topic.
    committed = commits.partitions(bucket)
    topic = log.describe(topic_name or f"rollouts.{found.spec.stream}")
    manifest.check(bucket, found, found.spec.stream, topic.topic_id, topic.cluster_id)
    report = Report()
    for partition in range(topic.partitions):
        reader = log.reader()
        try:
            report = _with_partition(report, bucket, found, reader, topic, partition, progress or Progress())
        finally:
            reader.close()
    for partition in (number for number in committed if number >= topic.partitions):
        # A folder may be there without a commit.
        if commits.newest(bucket, partition):
            report.commits_wrong += 1
            report.found(
                f"partition {partition}: it has commits, though the topic {topic.name!r} has {topic.partitions} "
                "partitions: move them out of the store"
            )
    return report


def _with_partition(
    report: Report,
    bucket: Bucket,
    found: Manifest,
    reader: Reader,
    topic: TopicInfo,
    partition: int,
    progress: Progress,
) -> Report:
    """Add a partition to a report; it is begun again where the log or the store moved on past what is compared."""
    reading = Reading(bucket, found.spec, partition)
    for _ in range(_TRIES):
        told = deepcopy(report)
        with suppress(MovedOnError):
            _verify_partition(bucket, found, reader, topic, partition, reading.newest(), told, progress)
            return told
    raise TopicError(
        f"partition {partition}: what was to be judged was deleted from the log before, {_TRIES} times in a row: "
        f"lengthen the retention of the topic {topic.name!r}, or verify where reading is faster"
    )


def _verify_partition(
    bucket: Bucket,
    found: Manifest,
    reader: Reader,
    topic: TopicInfo,
    partition: int,
    stored: Stored | None,
    report: Report,
    progress: Progress,
) -> None:
    newest = stored and stored.commit
    # In this order: a log that is read while it is written to ends no earlier than the commit says.
    start, end = reader.bounds(topic.name, partition)
    high_water = newest.high_water if newest else 0
    if end < high_water:
        raise TopicError(f"partition {partition}: the log ends at {end}, the store at {high_water}")
    # Reading what is stored may have taken longer than the log keeps what was judged meanwhile.
    if start > high_water and commits.newest(bucket, partition, known=newest.number if newest else -1):
        raise MovedOnError
    lost = max(start - high_water, 0) + (newest.counters.get("offsets_lost", 0) if newest else 0)
    if lost:
        report.offsets_lost += lost
        report.found(f"partition {partition}: {lost} offsets were deleted from the log before they were judged")
    report.messages_behind += end - max(start, high_water)
    if stored is None:
        expect_no_traces(bucket, partition, report)
    else:
        Verification(bucket, found, topic, stored, report, progress).run(reader, start)
