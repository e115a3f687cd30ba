"""Opening segments: when they are first read, each once, and no more of them at a time than can stay mapped."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.segment import Segment
from penstock_consumers.store import segments
from penstock_consumers.store.bucket import is_remote
from penstock_consumers.store.cache import Cache
from penstock_schemas.errors import CorruptStoreError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec

# How many stay open: far fewer than the mappings that Linux grants a process (`vm.max_map_count`, 65,530).
_KEPT = 8192
# Of those that are too many, this part goes at once.
_SHARE = 16
# How often a cache is told that a segment which is open is still used.
_TOUCH_SECONDS = 60.0


@dataclass(slots=True)
class _Open:
    segment: Segment
    touched: float
    """When its cache was last told that it is used, by the clock that only goes forward."""


class Opener:
    """Opens the segments of a store, and keeps them open while a snapshot in use lists them.

    Args:
        bucket: the store; one in an object store is read through a cache.
        spec: what it is of.
        cache: which; by default the user's own where the store is remote, else none.
        verify: hold each segment against its checksum when it is opened, which reads all of it.

    Raises:
        SettingsError: `cache` is no `Cache`.
    """

    def __init__(self, bucket: Bucket, spec: StreamSpec, *, cache: Cache | None = None, verify: bool = False) -> None:
        if not isinstance(cache, Cache | None):
            raise SettingsError(f"cache {cache!r}: give Replay.open a Cache: cache=Cache(folder, max_bytes)")
        self.bucket = bucket
        self.spec = spec
        self._given = cache
        self._verify = verify
        self._kept: dict[str, _Open] = {}
        self._snapshots: list[weakref.ref[Snapshot]] = []
        self._unlinked = 0
        self._rng = np.random.default_rng(0)

    def serve(self, snapshot: Snapshot) -> None:
        """Keep what a snapshot lists from now on, for as long as it lives."""
        self._snapshots.append(weakref.ref(snapshot))
        self.tidy()

    def tidy(self) -> None:
        """Let go of what only snapshots listed of which none is in use any more."""
        snapshots = [(known, known()) for known in self._snapshots]
        listed = {entry.name for _, snapshot in snapshots if snapshot for entry in snapshot.entries}
        self._snapshots = [known for known, snapshot in snapshots if snapshot]
        self._let_go(name for name in tuple(self._kept) if name not in listed)

    def open(self, entry: SegmentEntry) -> Segment:
        """Open a segment, or give the one that is open. Threads may do so at once.

        Whoever holds a segment may read it, whatever is deleted. Raises `FileNotFoundError` where the store does not
        have it, `CorruptStoreError` where it is not as its commit names it.
        """
        # Each step is one of the interpreter's: at worst two threads open it twice.
        kept = self._kept.get(entry.name)
        if kept is None:
            kept = _Open(self._opened(entry), time.monotonic())
            self._kept[entry.name] = kept
            self._thin()
        elif self._cache is not None and time.monotonic() - kept.touched >= _TOUCH_SECONDS:
            kept.touched = time.monotonic()
            self._cache.touch(self.bucket, entry)
        return kept.segment

    @cached_property
    def _cache(self) -> Cache | None:
        return Cache() if self._given is None and is_remote(self.bucket) else self._given

    def _thin(self) -> None:
        """Let go of some where there are too many.

        Any of them: of those that were read longest ago, whoever reads all in their order would find none again.
        """
        if len(names := tuple(self._kept)) > _KEPT:
            gone = self._rng.choice(len(names), max(len(names) - _KEPT, _KEPT // _SHARE), replace=False)
            self._let_go(names[at] for at in gone.tolist())

    def _let_go(self, names: Iterable[str]) -> None:
        for name in names:
            self._kept.pop(name, None)

    def _opened(self, entry: SegmentEntry) -> Segment:
        if self._cache is None:
            return Segment.open(entry, self._read(entry), self.spec)
        data = self._read_through(self._cache, entry, verify=self._verify)
        try:
            return Segment.open(entry, data, self.spec)
        except CorruptStoreError:
            # It may be the cache's file that is damaged: that is fetched again where it is.
            return Segment.open(entry, self._read_through(self._cache, entry, verify=True), self.spec)

    def _read(self, entry: SegmentEntry) -> pa.Buffer:
        data = self.bucket.read(entry.name)
        if self._verify and not segments.is_intact(entry, data):
            raise CorruptStoreError(
                f"segment {entry.name}: its bytes are not those that were written: {segments.RESTORE}"
            )
        return data

    def _read_through(self, cache: Cache, entry: SegmentEntry, *, verify: bool) -> pa.Buffer:
        data = cache.read(self.bucket, entry, verify=verify)
        if cache.unlinked > self._unlinked:
            self._unlinked = cache.unlinked
            # What was evicted takes room until it is let go of.
            kept = tuple(self._kept.items())
            self._let_go(name for name, of in kept if not cache.maps(self.bucket, of.segment.entry))
        return data
