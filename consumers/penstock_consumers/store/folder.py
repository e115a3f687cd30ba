"""A bucket in a folder: exclusive, whole and durable objects, by synced temporary files and hard links."""

from __future__ import annotations

import errno
import os
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock_consumers.store.bucket import failures_named
from penstock_schemas.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


_TEMPORARY = "."
# How file systems say that they have no hard links.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


class Folder:
    """A bucket in a folder; made when the first object is written."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self._root)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a hard link to a synced temporary file: exclusive, and whole after a power cut.

        Raises `StoreError` on a file system without hard links.
        """
        path = self._root / name
        with failures_named(self.url, "write", name):
            temporary = self._write(path, [data])
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise StoreError(
                    f"store {self.url!r}: its file system has no hard links ({error}): use another"
                ) from error
            finally:
                temporary.unlink()
            _sync(path.parent)
        return True

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        """Write an object by a rename of a synced temporary file."""
        path = self._root / name
        with failures_named(self.url, "write", name):
            self._write(path, pieces).rename(path)
            _sync(path.parent)

    def read(self, name: str) -> pa.Buffer:
        """Map an object into memory."""
        path = self._root / name
        with failures_named(self.url, "read", name, answers=(FileNotFoundError,)):
            if path.stat().st_size == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(str(path)) as mapped:
                return mapped.read_buffer()

    def open(self, name: str) -> pa.NativeFile:
        """Open a file."""
        with failures_named(self.url, "read", name, answers=(FileNotFoundError,)):
            return pa.OSFile(str(self._root / name))

    def delete(self, name: str) -> None:
        """Unlink a file; its folder stays, so that whoever writes there finds it."""
        with failures_named(self.url, "delete", name):
            (self._root / name).unlink(missing_ok=True)

    def modified(self, name: str) -> float:
        """When a file was last written, as its file system tells."""
        with failures_named(self.url, "read", name, answers=(FileNotFoundError,)):
            return (self._root / name).stat().st_mtime

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders in a folder."""
        with failures_named(self.url, "list", prefix):
            try:
                found = list(os.scandir(self._root / prefix))
            except FileNotFoundError:
                return
            yield from (f"{prefix}{entry.name}/" for entry in found if entry.is_dir())

    def list(self, prefix: str) -> Iterator[str]:
        """Name the objects below a prefix; unfinished temporary files are none."""
        with failures_named(self.url, "list", prefix):
            for folder, _, files in os.walk(self._root / prefix, onerror=_raise_unless_absent):
                for file in files:
                    if not file.startswith(_TEMPORARY):
                        yield os.path.relpath(os.path.join(folder, file), self._root).replace(os.sep, "/")  # noqa: PTH118  (faster than Path, over many)

    def _write(self, path: Path, pieces: Sequence[bytes | pa.Buffer]) -> Path:
        self._make(path.parent)
        temporary = path.parent / f"{_TEMPORARY}{path.name}.{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # A consumer that is started again and again must not fill a full disk further.
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _raise_unless_absent(error: OSError) -> None:
    """Take a folder that is absent for empty; one that does not read must not pass for it."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(folder: Path) -> None:
    """Sync a folder: a name survives a power cut only once its folder has been synced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
