"""A bucket in a folder: exclusive, whole and durable objects, by synced temporary files and hard links."""

from __future__ import annotations

import errno
import os
import re
import uuid
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock_consumers.store.bucket import failures_named
from penstock_schemas.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


_TEMPORARY = "."
_IS_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")
# So many folders are known to have names that survive; each of others is synced once more.
_REMEMBERED = 1000
# What no waiting mends; disks that are full, slow or gone, and whatever else, may pass.
_LASTING = {
    errno.EACCES,
    errno.EEXIST,
    errno.EFBIG,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
# How file systems say that they have no hard links.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


class Folder:
    """A bucket in a folder; made when the first object is written."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._synced: set[Path] = set()

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self._root)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a hard link to a synced temporary file: exclusive, and whole after a power cut.

        Raises `StoreError` on a file system without hard links.
        """
        path = self._root / name
        with self._named("write", name):
            temporary = self._write(path, [data])
            try:
                os.link(temporary, path)
            except FileExistsError:
                created = False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise StoreError(
                    f"store {self.url!r}: its file system has no hard links ({error}): use another"
                ) from error
            else:
                created = True
            finally:
                temporary.unlink()
            # Also where the name was taken: whoever took it may have died before this.
            _sync(path.parent)
        return created

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        """Write an object by a rename of a synced temporary file."""
        path = self._root / name
        with self._named("write", name):
            temporary = self._write(path, pieces)
            try:
                temporary.rename(path)
            except OSError:
                temporary.unlink()
                raise
            _sync(path.parent)

    def read(self, name: str) -> pa.Buffer:
        """Map an object into memory."""
        path = self._root / name
        with self._named("read", name, _absent):
            if path.stat().st_size == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(str(path)) as mapped:
                return mapped.read_buffer()

    def open(self, name: str) -> pa.NativeFile:
        """Open a file."""
        with self._named("read", name, _absent):
            return pa.OSFile(str(self._root / name))

    def delete(self, name: str) -> None:
        """Unlink a file; its folder stays, so that whoever writes there finds it."""
        with self._named("delete", name):
            (self._root / name).unlink(missing_ok=True)

    def modified(self, name: str) -> float:
        """When a file was last written or named, as its file system tells."""
        with self._named("read", name, _absent):
            # Not the time of its data: a link may come long after those.
            return (self._root / name).stat().st_ctime

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders in a folder."""
        with self._named("list", prefix):
            yield from (f"{prefix}{entry.name}/" for entry in self._entries(prefix) if entry.is_dir())

    def list(self, prefix: str) -> Iterator[str]:
        """Name the objects below a prefix; unfinished temporary files are none."""
        with self._named("list", prefix):
            for folder, file in self._files(prefix):
                if not file.startswith(_TEMPORARY):
                    yield folder + file

    def leftovers(self, prefix: str = "") -> Iterator[tuple[str, float]]:
        """Name the temporary files in a folder."""
        with self._named("list", prefix):
            for entry in self._entries(prefix):
                if _IS_TEMPORARY.fullmatch(entry.name):
                    with suppress(FileNotFoundError):  # its writer may have ended meanwhile
                        yield prefix + entry.name, self.modified(prefix + entry.name)

    def _entries(self, prefix: str) -> Sequence[os.DirEntry[str]]:
        """What lies in a folder; nothing where it is absent."""
        try:
            return list(os.scandir(self._root / prefix))
        except FileNotFoundError:
            return []

    def _files(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Walk a prefix: the prefix of each folder in it, and each file's name there."""
        for folder, _, files in os.walk(self._root / prefix, onerror=_raise_unless_absent):
            below = os.path.relpath(folder, self._root).replace(os.sep, "/")
            yield from (("" if below == "." else f"{below}/", file) for file in files)

    def _write(self, path: Path, pieces: Sequence[bytes | pa.Buffer]) -> Path:
        """Write a temporary file beside `path`, and sync its data; its name need not survive."""
        self._make(path.parent)
        temporary = path.parent / f"{_TEMPORARY}{path.name}.{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # A consumer that is started again and again must not fill a full disk further.
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _make(self, folder: Path) -> None:
        """Make a folder whose name survives; that of one that is found may be a dead writer's, and not synced yet."""
        # The root of all folders has no name.
        if folder == folder.parent or (folder in self._synced and folder.is_dir()):
            return
        found = folder.is_dir()
        if found and not folder.is_relative_to(self._root):
            return
        self._make(folder.parent)
        if not found:
            _sync_last(folder.parent)
            folder.mkdir(exist_ok=True)
        # What lies above the store may be closed to its writers where they did not make it.
        with suppress(PermissionError) if found and folder == self._root else nullcontext():
            _sync(folder.parent)
        if len(self._synced) >= _REMEMBERED:
            self._synced.clear()
        self._synced.add(folder)

    def _named(
        self, doing: str, name: str, answer: Callable[[Exception], bool] = lambda _: False
    ) -> AbstractContextManager[None]:
        return failures_named(self.url, doing, name, passes=_passes, answer=answer)


def _absent(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError)


def _passes(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno not in _LASTING


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


def _sync_last(parent: Path) -> None:
    """Sync the last of the folders in a folder: who goes on in a new one relies on what the last one holds.

    Whoever wrote there may have died before it had synced its last name.
    """
    last = max((entry.path for entry in os.scandir(parent) if entry.is_dir()), default=None)
    if last is not None:
        _sync(Path(last))
