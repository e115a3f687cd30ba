"""Segments that are read to be verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock_consumers.progress import Progress
from penstock_consumers.store import segments
from penstock_schemas.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Live, SegmentEntry

Kept = TypeVar("Kept")


class Known(Protocol):
    """What is known of a partition at a commit."""

    @property
    def live(self) -> Live:
        """The segments that live there."""
        ...


Found = TypeVar("Found", bound=Known)


@dataclass(frozen=True, slots=True)
class Read(Generic[Kept]):
    """A segment that a commit names: what is kept of it, None where it is missing or damaged; and what is wrong."""

    entry: SegmentEntry
    kept: Kept | None
    fault: str = ""
    missing: bool = False


class Segments(Generic[Kept]):
    """Segments of a kind, each read once. Of one whose bytes are not those that were written nothing is looked at.

    `keep` tells what is kept of one that is intact, `fault_of` where a commit's entry is not what it has.
    """

    def __init__(
        self,
        bucket: Bucket,
        schema: pa.Schema,
        keep: Callable[[pa.RecordBatch], Kept],
        fault_of: Callable[[SegmentEntry, pa.RecordBatch], str | None],
        progress: Progress | None = None,
    ) -> None:
        self._bucket = bucket
        self._schema = schema
        self._keep = keep
        self._fault_of = fault_of
        self._progress = progress or Progress()
        self._read: dict[str, Read[Kept]] = {}

    def read(self, entries: Iterable[SegmentEntry]) -> list[Read[Kept]]:
        """Read those that were not; the progress is told of their steps."""
        # By how they read, since two entries of one name may differ.
        named = [(repr(entry), entry) for entry in entries]
        unread = {key: entry for key, entry in named if key not in self._read}
        self._progress.expect(sum(entry.steps for entry in unread.values()))
        for key, entry in unread.items():
            self._read[key] = self._look(entry)
            self._progress.advance(entry.steps)
        return [self._read[key] for key, _ in named]

    def _look(self, entry: SegmentEntry) -> Read[Kept]:
        try:
            data = self._bucket.read(entry.name)
        except FileNotFoundError:
            return Read(entry, None, f"segment {entry.name}: it is missing: restore it", missing=True)
        if not segments.is_intact(entry, data):
            return Read(entry, None, f"segment {entry.name}: its bytes are not those that were written: restore it")
        try:
            batch = segments.parsed(entry, data, self._schema)
        except CorruptStoreError as error:
            return Read(entry, None, str(error))
        return Read(entry, self._keep(batch), self._fault_of(entry, batch) or "")


def read_living(newest: Callable[[], Found], episodes: Segments[Any], rows: Segments[Any]) -> Found:
    """Read what lives at a partition's newest commit, which is given.

    Where reading takes so long that some of it is joined or retired, and collected, meanwhile, that is no damage: what
    lives at the commit that is the newest then is read, as far as it was not.
    """
    found = newest()
    while True:
        read = (*episodes.read(found.live.segments), *rows.read(found.live.open))
        missing = {each.entry.name for each in read if each.missing}
        newer = newest() if missing else found
        if missing <= newer.live.names:
            return found
        found = newer
