"""A bucket in memory or in an object store, through obstore."""

from __future__ import annotations

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
    def open(cls, url: str) -> Objects:
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

    def list(self, prefix: str) -> Iterator[str]:
        """Name the objects below a prefix."""
        with self._named("list", prefix):
            for page in obstore.list(self._store, prefix):
                for entry in page:
                    yield entry["path"]

    def _named(self, doing: str, name: str, *answers: type[Exception]) -> AbstractContextManager[None]:
        # obstore's own errors have no base in common with the builtin ones that it raises.
        return failures_named(self.url, doing, name, kinds=(BaseError, OSError), answers=answers)
