"""A replay store on its way to being written: its bucket, and what it is of once that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.store import manifest
from penstock_consumers.store.manifest import Manifest
from penstock_schemas.errors import RejectedError

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import TopicInfo
    from penstock_schemas.stream import StreamSpec


class ReplayStore:
    """One stream's store, held against the topic that it is read from.

    A store without a manifest is empty; it takes the description of the first valid message.
    """

    def __init__(self, bucket: Bucket, stream: str, topic: TopicInfo) -> None:
        self.bucket = bucket
        self.topic = topic
        self._stream = stream
        found = manifest.load(bucket)
        if found is not None:
            manifest.check(bucket, found, stream, topic.topic_id, topic.cluster_id)
        self._spec = found.spec if found else None

    @property
    def spec(self) -> StreamSpec | None:
        """What the store is of; None until the first valid message that this consumer knows of."""
        return self._spec

    def known(self) -> StreamSpec | None:
        """What the store is of, asked for again where it was unknown: another consumer may have written it since."""
        if self._spec is None and (found := manifest.load(self.bucket)) is not None:
            manifest.check(self.bucket, found, self._stream, self.topic.topic_id, self.topic.cluster_id)
            self._spec = found.spec
        return self._spec

    def adopt(self, spec: StreamSpec) -> StreamSpec:
        """Take a message's description of the stream unless the store has one.

        Raises `RejectedError` where the message is of another stream than the store.
        """
        if spec.stream != self._stream:
            raise RejectedError("schema", f"a message of the stream {spec.stream!r} in the topic of {self._stream!r}")
        if self._spec is None:
            proposed = Manifest(spec, self.topic.topic_id, self.topic.cluster_id)
            self._spec = manifest.establish(self.bucket, proposed).spec
        if self._spec.fingerprint != spec.fingerprint:
            raise RejectedError("fingerprint", "another producer's description of the stream came first")
        return self._spec
