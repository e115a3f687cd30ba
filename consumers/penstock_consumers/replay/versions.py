"""The versions of a policy that a store keeps."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from penstock_consumers.store import layout
from penstock_schemas.errors import CorruptStoreError, PolicyRejectedError, StoreError
from penstock_schemas.policies import PolicyRecord, object_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.connectors import Pipeline

    Weights = Mapping[str, NDArray[Any]]

_DIGEST_BYTES = 32
# Parameters take at most this much memory, but for those that are asked for at once.
_KEPT_BYTES = 64 << 20


class Versions:
    """Reads versions by what episodes say of who acted: a number and a digest."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, version: int, digest: bytes) -> PolicyRecord:
        """Read a version's weights and settings.

        Raises `StoreError` where the store does not have it, `CorruptStoreError` where it is not what acted.
        """
        name = layout.POLICIES + object_name(version, digest.hex())
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


class Acting:
    """The connectors' parameters of the versions that acted; those that were used last are kept.

    Args:
        bucket: the store.
        pipeline: the connectors; what they begin with are the parameters of version 0.
    """

    def __init__(self, bucket: Bucket, pipeline: Pipeline) -> None:
        self._versions = Versions(bucket)
        self._first = pipeline.weights
        # The versions that were met, and the place of each in the list of them.
        self._acted: list[tuple[int, bytes]] = []
        self._place: dict[tuple[int, bytes], int] = {}
        self._places: WeakKeyDictionary[Segment, NDArray[np.int64]] = WeakKeyDictionary()
        self._kept: OrderedDict[int, Weights] = OrderedDict()
        self._bytes = sum(value.nbytes for value in self._first.values())

    def places(self, segment: Segment) -> NDArray[np.int64]:
        """Which version acted in each chunk of a segment, as a place in a list of versions, shape (C,)."""
        if segment not in self._places:
            digests = segment.batch.column("policy_digest").flatten()
            stored = np.frombuffer(digests.buffers()[1], np.uint8).reshape(-1, _DIGEST_BYTES)
            digest = stored[digests.offset : digests.offset + len(digests)]
            named = np.concatenate([segment.policy_version[:, np.newaxis], digest.view(np.int64)], axis=1)
            each, of_chunk = np.unique(named, axis=0, return_inverse=True)
            # In numpy 2.0, they have a second axis.
            place = [self._placed(int(one[0]), one[1:].tobytes()) for one in each]
            self._places[segment] = np.array(place, np.int64)[of_chunk.reshape(-1)]
        return self._places[segment]

    def weights(self, places: Iterable[int]) -> list[Weights]:
        """Give the parameters of versions by their places, each by the names under which they travel.

        Raises `StoreError` or `CorruptStoreError`, as `Versions.read` does, and where a version lacks one.
        """
        return [self._weights(place) for place in places]

    def _placed(self, version: int, digest: bytes) -> int:
        place = self._place.setdefault((version, digest), len(self._acted))
        if place == len(self._acted):
            self._acted.append((version, digest))
        return place

    def _weights(self, place: int) -> Weights:
        version, digest = self._acted[place]
        if version == 0:
            return self._first
        weights = self._kept.pop(place, None) or self._read(version, digest)
        self._kept[place] = weights
        if len(self._kept) * self._bytes > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return weights

    def _read(self, version: int, digest: bytes) -> Weights:
        weights = self._versions.read(version, digest).weights
        try:
            # As copies: a view would keep all the weights.
            return {name: weights[name].copy() for name in self._first}
        except KeyError as error:
            raise CorruptStoreError(
                f"version {version}, which acted, has no weight {error}: its stream has other connectors"
            ) from error
