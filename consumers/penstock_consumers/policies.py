"""Publishing policies: a version is kept in the store, then announced to the producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_consumers.store import layout
from penstock_schemas.errors import PolicyError
from penstock_schemas.policies import KEY, PolicyRecord, encode_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Appender

_TIMEOUT_SECONDS = 60.0


class PolicyPublisher:
    """Publishes versions of one stream's policy, each larger than the one before."""

    def __init__(self, appender: Appender, topic: str, bucket: Bucket, *, newest: int = 0) -> None:
        self._appender = appender
        self._topic = topic
        self._bucket = bucket
        self.newest = newest

    def publish(
        self,
        weights: Mapping[str, NDArray[Any]],
        settings: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> PolicyRecord:
        """Publish weights as the next version, or as `version`; raises `PolicyError` where that goes back."""
        number = self.newest + 1 if version is None else version
        if number <= self.newest:
            raise PolicyError(f"policy version {number}: version {self.newest} is published; versions only grow")
        record = PolicyRecord(number, dict(weights), dict(settings or {}))
        value, headers = encode_policy(record)
        self._bucket.put(layout.POLICIES + record.object_name, record.to_safetensors())
        self._appender.append(self._topic, 0, key=KEY, value=value, headers=headers).result(_TIMEOUT_SECONDS)
        self.newest = number
        return record
