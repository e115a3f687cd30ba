"""A store in memory in which the log is judged again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock_consumers.store import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock_consumers.store.commits import Commit, SegmentEntry
    from penstock_consumers.store.manifest import Manifest
    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Record


class Scratch:
    """A store in memory in which the log is judged again; whole episodes are compared, and not kept."""

    url = "the store that verifying makes in memory"

    def __init__(self, found: Manifest) -> None:
        self._objects: dict[str, bytes] = {layout.MANIFEST: found.to_json()}

    def create(self, name: str, data: bytes) -> bool:
        """As `Bucket.create`."""
        return self._objects.setdefault(name, data) is data

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        """As `Bucket.put`, but segments of whole episodes are gone at once."""
        if not name.startswith("segments/"):
            self._objects[name] = b"".join(memoryview(piece) for piece in pieces)

    def read(self, name: str) -> pa.Buffer:
        """As `Bucket.read`."""
        try:
            return pa.py_buffer(self._objects[name])
        except KeyError as error:
            raise FileNotFoundError(name) from error

    def list(self, prefix: str) -> Iterator[str]:
        """As `Bucket.list`."""
        return (name for name in self._objects if name.startswith(prefix))

    def keep(self, opened: Iterable[SegmentEntry], *commits: Commit) -> None:
        """Keep what is open, and these commits: all that judging goes on from, however much came before."""
        kept = (layout.MANIFEST, *(entry.name for entry in opened))
        self._objects = {name: self._objects[name] for name in kept}
        self._objects |= {commit.name: commit.to_json() for commit in commits}


class NoQuarantine:
    """Quarantined records are counted by the judge, and lie in the dead-letter topic already."""

    def add(self, record: Record, rejected: RejectedError) -> None:
        """Nothing is set aside."""

    def flush(self) -> None:
        """Nothing is waited for."""
