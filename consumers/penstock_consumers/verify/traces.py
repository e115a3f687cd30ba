"""What a partition without commits may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.store import commits, layout

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.verify.report import Report


def expect_no_traces(bucket: Bucket, partition: int, report: Report) -> None:
    """Hold a partition without a commit to what it may have: nothing that was written for any but the first.

    A consumer that died in its first commit leaves segments of that; one writes those of another only after it.
    """
    for prefix in layout.segments(partition):
        for name in bucket.list(prefix):
            if layout.written_for(name):
                # It may have made its first commits since they were asked for.
                if commits.newest(bucket, partition) is None:
                    report.commits_wrong += 1
                    report.found(f"partition {partition}: it has no commits, though there is {name}: restore them")
                return
