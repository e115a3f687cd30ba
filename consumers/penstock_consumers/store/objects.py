"""A bucket in memory or in an object store, through obstore."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import from_url

from penstock_consumers.store.bucket import answered, failures_named
from penstock_schemas.store_url import public

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from obstore.store import ClientConfig, ObjectStore

# The longest pause between two tries.
_BACKOFF = timedelta(seconds=2)
# How the environment's settings of each kind of store begin.
_ENVIRONMENT = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "azure": "AZURE_", "abfs": "AZURE_"}
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "timeout",
    "user_agent",
)
# How S3, Azure and Google say that it is the bucket that is absent.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
# How obstore tells the status that a store answered with, and what S3 says of a key in an answer of status 200.
_STATUS = re.compile(r"status code: (\d{3})")
_KEY_CODE = re.compile(r"\(code: (\w+)\)")
_SERVER_ERROR = 500
# A file that is read in parts is fetched in blocks of this size, of which the last few are kept: a request takes as
# long as the transfer of about so much.
_BLOCK_BYTES = 1 << 18
_BLOCKS = 4
# What is larger is put in parts of this size, the least that S3 takes.
_PART_BYTES = 5 << 20
# Statuses of the client's errors that ask for another try: a time-out, and too many requests.
_LATER = {408, 429}
# What S3 says of a key where another try may help.
_LATER_KEY_CODES = {"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an object store may take.

    What was not answered is asked again where that does no harm, until `retry_seconds` after the first time. So a store
    of which nothing comes is given up after at most `retry_seconds` + `stall_seconds`; one answer may take
    `request_seconds` as long as it goes on.
    """

    connect_seconds: float = 5.0
    stall_seconds: float = 20.0
    request_seconds: float = 120.0
    retry_seconds: float = 20.0
    retries: int = 8


class Objects:
    """A bucket over an obstore store."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = public(url)

    @classmethod
    def from_url(cls, url: str, patience: Patience | None = None) -> Objects:
        """Open any URL that obstore knows."""
        scheme = urlsplit(url).scheme
        if scheme == "memory":
            return cls(from_url("memory:///"), url)
        patience = patience or Patience()
        store = from_url(
            url,
            client_options=_client_options(scheme, patience),
            retry_config={
                "max_retries": patience.retries,
                "retry_timeout": timedelta(seconds=patience.retry_seconds),
                "backoff": {"max_backoff": _BACKOFF},
            },
        )
        return cls(store, url)

    @property
    def url(self) -> str:
        """The URL, without what may be secret in it."""
        return self._url

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional put."""
        try:
            with self._named("write", name, _taken):
                obstore.put(self._store, name, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        """Write an object."""
        large = sum(map(len, pieces)) > _PART_BYTES
        with self._named("write", name):
            obstore.put(self._store, name, _in_parts(pieces), use_multipart=large, chunk_size=_PART_BYTES)

    def read(self, name: str) -> pa.Buffer:
        """Read an object into memory; raises `FileNotFoundError`."""
        with self._named("read", name, _absent):
            return pa.py_buffer(obstore.get(self._store, name).bytes())

    def open(self, name: str) -> pa.NativeFile:
        """Open an object; its parts are asked for as they are read."""
        with self._named("read", name, _absent):
            size = obstore.head(self._store, name)["size"]
        return pa.PythonFile(_Parts(self, name, size), mode="r")

    def read_part(self, name: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        with self._named("read", name, _absent):
            return bytes(obstore.get_range(self._store, name, start=start, length=length))

    def delete(self, name: str) -> None:
        """Delete an object."""
        with suppress(FileNotFoundError), self._named("delete", name, _absent):
            obstore.delete(self._store, name)

    def modified(self, name: str) -> float:
        """When an object was last written, as the store tells."""
        with self._named("read", name, _absent):
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
                answered()
                for entry in page:
                    yield entry["path"]

    def leftovers(self, prefix: str = "") -> Iterator[tuple[str, float]]:  # noqa: ARG002  (a folder's need it)
        """Nothing: an unfinished upload has no name."""
        yield from ()

    def _named(
        self, doing: str, name: str, answer: Callable[[Exception], bool] = lambda _: False
    ) -> AbstractContextManager[None]:
        # obstore's own errors have no base in common with the builtin ones that it raises.
        kinds = (BaseError, OSError, ValueError)
        return failures_named(self.url, doing, name, passes=_passes, kinds=kinds, answer=answer)


def _client_options(scheme: str, patience: Patience) -> ClientConfig:
    """Join patience with the client's settings in the environment, which obstore leaves aside where it is given any."""
    options: dict[str, str] = {
        "connect_timeout": f"{patience.connect_seconds * 1000:.0f}ms",
        "read_timeout": f"{patience.stall_seconds * 1000:.0f}ms",
        "timeout": f"{patience.request_seconds * 1000:.0f}ms",
    }
    prefix = _ENVIRONMENT.get(scheme, "")
    given = {option: os.environ.get(f"{prefix}{option.upper()}") for option in _CLIENT_OPTIONS}
    return cast("ClientConfig", options | {option: value for option, value in given.items() if value is not None})


def _absent(error: Exception) -> bool:
    """Tell whether an object is absent, and not the whole bucket."""
    return isinstance(error, FileNotFoundError) and not any(code in str(error) for code in _NO_BUCKET)


def _taken(error: Exception) -> bool:
    return isinstance(error, AlreadyExistsError)


def _passes(error: Exception) -> bool:
    """Tell whether waiting may help: no answer, or one that lays it to the server or to too many requests."""
    if isinstance(error, AlreadyExistsError):
        return True  # a conflict with another request that is under way
    if not isinstance(error, GenericError):
        return False
    if status := _STATUS.search(str(error)):
        return int(status[1]) >= _SERVER_ERROR or int(status[1]) in _LATER
    code = _KEY_CODE.search(str(error))
    return code is None or code[1] in _LATER_KEY_CODES


def _in_parts(pieces: Sequence[bytes | pa.Buffer]) -> Iterator[memoryview]:
    """Give pieces in parts; one is asked for as soon as the store has taken one of those before it."""
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), _PART_BYTES):
            answered()
            yield view[start : start + _PART_BYTES]


class _Parts(RawIOBase):
    """An object as a file of which only what is read is fetched, in blocks where that is little."""

    def __init__(self, objects: Objects, name: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._name = name
        self._size = size
        self._at = 0
        self._block = lru_cache(_BLOCKS)(self._fetch_block)

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
        data = self._small(length) if length < _BLOCK_BYTES else self._fetch(self._at, length)
        self._at += len(data)
        return data

    def _small(self, length: int) -> bytes:
        first, last = self._at // _BLOCK_BYTES, (self._at + length - 1) // _BLOCK_BYTES
        data = b"".join(self._block(index) for index in range(first, last + 1))
        start = self._at - first * _BLOCK_BYTES
        return data[start : start + length]

    def _fetch_block(self, index: int) -> bytes:
        start = index * _BLOCK_BYTES
        return self._fetch(start, min(_BLOCK_BYTES, self._size - start))

    def _fetch(self, start: int, length: int) -> bytes:
        return self._objects.read_part(self._name, start, length)
