"""The versions that a stream's store keeps, as far as a producer needs them: weights too large for a message."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from penstock_schemas.errors import PolicyRejectedError, SettingsError, StoreError
from penstock_schemas.policies import FOLDER
from penstock_schemas.store_url import folder_of, public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ObjectStore

# A request each: a store answers one of this size in good time over any network.
_RANGE_BYTES = 8 << 20


class WeightsStore:
    """Reads policies out of a folder, or out of any URL that obstore opens; credentials come from the environment.

    `max_bytes` is the largest object that is read. Raises `SettingsError` for a URL of no kind that is known,
    that cannot be read, or of which a part would be left aside.
    """

    def __init__(self, url: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        try:
            folder = folder_of(url)
        except ValueError as error:
            raise SettingsError(f"--store {error}") from None
        self._public = public(url)
        # A folder may come to be later: it is opened when it is read.
        self._store = folder or _opened(url)

    def read(self, object_name: str) -> bytes:
        """Read an object of the policies.

        Raises `StoreError` where the store does not answer, `PolicyRejectedError` where it has no such object, or one
        that is too large.
        """
        name = FOLDER + object_name
        with self._explained(name):
            store = LocalStore(self._store.absolute()) if isinstance(self._store, Path) else self._store
            size = obstore.head(store, name)["size"]
            if size > self._max_bytes:
                told = f"{name!r} is {size} bytes large, at most {self._max_bytes} are read: raise --max-policy-bytes"
                raise PolicyRejectedError("too_large", told)
            return b"".join(
                bytes(obstore.get_range(store, name, start=start, end=min(start + _RANGE_BYTES, size)))
                for start in range(0, size, _RANGE_BYTES)
            )

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        store = f"store {self._public!r}"
        try:
            yield
        except FileNotFoundError as error:
            detail = f"{store} has no {name!r}: check that --store is the stream's, and publish it again"
            raise PolicyRejectedError("absent", detail) from error
        except (BaseError, OSError) as error:
            # obstore's own errors have no base in common with the builtin ones that it raises.
            detail = str(error).partition("\n")[0]
            raise StoreError(f"{store}: cannot read {name!r}: {detail}; check that it is reachable") from error


def _opened(url: str) -> ObjectStore:
    try:
        return from_url(url)
    except Exception as error:  # noqa: BLE001 - each kind of store raises its own; none goes on
        # obstore quotes the whole URL, with what may be secret in it.
        raise SettingsError(
            f"--store {public(url)!r}: obstore does not open it: {type(error).__name__}; give a folder, or a URL such "
            "as s3://bucket/prefix"
        ) from None
