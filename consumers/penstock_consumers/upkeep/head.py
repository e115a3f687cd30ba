"""A partition at its newest commit, as who replaces its segments sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock_consumers.store import commits
from penstock_consumers.store.commits import Live

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, SegmentEntry


class Rewritable(Protocol):
    """A partition whose segments can be replaced: its owner's `Partition`, or a tool's `Head`."""

    @property
    def partition(self) -> int:
        """Its number."""
        ...

    @property
    def commit_found(self) -> Commit | None:
        """The newest commit that is known; None where there is none yet."""
        ...

    @property
    def live(self) -> Live:
        """The segments that live at that commit."""
        ...

    def rewrite(
        self,
        *,
        added: Sequence[SegmentEntry] = (),
        removed: Sequence[str] = (),
        retired: Sequence[SegmentEntry] = (),
    ) -> Commit:
        """Make the next commit, as `commits.rewrite`; raises `FencedError` where another has its number."""
        ...


class Head:
    """A partition as a tool takes it: neither log nor records, the newest commit alone."""

    def __init__(self, bucket: Bucket, partition: int) -> None:
        self._bucket = bucket
        self._partition = partition
        self._commit = commits.newest(bucket, partition)
        self._live = commits.live_at(bucket, self._commit) if self._commit else Live()

    @property
    def partition(self) -> int:
        """Its number."""
        return self._partition

    @property
    def commit_found(self) -> Commit | None:
        """The newest commit; None where there is none."""
        return self._commit

    @property
    def live(self) -> Live:
        """The segments that live at that commit."""
        return self._live

    def rewrite(
        self,
        *,
        added: Sequence[SegmentEntry] = (),
        removed: Sequence[str] = (),
        retired: Sequence[SegmentEntry] = (),
    ) -> Commit:
        """Make the next commit; raises `FencedError` where the partition's owner, or another tool, has its number."""
        if self._commit is None:
            raise ValueError(f"partition {self._partition} has no commit yet, so no segments to replace")
        self._commit, self._live = commits.rewrite(
            self._bucket, self._commit, self._live, added=added, removed=removed, retired=retired
        )
        return self._commit
