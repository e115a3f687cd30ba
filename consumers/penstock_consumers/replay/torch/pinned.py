"""A reader at given commits, so that several processes read one snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock_consumers.replay.replay import Replay
from penstock_consumers.replay.snapshot import Partition
from penstock_consumers.store import commits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.cache import Cache


class Pinned(Replay):
    """Stays at the commit of each partition, as `Replay.snapshot` names them."""

    def __init__(
        self, bucket: Bucket, numbers: Mapping[int, int], *, cache: Cache | None = None, verify: bool = False
    ) -> None:
        super().__init__(bucket, cache=cache, verify=verify)
        read = {partition: commits.read(bucket, partition, number) for partition, number in sorted(numbers.items())}
        partitions = {partition: Partition(at, commits.live_at(bucket, at)) for partition, at in read.items()}
        laid = (commits.in_log_order(at.live.segments) for at in partitions.values())
        entries = tuple(entry for entries in laid for entry in entries)
        self._snapshot = replace(self._snapshot, partitions=partitions, entries=entries)

    def refresh(self) -> bool:
        """Tell that there is nothing newer for it."""
        return False
