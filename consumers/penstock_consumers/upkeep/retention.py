"""Retention: which of the oldest segments of a partition go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.store import commits
from penstock_consumers.store.commits import in_log_order, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_consumers.upkeep.head import Rewritable


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep; None keeps everything.

    `steps` (at least) and `bytes` of segments (at most) are of the whole store; each partition that has commits has an
    equal share of them. `seconds` are in the log's time, from an episode's end to the newest record. `versions` of the
    policy are counted back from the newest that acted in the partition. Each limit stands for itself: a segment goes
    as soon as one of them lets it go.
    """

    steps: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    versions: int | None = None


def shares(bucket: Bucket, retention: Retention) -> int:
    """Count the partitions that share the limits of the whole store: those that have commits."""
    if retention.steps is None and retention.bytes is None:
        return 1
    return max(len(commits.partitions(bucket)), 1)


def retire(partition: Rewritable, retention: Retention, share: int) -> list[SegmentEntry]:
    """Make a commit that lets a partition's oldest segments go if any are due; give those.

    Raises `FencedError` where another writer made the commit.
    """
    newest = partition.commit_found
    if newest is None or newest.last is None:
        return []
    gone = expired(partition.live.segments, retention, newest_ms=newest.last.timestamp_ms, shares=share)
    if gone:
        partition.rewrite(retired=gone)
    return gone


def expired(
    segments: Sequence[SegmentEntry], retention: Retention, *, newest_ms: int, shares: int
) -> list[SegmentEntry]:
    """Choose what goes of a partition's segments: whole ones only, the oldest first, none before an older one.

    `newest_ms` is the log's time of the newest record, in milliseconds since 1970; `shares` is among how many
    partitions the limits of the whole store are shared.
    """
    laid = in_log_order(segments)
    # By each limit, how many of the oldest go.
    counts = [0]
    if retention.steps is not None:
        enough = _left(entry.steps for entry in laid) * shares >= retention.steps
        counts.append(int(np.count_nonzero(enough)) - 1)
    if retention.bytes is not None:
        too_much = _left(entry.bytes for entry in laid) * shares > retention.bytes
        counts.append(int(np.count_nonzero(too_much)))
    if retention.seconds is not None:
        oldest = newest_ms - retention.seconds * 1000
        counts.append(_leading(ranges_of(entry).closed_ms[1] < oldest for entry in laid))
    if retention.versions is not None:
        newest = [ranges_of(entry).policy_version[1] for entry in laid]
        counts.append(_leading(version <= max(newest) - retention.versions for version in newest))
    return laid[: max(counts)]


def _left(sizes: Iterable[int]) -> NDArray[np.int64]:
    """What is left once the 0, 1, 2 … oldest have gone, shape (segments + 1,)."""
    each = np.array([*sizes, 0], np.int64)
    return np.cumsum(each[::-1])[::-1]


def _leading(goes: Iterable[bool]) -> int:
    """How many go before the first that stays."""
    return sum(1 for _ in takewhile(bool, goes))
