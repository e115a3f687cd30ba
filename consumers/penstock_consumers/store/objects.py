"""A bucket in memory or in an object store, through obstore."""

from __future__ import annotations

from contextlib import suppress
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import TYPE_CHECKING

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from penstock_consumers.store.bucket import failures_named, public

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from obstore.store import ObjectStore


class Objects:
    """A bucket over an obstore store."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = public(url)

    @classmethod
    def from_url(cls, url: str) -> Objects:
        """Open any URL that obstore knows."""
        return cls(from_url(url if url != "memory://" else "memory:///"), url)

    @property
    def url(self) -> str:
        """The URL, without what may be secret in it."""
        return self._url

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional put."""
        try:
            with self._named("write", name, AlreadyExistsError):
                obstore.put(self._store, name, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        """Write an object."""
        data = b"".join(memoryview(piece) for piece in pieces)
        with self._named("write", name):
            obstore.put(self._store, name, data)

    def read(self, name: str) -> pa.Buffer:
        """Read an object into memory; raises `FileNotFoundError`."""
        with self._named("read", name, FileNotFoundError):
            return pa.py_buffer(obstore.get(self._store, name).bytes())

    def open(self, name: str) -> pa.NativeFile:
        """Open an object; its parts are asked for as they are read."""
        with self._named("read", name, FileNotFoundError):
            size = obstore.head(self._store, name)["size"]
        return pa.PythonFile(_Parts(self, name, size), mode="r")

    def read_part(self, name: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        with self._named("read", name, FileNotFoundError):
            return bytes(obstore.get_range(self._store, name, start=start, length=length))

    def delete(self, name: str) -> None:
        """Delete an object."""
        with suppress(FileNotFoundError), self._named("delete", name, FileNotFoundError):
            obstore.delete(self._store, name)

    def modified(self, name: str) -> float:
        """When an object was last written, as the store tells."""
        with self._named("read", name, FileNotFoundError):
            return obstore.head(self._store, name)["last_modified"].timestamp()

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the prefixes one step below a prefix."""
        with self._named("list", prefix):
            found = obstore.list_with_delimiter(self._store, prefix)
        yield from (f"{folder}/" for folder in found["common_prefixes"])

    def list(self, prefix: str) -> Iterator[str]:
        """Name the objects below a prefix."""
        with self._named("list", prefix):
            for page in obstore.list(self._store, prefix):
                for entry in page:
                    yield entry["path"]

    def _named(self, doing: str, name: str, *answers: type[Exception]) -> AbstractContextManager[None]:
        # obstore's own errors have no base in common with the builtin ones that it raises.
        return failures_named(self.url, doing, name, kinds=(BaseError, OSError), answers=answers)


class _Parts(RawIOBase):
    """An object as a file of which only what is read is fetched."""

    def __init__(self, objects: Objects, name: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._name = name
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        base = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        length = left if size < 0 else min(size, left)
        if not length:
            return b""
        data = self._objects.read_part(self._name, self._at, length)
        self._at += len(data)
        return data
