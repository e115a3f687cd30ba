"""The versions of a policy that a store keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_consumers.store import layout
from penstock_schemas.errors import CorruptStoreError, PolicyRejectedError, StoreError
from penstock_schemas.policies import Announcement, PolicyRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket


class Versions:
    """Reads versions by what episodes say of who acted: a number and a digest."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, version: int, digest: bytes) -> PolicyRecord:
        """Read a version's weights and settings.

        Raises `StoreError` where the store does not have it, `CorruptStoreError` where it is not what acted.
        """
        name = layout.POLICIES + Announcement(version, digest, {}, None).object_name
        try:
            data = self._bucket.read(name)
        except FileNotFoundError as error:
            raise StoreError(
                f"store {self._bucket.url}: no {name} in it: restore it, or take the store as it is"
            ) from error
        try:
            record = PolicyRecord.from_safetensors(data.to_pybytes(), name)
        except PolicyRejectedError as error:
            raise CorruptStoreError(f"store {self._bucket.url}: {error}: restore it") from error
        if (record.version, record.digest) != (version, digest):
            raise CorruptStoreError(f"store {self._bucket.url}: {name} is not what its name says: restore it")
        return record

    def weights(self, version: int, digest: bytes) -> Mapping[str, NDArray[Any]]:
        """Read a version's weights, as `read` does."""
        return self.read(version, digest).weights
