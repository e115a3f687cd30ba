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

    def open(self, name: str) -> pa.NativeFile:
        """As `Bucket.open`."""
        return pa.BufferReader(self.read(name))

    def delete(self, name: str) -> None:
        """As `Bucket.delete`."""
        self._objects.pop(name, None)

    def modified(self, name: str) -> float:
        """As `Bucket.modified`; time stands still here."""
        self.read(name)
        return 0.0

    def folders(self, prefix: str) -> Iterator[str]:
        """As `Bucket.folders`."""
        below = (name.removeprefix(prefix) for name in self.list(prefix))
        yield from {f"{prefix}{rest.partition('/')[0]}/" for rest in below if "/" in rest}

    def list(self, prefix: str) -> Iterator[str]:
        """As `Bucket.list`."""
        return (name for name in self._objects if name.startswith(prefix))

    def leftovers(self, prefix: str = "") -> Iterator[tuple[str, float]]:  # noqa: ARG002  (a folder's need it)
        """As `Bucket.leftovers`; nothing is left over in memory."""
        yield from ()

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
