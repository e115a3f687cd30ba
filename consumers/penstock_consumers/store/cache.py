"""A local cache of segments that lie in an object store: each is fetched once, and mapped from there.

Several processes may share its folder. A file is whole under its name or not there: it is written under another, locked
while that lasts, and renamed. So a lock that can be had is of a writer that died, and who waits for one finds the file.
Before a file is written room is made for it: those that were used longest ago go. Those who share the folder write down
in its lock how much is taken, at least what is; so the files are counted only where that comes near the bound.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock_consumers.store import segments
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry

_MAX_BYTES = 16 << 30
_LOCK = "lock"
# What is written down there: bytes, in so many digits.
_DIGITS = 20
# How the name of a file that is being written ends.
_PART = ".part"
# What `_store_folder` and `_path` name: whatever else lies in the folder is others', and stays.
_STORE = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"segments-[0-9]{5,}-[0-9]{12,}-[0-9a-f]{32}\.(arrow|part)")
# Of a file that another user fetched, or in a folder that is mounted to be read only.
_NOT_OURS = {errno.EPERM, errno.EACCES, errno.EROFS}


@dataclass(slots=True)
class Counts:
    """What a cache has done in this process.

    Attributes:
        hits: segments that were there.
        fetched: segments that were fetched from their store.
        fetched_bytes: and their bytes.
        evicted: files that were deleted to make room.
        evicted_in_use: those of them that this process still mapped; their room is free once it lets go of them.
    """

    hits: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    evicted: int = 0
    evicted_in_use: int = 0


class Cache:
    """Keeps segments of object stores in a folder.

    Args:
        folder: where; `penstock` in the user's folder for caches (`$XDG_CACHE_HOME`, else `~/.cache`) by default.
        max_bytes: what its files may take together, those being written included; 16 GiB by default. Processes that
            share a folder should agree on it, for each keeps to its own.

    Raises:
        SettingsError: `max_bytes` is no whole number of 1 or more, or the user has no folder.

    Attributes:
        counts: what it has done in this process.
        unlinked: grows whenever a file that this process mapped was found to be deleted.
    """

    def __init__(self, folder: str | Path | None = None, max_bytes: int = _MAX_BYTES) -> None:
        if not isinstance(max_bytes, int):
            raise SettingsError(f"cache: max_bytes {max_bytes!r}: a whole number of bytes")
        if max_bytes < 1:
            raise SettingsError(f"cache: max_bytes {max_bytes}: at least one byte, and as much as a segment has")
        self.folder = _users_folder() if folder is None else Path(folder)
        self.max_bytes = max_bytes
        self.counts = Counts()
        self.unlinked = 0
        # What was there when this process last counted, with its size and when it was used: that longest ago first.
        self._oldest: deque[tuple[Path, int, int]] | None = None
        self._mapped: WeakValueDictionary[str, _Mapped] = WeakValueDictionary()

    def read(self, bucket: Bucket, entry: SegmentEntry, *, verify: bool = False) -> pa.Buffer:
        """Map a segment, which is fetched where it is not there yet, or not whole.

        What is fetched is held against its checksum; what is there only where `verify` is set.

        Raises:
            FileNotFoundError: its store does not have it.
            CorruptStoreError: its store has other bytes than were written.
            SettingsError: it is larger than the cache.
            StoreError: the folder cannot be used.
        """
        path = self._path(bucket, entry)
        while True:
            data = self._found(path, entry, verify=verify)
            if data is None:
                with self._writing(_part(path)) as part:
                    # Whoever had the lock before may have written it.
                    if part is not None and not path.exists():
                        data = self._fetched(bucket, entry, part, path)
            if data is not None:
                return data

    def touch(self, bucket: Bucket, entry: SegmentEntry) -> None:
        """Take note that a segment is used."""
        with suppress(OSError):
            os.utime(_path(self.folder, bucket, entry))

    def holds(self, bucket: Bucket, entry: SegmentEntry) -> bool:
        """Tell whether a segment is there."""
        return self._path(bucket, entry).exists()

    def maps(self, bucket: Bucket, entry: SegmentEntry) -> bool:
        """Tell whether this process maps a segment that, for all it knows, is there; costs no call of the system's."""
        return _path(self.folder, bucket, entry) in self._mapped

    def _path(self, bucket: Bucket, entry: SegmentEntry) -> Path:
        return Path(_path(self.folder, bucket, entry))

    def _found(self, path: Path, entry: SegmentEntry, *, verify: bool) -> pa.Buffer | None:
        """Map a file; None where it is not there. One that is not what was written is deleted."""
        with self._usable():
            try:
                data = self._map(path, path)
                _used(path)
            except FileNotFoundError:
                return None
            if data.size == entry.bytes and (not verify or segments.is_intact(entry, data)):
                self.counts.hits += 1
                return data
            path.unlink(missing_ok=True)
            return None

    def _map(self, file: Path, path: Path) -> pa.Buffer:
        """Map a file that is, or will be, at `path`: that is known to be in use for as long as any view of it lives."""
        with pa.memory_map(str(file)) as opened:
            data = opened.read_buffer()
        mapped = self._mapped[str(path)] = _Mapped(data)
        return pa.foreign_buffer(data.address, data.size, mapped)

    def _fetched(self, bucket: Bucket, entry: SegmentEntry, part: IO[bytes], path: Path) -> pa.Buffer:
        with self._usable():
            self._make_room(entry, part, _part(path))
        data = bucket.read(entry.name)
        if not segments.is_intact(entry, data):
            raise CorruptStoreError(
                f"segment {entry.name}: what store {bucket.url} has of it, {data.size} bytes, is not what was written: "
                "restore it"
            )
        with self._usable():
            part.write(data)
            part.flush()
            # Else a power cut could leave a file of the right size whose bytes are not its own.
            os.fsync(part.fileno())
            # Mapped first, for it may be evicted as soon as it has its name; and by its descriptor, for where it was
            # deleted meanwhile, another process may be writing its own under the name.
            mapped = self._map(Path(f"/dev/fd/{part.fileno()}"), path)
            with suppress(FileNotFoundError), self._alone():
                if _is_at(part, _part(path)):
                    _part(path).rename(path)
        self.counts.fetched += 1
        self.counts.fetched_bytes += entry.bytes
        return mapped

    def _make_room(self, entry: SegmentEntry, part: IO[bytes], path: Path) -> None:
        """Take room for a segment: `part`, which is at `path`, has its size from now on."""
        if entry.bytes > self.max_bytes:
            raise SettingsError(
                f"cache {self.folder}: segment {entry.name} has {entry.bytes:,} bytes, the cache no more than "
                f"max_bytes {self.max_bytes:,}: give it more"
            )
        while True:
            with self._alone() as ledger:
                writing = self._evict(ledger, entry.bytes, path)
                if writing is None:
                    os.truncate(part.fileno(), entry.bytes)
                    return
            # All that is whole is gone, so others are writing the rest: once one is done, that can go too.
            with suppress(FileNotFoundError), writing.open("rb") as other, _locked(other, fcntl.LOCK_SH):
                pass

    def _evict(self, ledger: IO[bytes], wanted: int, own: Path) -> Path | None:
        """Delete what was used longest ago until there is room; a file that is being written where there cannot be.

        What others took is in the ledger. What it says may be too much, as where files were deleted by hand, but for
        what a machine that lost its power forgot: so each process counts once.
        """
        parts: dict[Path, int] = {}
        taken = None if self._oldest is None else _told(ledger)
        while True:
            if taken is not None:
                taken = self._delete(taken, wanted)
                if taken + wanted <= self.max_bytes:
                    _tell(ledger, taken + wanted)
                    return None
                # One that waits for room itself has none yet.
                if any(parts.values()):
                    _tell(ledger, taken)
                    return max(parts, key=lambda path: parts[path])
            taken, parts = self._count(own)

    def _count(self, own: Path) -> tuple[int, dict[Path, int]]:
        """Find what lies in the folder: how many bytes in all, and the sizes of the files that others are writing."""
        whole, parts = self._files()
        parts.pop(own, None)
        parts = {path: size for path, size in parts.items() if not _is_dead(path)}
        # Asked for in one step of the interpreter's, for threads map others meanwhile.
        for mapped in [Path(known.key) for known in self._mapped.valuerefs()]:
            if mapped not in whole and _part(mapped) not in (own, *parts):
                self._forget(mapped)
        self._oldest = deque(sorted(((path, *of) for path, of in whole.items()), key=lambda item: item[2]))
        return sum(parts.values()) + sum(size for size, _ in whole.values()), parts

    def _delete(self, taken: int, wanted: int) -> int:
        """Delete what was used longest ago until there is room, of what is known; give how much is taken then."""
        while self._oldest and taken + wanted > self.max_bytes:
            path, size, used = self._oldest.popleft()
            # One that was used since is none of them; of one that another process deleted, that wrote it down.
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns == used:
                    path.unlink()
                    taken -= size
                    self.counts.evicted += 1
                    self.counts.evicted_in_use += self._forget(path)
        return taken

    def _forget(self, path: Path) -> bool:
        """Take note that a file is deleted; tell whether this process maps it."""
        mapped = self._mapped.pop(str(path), None) is not None
        self.unlinked += mapped
        return mapped

    def _files(self) -> tuple[dict[Path, tuple[int, int]], dict[Path, int]]:
        """The size of each file and when it was last used, and the size of each that is being written."""
        whole, parts = {}, {}
        for store in _listed(self.folder, _STORE):
            for file in _listed(store, _FILE):
                with suppress(FileNotFoundError):  # renamed, or given up
                    found = file.stat()
                    if file.name.endswith(_PART):
                        parts[Path(file.path)] = found.st_size
                    else:
                        whole[Path(file.path)] = (found.st_size, found.st_mtime_ns)
        return whole, parts

    @contextmanager
    def _alone(self) -> Iterator[IO[bytes]]:
        """While this lasts, nobody else evicts, takes room, or gives a file its name; gives the ledger."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as lock, _locked(lock, fcntl.LOCK_EX):
            yield lock

    @contextmanager
    def _writing(self, path: Path) -> Iterator[IO[bytes] | None]:
        """Open a file to write it, alone; None where another did meanwhile. It is deleted unless it was renamed."""
        with self._usable():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "r+b") as file, _locked(file, fcntl.LOCK_EX):
            if not _is_at(file, path):
                yield None
                return
            try:
                # What a writer that died left takes no room.
                file.truncate(0)
                yield file
            finally:
                if _is_at(file, path):
                    self._give_up(file, path)

    def _give_up(self, part: IO[bytes], path: Path) -> None:
        """Delete a file that was not written to its end, and give back the room that was taken for it."""
        with self._usable(), self._alone() as ledger:
            if (taken := _told(ledger)) is not None:
                _tell(ledger, max(taken - os.fstat(part.fileno()).st_size, 0))
            path.unlink(missing_ok=True)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Say of what fails in the folder that it is the cache."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"cache {self.folder}: {error}: give Replay.open another, cache=Cache(folder, max_bytes), where there "
                f"is room for {self.max_bytes:,} bytes"
            ) from error


class _Mapped:
    """Holds the mapping of a file; lives as long as it is used."""

    __slots__ = ("__weakref__", "_data")

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data


@contextmanager
def _locked(file: IO[bytes], how: int) -> Iterator[None]:
    fcntl.flock(file, how)
    try:
        yield
    finally:
        # Closing it does not unlock it where a process that was forked meanwhile has it open too.
        fcntl.flock(file, fcntl.LOCK_UN)


def _told(ledger: IO[bytes]) -> int | None:
    """What is taken at most, in bytes; None where nothing is written down yet."""
    digits = os.pread(ledger.fileno(), _DIGITS, 0)
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() else None


def _tell(ledger: IO[bytes], taken: int) -> None:
    os.pwrite(ledger.fileno(), b"%0*d" % (_DIGITS, taken), 0)


def _path(folder: Path, bucket: Bucket, entry: SegmentEntry) -> str:
    return f"{_store_folder(folder, bucket.url)}/{entry.name.replace('/', '-')}"


@lru_cache(maxsize=64)
def _store_folder(folder: Path, url: str) -> str:
    return str(folder / blake2b(url.encode(), digest_size=8).hexdigest())


def _used(path: Path) -> None:
    """Take note that a file is used, where this process may."""
    try:
        os.utime(path)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise


def _listed(folder: Path | os.DirEntry[str], named: re.Pattern[str]) -> list[os.DirEntry[str]]:
    """What lies in a folder under such names; nothing where it was deleted meanwhile, or is none."""
    try:
        return [entry for entry in os.scandir(folder) if named.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _part(path: Path) -> Path:
    return path.with_suffix(_PART)


def _is_dead(path: Path) -> bool:
    """Delete a file whose writer died; tell whether it did."""
    with (
        suppress(FileNotFoundError, BlockingIOError),
        path.open("rb") as file,
        _locked(file, fcntl.LOCK_SH | fcntl.LOCK_NB),
    ):
        path.unlink()
        return True
    return not path.exists()


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Tell whether an open file is what has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _users_folder() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    except RuntimeError as error:
        raise SettingsError(
            "cache: neither $XDG_CACHE_HOME nor $HOME is set, and the user has no entry in passwd: give Replay.open a "
            "folder, cache=Cache(folder, max_bytes), or set one of them"
        ) from error
