"""Where a store's objects lie: a folder, or anything that obstore opens."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from penstock_schemas.errors import StoreError, StoreUnavailableError
from penstock_schemas.store_url import folder_of, public

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

# A store may say that an object exists and not have it: S3's 409 is a conflict with a write or delete under way.
_CREATE_TRIES = 5
# How object stores say in XML what is wrong.
_ANSWER = re.compile(r"<Code>(?P<code>[^<]*)</Code>.*?<Message>(?P<message>[^<]*)</Message>", re.DOTALL)
# How obstore's inner view says why no answer came.
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
# What storages quote in their errors; a query may hold a signature.
_URL = re.compile(r"\b[a-z]+://[^\s,]+")
# What is called with each answer to operations of this thread, so that who waits for many tells slow from silent.
on_answer: ContextVar[Callable[[], None]] = ContextVar("on_answer", default=lambda: None)


class Bucket(Protocol):
    """Named objects; names are relative, their parts joined by slashes, and none begins with a dot.

    Where the storage below it fails, each operation raises an error that names the bucket and the object: a
    `StoreUnavailableError` where the cause may pass by itself, as a time-out or a full disk does, else a `StoreError`.
    """

    @property
    def url(self) -> str:
        """What to call this bucket in messages; carries no credentials."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, whole or not at all; False where one of that name exists."""
        ...

    def put(self, name: str, *pieces: bytes | pa.Buffer) -> None:
        """Write an object of pieces, whole or not at all; durable when this returns."""
        ...

    def read(self, name: str) -> pa.Buffer:
        """Read an object, without a copy where it can be mapped; raises `FileNotFoundError`."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """Open an object to read parts of it, without mapping it; the caller closes it. Raises `FileNotFoundError`."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens where there is none."""
        ...

    def modified(self, name: str) -> float:
        """When an object was written, in seconds since 1970 by the storage's clock; raises `FileNotFoundError`."""
        ...

    def list(self, prefix: str) -> Iterable[str]:
        """Name the objects below a prefix that ends in a slash, in any order; a hint, it may lag behind."""
        ...

    def folders(self, prefix: str) -> Iterable[str]:
        """Name the prefixes one step below a prefix, each ending in a slash, in any order; a hint, likewise."""
        ...

    def leftovers(self, prefix: str = "") -> Iterable[tuple[str, float]]:
        """Name what unfinished writes left one step below a prefix, with when each was written, as `modified` tells it.

        An entry is of a writer that died, or of one at work: only its age tells. `delete` takes these names.
        """
        ...


def create_once(bucket: Bucket, name: str, data: bytes) -> bool:
    """Create an object although an earlier try's answer may have been lost; False where another's is there.

    The data of two writers must differ, so that one that finds its own bytes knows that its try had succeeded.
    """
    for _ in range(_CREATE_TRIES):
        if bucket.create(name, data):
            return True
        with suppress(FileNotFoundError):
            return bool(bucket.read(name).to_pybytes() == data)
    raise StoreUnavailableError(
        f"store {bucket.url!r}: cannot write {name!r}: {_CREATE_TRIES} times it said that the object exists, and did "
        "not have it; check that nothing else writes or deletes there"
    )


def open_bucket(url: str | Path) -> Bucket:
    """Open a path, a `file://` URL, `memory://` (a new one each time), or a URL of an object store.

    Credentials come from the environment, as obstore documents. Raises `StoreError` where the URL is of no kind
    that is known, or has a part that would be left aside.
    """
    from penstock_consumers.store.folder import Folder  # noqa: PLC0415  (each kind is loaded where it is used)

    try:
        folder = url if isinstance(url, Path) else folder_of(url)
    except ValueError as error:
        raise StoreError(f"store {error}") from None
    if folder is not None:
        return Folder(folder)
    from penstock_consumers.store.objects import Objects  # noqa: PLC0415  (the same)

    try:
        return Objects.from_url(str(url))
    except Exception as error:  # noqa: BLE001  (each kind of store raises its own; none goes on)
        shown = public(str(url))
        # obstore quotes the whole URL in what it raises.
        cause = error if shown == url else None
        detail = str(error).partition("\n")[0] if cause else type(error).__name__
        raise StoreError(f"store {shown!r}: cannot be opened: {detail}") from cause


def is_remote(bucket: Bucket) -> bool:
    """Tell whether objects come from elsewhere, and not from a folder or this process's memory."""
    return urlsplit(bucket.url).scheme not in {"", "memory"}


@contextmanager
def failures_named(
    url: str,
    doing: str,
    name: str,
    *,
    passes: Callable[[Exception], bool],
    kinds: tuple[type[Exception], ...] = (OSError,),
    answer: Callable[[Exception], bool] = lambda _: False,
) -> Iterator[None]:
    """Raise what the storage raises as an error of Penstock's that says which store failed, at what.

    That is a `StoreUnavailableError` where `passes` says that the cause may pass by itself, else a `StoreError`. `url`
    carries no credentials; `kinds` are the errors of the storage, and `answer` knows those among them that tell the
    caller something, and go through as they are.
    """
    try:
        yield
    except kinds as error:
        if answer(error):
            raise
        told = f"store {url!r}: cannot {doing} {name!r}: {_told(error)}; check that the store"
        if passes(error):
            raise StoreUnavailableError(f"{told} is reachable, and has room") from error
        raise StoreError(f"{told} is there, and permits it") from error
    finally:
        answered()


def answered() -> None:
    """Tell `on_answer` that the storage has answered an operation, or a part of one that takes long."""
    on_answer.get()()


def _told(error: Exception) -> str:
    """What an error says, in one line: without obstore's inner view of it, and without what may be secret in URLs."""
    told, _, inner = str(error).partition("\n\nDebug source:")
    answer = _ANSWER.search(told)
    if answer:
        told = f"{told[: told.index('<')]}{answer['code']}: {answer['message']}"
    elif kind := _KIND.search(inner):
        told = f"{told} ({kind[1]})"
    return _URL.sub(lambda url: public(url[0]), " ".join(told.split()))
