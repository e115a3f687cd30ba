"""Collection: what no reader and no writer can need any more is deleted.

The storage's clock is the only one that counts, and only in differences. Let W be the newest commit that was written
at least the safety age before the newest of all. A segment that was written for a number below W, and does not live at
W, goes: its writer's number is taken, so no later commit will name it, and a reader whose snapshot was the newest
within the safety age stands at W or later. What a named snapshot holds stays.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from penstock_consumers.store import commits, layout, snapshots
from penstock_schemas.errors import CorruptStoreError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit


class Collected(NamedTuple):
    """How many objects were deleted, and why the first of those was not that may not be, where there are any."""

    deleted: int
    refused: StoreError | None


def collect(bucket: Bucket, newest: Commit, collect_seconds: float, most: int | None = None) -> Collected:
    """Collect a partition whose newest commit is `newest`; `most` objects are tried at most.

    It looks at the ages of as many commits as their number has binary digits, and lists the segments.
    """
    latest = _written(bucket, newest.partition, newest.number) - collect_seconds
    number = bisect_right(
        range(newest.number + 1), latest, key=lambda number: _written(bucket, newest.partition, number)
    )
    if number == 0:
        return Collected(0, None)
    settled = commits.read(bucket, newest.partition, number - 1)
    # What is collected does not depend on when snapshots are read: a later one names what lives at W or later.
    garbage = [*_segments(bucket, settled), *_leftovers(bucket, settled, latest)]
    # From elsewhere each time, so that what may not be deleted keeps nothing else.
    start = newest.number % max(len(garbage), 1)
    deleted, refused = 0, None
    for name in islice(chain(garbage[start:], garbage[:start]), most):
        try:
            bucket.delete(name)
        except StoreError as error:
            refused = refused or error
        else:
            deleted += 1
    return Collected(deleted, refused)


def _segments(bucket: Bucket, settled: Commit) -> list[str]:
    """Name the segments that go, of whole episodes and open ones."""
    listed = [name for prefix in layout.segments(settled.partition) for name in bucket.list(prefix)]
    needed = commits.live_at(bucket, settled).names | snapshots.segments_held(bucket, settled.partition)
    return [name for name in listed if _taken(name, settled.number) and name not in needed]


def _taken(name: str, number: int) -> bool:
    """Tell whether a segment was written for a commit below `number`; what is no segment was not."""
    written_for = layout.written_for(name)
    return written_for is not None and written_for < number


def _leftovers(bucket: Bucket, settled: Commit, latest: float) -> Iterator[str]:
    """Name what writers that died left unfinished; one that was only paused finds it gone, and begins anew."""
    # The last collection's W may have been in the folder before.
    numbers = {settled.number, max(settled.number - layout.COMMITS_PER_FOLDER, 0)}
    folders = {layout.commit_folder(settled.partition, number) for number in numbers}
    for prefix in ("", *layout.segments(settled.partition), *folders, layout.SNAPSHOTS, layout.POLICIES):
        yield from (name for name, written in bucket.leftovers(prefix) if written <= latest)


def _written(bucket: Bucket, partition: int, number: int) -> float:
    name = layout.commit(partition, number)
    try:
        return bucket.modified(name)
    except FileNotFoundError as error:
        raise CorruptStoreError(f"commit {name}: it is missing, though a later one exists: restore it") from error
