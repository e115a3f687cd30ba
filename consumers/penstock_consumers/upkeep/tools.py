"""Upkeep of all partitions of a store at once, by a tool that holds none of them and needs no log.

A commit that a tool makes takes its number from the partition's owner, which is fenced at its next commit, loads the
partition again, and loses nothing.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from penstock_consumers.store import commits
from penstock_consumers.store.commits import Retired
from penstock_consumers.upkeep import collection, compaction, retention
from penstock_consumers.upkeep.head import Head
from penstock_schemas.errors import FencedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.upkeep.retention import Retention

T = TypeVar("T")
_TRIES = 20


def compact(bucket: Bucket, compact_bytes: int, apart: set[str] | None = None) -> int:
    """Join small segments up to `compact_bytes` until there is nothing to join; give how many commits that took.

    The names of those that are not as they were written, and stay as they are, are added to `apart`. Raises
    `StoreError` where a partition's owner is always faster.
    """
    damaged = set[str]() if apart is None else apart
    made = 0
    for number in commits.partitions(bucket):
        while _at_head(bucket, number, lambda head: compaction.compact(bucket, head, compact_bytes, damaged)):
            made += 1
    return made


def retain(bucket: Bucket, limits: Retention) -> Retired:
    """Let go what the limits do not keep; give what that was.

    Raises `StoreError` where a partition's owner is always faster.
    """
    share = retention.shares(bucket, limits)
    gone = Retired()
    for number in commits.partitions(bucket):
        gone = reduce(Retired.plus, _at_head(bucket, number, lambda head: retention.retire(head, limits, share)), gone)
    return gone


def gc(bucket: Bucket, collect_seconds: float) -> int:
    """Delete what no reader of the last `collect_seconds` of the storage's clock can need; give how many objects.

    Raises `StoreError` where some may not be deleted, when all others are.
    """
    collected = [collection.collect(bucket, commit, collect_seconds) for commit in commits.newest_of_each(bucket)]
    for each in collected:
        if each.refused is not None:
            raise each.refused
    return sum(each.deleted for each in collected)


def _at_head(bucket: Bucket, number: int, step: Callable[[Head], T]) -> T:
    """Take a step from the newest commit, again from a newer one where another writer was faster."""
    for _ in range(_TRIES):
        try:
            return step(Head(bucket, number))
        except FencedError:
            continue
    raise StoreError(
        f"store {bucket.url}, partition {number}: its owner made a commit first {_TRIES} times: leave this to the "
        "consumer, or stop it first"
    )
