"""What the owner of a partition does between its commits, so that a store's files and bytes stay bounded."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock_consumers.upkeep.collection import collect
from penstock_consumers.upkeep.compaction import compact
from penstock_consumers.upkeep.retention import Retention, retire, shares
from penstock_schemas.errors import SettingsError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.upkeep.head import Rewritable

_LOG = logging.getLogger(__name__)
# Of how many commits a partition is collected at once: listing what it has costs more than deleting what they left.
COLLECT_EVERY = 100
# How many objects are deleted in one call, at most, so that it is soon over: the rest goes in the next.
MOST_COLLECTED = 256
# A list of a column has offsets of 32 bits.
MOST_COMPACT_BYTES = 1 << 30
# What goes by bytes goes by whole segments, so these must be small beside what is kept.
_SEGMENTS_KEPT = 8


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """Up to which size small segments are joined, what is kept, and how long what is no longer needed stays readable.

    `collect_seconds` are of the storage's clock. Raises `SettingsError` where `compact_bytes` is over 1 GiB.
    """

    compact_bytes: int = 128 << 20
    collect_seconds: float = 3600.0
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        if self.compact_bytes > MOST_COMPACT_BYTES:
            raise SettingsError(f"compact_bytes {self.compact_bytes}: it may be {MOST_COMPACT_BYTES} at most")


class Kept(NamedTuple):
    """What was done in a partition."""

    rewritten: bool
    """Whether a commit was made; then more may be due after the partition's next."""
    collected: int
    """How many objects were deleted."""


class Upkeep:
    """Retires, compacts and collects the partitions of a store, a little at each call."""

    def __init__(self, bucket: Bucket, settings: UpkeepSettings) -> None:
        self._bucket = bucket
        self._settings = settings
        self._apart: set[str] = set()
        self._collected: dict[int, int] = {}

    def run(self, partition: Rewritable) -> Kept:
        """Do what is due in a partition that this process owns: at most one commit, which judges nothing.

        What was judged and waits for its commit waits on. Raises `FencedError` where another writer made the commit:
        load the partition again.
        """
        retention = self._settings.retention
        share = shares(self._bucket, retention)
        rewritten = bool(retire(partition, retention, share)) or compact(
            self._bucket, partition, self._compact_bytes(share), self._apart
        )
        return Kept(rewritten, self._collect(partition))

    def _compact_bytes(self, share: int) -> int:
        most, kept = self._settings.compact_bytes, self._settings.retention.bytes
        return most if kept is None else min(most, max(kept // share // _SEGMENTS_KEPT, 1))

    def _collect(self, partition: Rewritable) -> int:
        newest = partition.commit_found
        if newest is None or newest.number < self._collected.get(partition.partition, 0) + COLLECT_EVERY:
            return 0
        collected = 0
        refused: Exception | None = None
        try:
            collected, refused = collect(self._bucket, newest, self._settings.collect_seconds, MOST_COLLECTED)
        except (StoreError, StoreUnavailableError) as error:
            refused = error
        if refused is not None:
            # What is left lying costs room; what comes in goes on.
            _LOG.error("partition %d is not wholly collected: %s", partition.partition, refused)
        if collected < MOST_COLLECTED:
            self._collected[partition.partition] = newest.number
        return collected
