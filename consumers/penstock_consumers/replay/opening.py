"""Opening segments: when they are first read, each once, and no more of them at a time than can stay mapped."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock_consumers.replay.segment import Segment
from penstock_consumers.store import segments
from penstock_consumers.store.bucket import is_remote
from penstock_consumers.store.cache import Cache
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.stream import StreamSpec

# How many stay open: far fewer than the mappings that Linux grants a process (`vm.max_map_count`, 65,530).
_KEPT = 8192


class Opener:
    """Opens the segments of a store, and keeps those that were read last.

    Args:
        bucket: the store; one in an object store is read through a cache.
        spec: what it is of.
        cache: which; by default the user's own where the store is remote, else none.
        verify: hold each segment against its checksum when it is opened, which reads all of it.
    """

    def __init__(self, bucket: Bucket, spec: StreamSpec, *, cache: Cache | None = None, verify: bool = False) -> None:
        self.bucket = bucket
        self.spec = spec
        self._cache = Cache() if cache is None and is_remote(bucket) else cache
        self._verify = verify
        self._kept: OrderedDict[str, Segment] = OrderedDict()

    def open(self, entry: SegmentEntry) -> Segment:
        """Open a segment, or give the one that is open. Threads may do so at once.

        Whoever holds a segment may read it, whatever is deleted. Raises `FileNotFoundError` where the store does not
        have it, `CorruptStoreError` where it is not as its commit names it.
        """
        # Taken out and laid in again, each in one step of the interpreter: at worst two threads open it twice.
        segment = self._kept.pop(entry.name, None)
        if segment is None:
            segment = Segment.open(entry, self._read(entry), self.spec)
        elif self._cache is not None:
            self._cache.touch(self.bucket, entry)
        self._kept[entry.name] = segment
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return segment

    def _read(self, entry: SegmentEntry) -> pa.Buffer:
        if self._cache is not None:
            return self._read_through(self._cache, entry)
        data = self.bucket.read(entry.name)
        if self._verify and not segments.is_intact(entry, data):
            raise CorruptStoreError(
                f"segment {entry.name}: its bytes are not those that were written: restore it; `penstock-store verify "
                "--quick` names all that are damaged"
            )
        return data

    def _read_through(self, cache: Cache, entry: SegmentEntry) -> pa.Buffer:
        fetched = cache.counts.fetched
        data = cache.read(self.bucket, entry, verify=self._verify)
        if cache.counts.fetched > fetched:
            # What was evicted takes room until it is let go of.
            for name, segment in tuple(self._kept.items()):
                if not cache.holds(self.bucket, segment.entry):
                    self._kept.pop(name, None)
        return data
