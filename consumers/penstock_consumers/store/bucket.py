"""Where a store's objects lie: a folder, or anything that obstore opens."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from penstock_schemas.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa


class Bucket(Protocol):
    """Named objects; names are relative, their parts joined by slashes.

    Each operation raises `StoreError` where the storage below it fails, naming the bucket and the object.
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


def create_once(bucket: Bucket, name: str, data: bytes) -> bool:
    """Create an object although an earlier try's answer may have been lost; False where another's is there.

    The data of two writers must differ, so that one that finds its own bytes knows that its try had succeeded.
    """
    return bucket.create(name, data) or bucket.read(name).to_pybytes() == data


def open_bucket(url: str | Path) -> Bucket:
    """Open a path, a `file://` URL, `memory://` (a new one each time), or a URL of an object store.

    Credentials come from the environment, as obstore documents. Raises `StoreError` where the URL is of no kind
    that is known.
    """
    from penstock_consumers.store.folder import Folder  # noqa: PLC0415  (each kind is loaded where it is used)

    if isinstance(url, Path) or "://" not in url:
        return Folder(Path(url))
    if url.startswith("file://"):
        return Folder(Path(unquote(urlsplit(url).path)))
    from penstock_consumers.store.objects import Objects  # noqa: PLC0415  (the same)

    try:
        return Objects.from_url(url)
    except Exception as error:  # noqa: BLE001  (each kind of store raises its own; none goes on)
        shown = public(url)
        # obstore quotes the whole URL in what it raises.
        cause = error if shown == url else None
        detail = str(error).partition("\n")[0] if cause else type(error).__name__
        raise StoreError(f"store {shown!r}: cannot be opened: {detail}") from cause


@contextmanager
def failures_named(
    url: str,
    doing: str,
    name: str,
    *,
    kinds: tuple[type[Exception], ...] = (OSError,),
    answers: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Raise what the storage raises as a `StoreError` that says which store failed, at what.

    `url` carries no credentials; `kinds` are the errors of the storage, and `answers` those among them that tell
    the caller something, and go through as they are.
    """
    try:
        yield
    except answers:
        raise
    except kinds as error:
        detail = str(error).partition("\n")[0]
        raise StoreError(
            f"store {url!r}: cannot {doing} {name!r}: {detail}; check that the store is reachable, has room, "
            "and permits it"
        ) from error


def public(url: str) -> str:
    """A URL without what may be secret in it: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
