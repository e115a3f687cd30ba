"""Publishing policies: a version is kept in the store, then announced to the producers.

Weights that fit travel with the announcement; larger ones the producers read from the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_consumers.store import layout
from penstock_schemas.errors import LogUnavailableError, PolicyError
from penstock_schemas.policies import KEY, PolicyRecord, encode_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Appender

_TIMEOUT_SECONDS = 60.0


class PolicyPublisher:
    """Publishes versions of one stream's policy, each larger than all that the store holds; one at a time does.

    `newest` is the largest version in the store, 0 where it holds none.
    """

    def __init__(self, appender: Appender, topic: str, bucket: Bucket) -> None:
        self._appender = appender
        self._topic = topic
        self._bucket = bucket
        self.newest = max(filter(None, map(layout.policy_version, bucket.list(layout.POLICIES))), default=0)

    def publish(
        self,
        weights: Mapping[str, NDArray[Any]],
        settings: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> PolicyRecord:
        """Publish weights as the next version, or as `version`, and wait until the log has it.

        Raises `PolicyError` where `version` goes back, `LogUnavailableError` where the log does not take it in time:
        the version is spent then, publish the weights as a later one.
        """
        number = self.newest + 1 if version is None else version
        if number <= self.newest:
            raise PolicyError(f"policy version {number}: version {self.newest} is in the store; versions only grow")
        record = PolicyRecord(number, dict(weights), dict(settings or {}))
        value, headers = encode_policy(record)
        self._bucket.put(layout.POLICIES + record.object_name, record.to_safetensors())
        # From here on the number is spent: whether or not the append fails, the log may have it.
        self.newest = number
        try:
            self._appender.append(self._topic, 0, key=KEY, value=value, headers=headers).result(_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise LogUnavailableError(
                f"topic {self._topic!r}: policy version {number} was not acknowledged within {_TIMEOUT_SECONDS:g} s: "
                "check the log, and publish again"
            ) from error
        return record
