"""Verifying: the log is judged again, and every episode that comes of it is looked up in the store.

It begins at offset 0, or at the oldest commit that the log still reaches. What the store holds beyond that, twice, or
otherwise is counted as well; so are the rows of open episodes, and every chunk row and step of the log, in disjoint
classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.progress import Progress
from penstock_consumers.store import commits, layout, manifest
from penstock_consumers.verify.partition import Verification
from penstock_consumers.verify.quick import quick
from penstock_consumers.verify.report import Report
from penstock_consumers.verify.traces import expect_no_traces
from penstock_schemas.errors import StoreError, TopicError

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.manifest import Manifest
    from penstock_schemas.log import Log, Reader, TopicInfo

__all__ = ["Report", "quick", "verify"]


def verify(bucket: Bucket, log: Log, topic_name: str | None = None, *, progress: Progress | None = None) -> Report:
    """Compare a store at its newest commits with the log that it was read from.

    `progress` is told of the log's offsets. Raises `StoreError` or `TopicError` where the two cannot be compared at
    all.
    """
    found = manifest.load(bucket)
    if found is None:
        raise StoreError(f"store {bucket.url}: there is no {layout.MANIFEST}, so nothing was stored yet: check the URL")
    topic = log.describe(topic_name or f"rollouts.{found.spec.stream}")
    manifest.check(bucket, found, found.spec.stream, topic.topic_id, topic.cluster_id)
    report = Report()
    for partition in range(topic.partitions):
        reader = log.reader()
        try:
            _verify_partition(bucket, found, reader, topic, partition, report, progress or Progress())
        finally:
            reader.close()
    return report


def _verify_partition(
    bucket: Bucket,
    found: Manifest,
    reader: Reader,
    topic: TopicInfo,
    partition: int,
    report: Report,
    progress: Progress,
) -> None:
    newest = commits.newest(bucket, partition)
    # In this order: a log that is read while it is written to ends no earlier than the commit says.
    start, end = reader.bounds(topic.name, partition)
    high_water = newest.high_water if newest else 0
    if end < high_water:
        raise TopicError(f"partition {partition}: the log ends at {end}, the store at {high_water}")
    lost = max(start - high_water, 0) + (newest.counters.get("offsets_lost", 0) if newest else 0)
    if lost:
        report.offsets_lost += lost
        report.found(f"partition {partition}: {lost} offsets were deleted from the log before they were judged")
    report.messages_behind += end - max(start, high_water)
    if newest is None:
        expect_no_traces(bucket, partition, report)
    else:
        Verification(bucket, found, topic, newest, report, progress).run(reader, start)
