"""The manifest, `store.json`: what a store is of. Written once, by whoever first learns what the stream is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_consumers.store import layout
from penstock_consumers.store.bucket import create_once
from penstock_schemas.errors import CorruptStoreError, PenstockError, StoreFormatError, StoreMismatchError
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a store is of: one stream, read from one topic of one cluster."""

    spec: StreamSpec
    topic_id: str
    cluster_id: str

    def to_json(self) -> bytes:
        """Write the manifest; equal manifests are equal bytes."""
        described = {
            "format": layout.FORMAT,
            "topic_id": self.topic_id,
            "cluster_id": self.cluster_id,
            "fingerprint": self.spec.fingerprint.hex(),
            "spec": self.spec.to_json(),
        }
        return json.dumps(described, indent=2, sort_keys=True).encode()


def load(bucket: Bucket) -> Manifest | None:
    """Read the manifest; None where the store has none yet."""
    try:
        data = bucket.read(layout.MANIFEST).to_pybytes()
    except FileNotFoundError:
        return None
    try:
        read = json.loads(data)
        version = read["format"]
        if version == layout.FORMAT:
            fingerprint = read["fingerprint"]
            found = Manifest(StreamSpec.from_json(read["spec"]), read["topic_id"], read["cluster_id"])
    except (ValueError, KeyError, TypeError, RecursionError, PenstockError) as error:
        raise CorruptStoreError(f"store {bucket.url}: its {layout.MANIFEST} does not read: {error!r}") from error
    if version != layout.FORMAT:
        raise StoreFormatError(
            f"store {bucket.url}: format version {version}, this Penstock reads {layout.FORMAT}: "
            "use the version of Penstock that wrote it, or another store"
        )
    if fingerprint != found.spec.fingerprint.hex():
        raise CorruptStoreError(
            f"store {bucket.url}: the fingerprint in its {layout.MANIFEST} is not that of its spec: restore it"
        )
    return found


def establish(bucket: Bucket, manifest: Manifest) -> Manifest:
    """Write the manifest unless there is one; raises `StoreMismatchError` where that is another's."""
    if not create_once(bucket, layout.MANIFEST, manifest.to_json()):
        found = load(bucket)
        if found is not None:
            check(bucket, found, manifest.spec.stream, manifest.topic_id, manifest.cluster_id)
            return found
    return manifest


def check(bucket: Bucket, manifest: Manifest, stream: str, topic_id: str, cluster_id: str) -> None:
    """Raise `StoreMismatchError` unless the store is of this stream, topic and cluster."""
    if manifest.spec.stream != stream:
        raise StoreMismatchError(
            f"store {bucket.url}: holds the stream {manifest.spec.stream!r}, not {stream!r}: choose another store"
        )
    for what, held, found in (("topic", manifest.topic_id, topic_id), ("cluster", manifest.cluster_id, cluster_id)):
        if held != found:
            raise StoreMismatchError(
                f"store {bucket.url}: was read from the {what} with id {held}, that name's id is {found} now: "
                f"the {what} was recreated; begin a new store, its offsets mean nothing here"
            )
