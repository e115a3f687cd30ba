"""The log in Kafka.

Needs kafka-python, which a learner's reader does without: import this module only where Kafka is spoken.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import NoError, RetriableError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from penstock_schemas.errors import TopicError
from penstock_schemas.log.base import TopicInfo
from penstock_schemas.log.kafka_appender import KafkaAppender
from penstock_schemas.log.kafka_client import Connection
from penstock_schemas.log.kafka_group import KafkaGroupReader
from penstock_schemas.log.kafka_readers import KafkaReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock_schemas.log.base import GroupListener

# What a broker takes by default (`message.max.bytes`): 1 MiB and a record batch's least overhead.
DEFAULT_MAX_MESSAGE_BYTES = (1 << 20) + 12

_RETRY_SECONDS = 0.1

_T = TypeVar("_T")


class KafkaLog:
    """A Kafka cluster; nothing connects before it is needed, and each failure to is a `LogUnavailableError`.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        client_id: the name by which the brokers know this client.
        security: kafka-python's settings `security_protocol`, `ssl_*` and `sasl_*`.
        timeout: seconds that connecting, describing and handing over a record may take.
        delivery_timeout: seconds after which a record that is not acknowledged has failed.
        session_timeout: seconds without a heartbeat after which a group goes on without a member.
        max_message_bytes: the largest record; topics that `create` makes take as much, and no less than the default.
        max_buffered_bytes: how much an appender keeps unacknowledged before `append` waits.
        replication_factor: of topics that `create` makes; -1 is the brokers' default.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "penstock",
        security: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
        delivery_timeout: float = 120.0,
        session_timeout: float = 10.0,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_buffered_bytes: int = 64 << 20,
        replication_factor: int = -1,
    ) -> None:
        self._connection = Connection(bootstrap_servers, client_id, timeout, dict(security or {}))
        self._delivery_timeout = delivery_timeout
        self._session_timeout = session_timeout
        self._max_message_bytes = max_message_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._replication_factor = replication_factor
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    def create(self, topic: str, *, partitions: int = 1, compacted: bool = False) -> TopicInfo:
        """Create a topic with broker append times unless it exists; describe it either way."""
        settings = {
            "message.timestamp.type": "LogAppendTime",
            # A producer's limit is for its own messages; larger ones of others, policies, may go to the same topics.
            "max.message.bytes": str(max(self._max_message_bytes, DEFAULT_MAX_MESSAGE_BYTES)),
            "cleanup.policy": "compact" if compacted else "delete",
        }
        wanted = {
            topic: {
                "num_partitions": partitions,
                "replication_factor": self._replication_factor,
                "configs": settings,
            }
        }

        def create(admin: Any) -> None:
            with suppress(TopicAlreadyExistsError):
                admin.create_topics(wanted)
            admin.wait_for_topics([topic], int(self._connection.timeout * 1000))

        self._ask(create, f"create topic {topic!r}")
        return self.describe(topic)

    def describe(self, topic: str) -> TopicInfo:
        """Describe a topic; raises `TopicError` where there is none."""

        def describe(admin: Any) -> tuple[Any, Any, Any]:
            found = self._found(admin, topic)
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"message.timestamp.type": None})
            configs = admin.describe_configs([resource], config_filter="all")["topic"][topic]
            return found, configs, admin.describe_cluster()

        found, configs, cluster = self._ask(describe, f"describe topic {topic!r}")
        return TopicInfo(
            name=topic,
            topic_id=found["topic_id"],
            cluster_id=cluster["cluster_id"],
            partitions=len(found["partitions"]),
            log_append_time=configs["message.timestamp.type"]["value"] == "LogAppendTime",
        )

    def appender(self) -> KafkaAppender:
        """Make an appender."""
        return KafkaAppender(
            self._connection,
            self._partitions,
            delivery_timeout=self._delivery_timeout,
            max_message_bytes=self._max_message_bytes,
            max_buffered_bytes=self._max_buffered_bytes,
        )

    def reader(self) -> KafkaReader:
        """Make a reader of chosen partitions."""
        return KafkaReader(self._connection, self._partitions)

    def group(
        self, topic: str, group: str, listener: GroupListener, *, instance: str | None = None
    ) -> KafkaGroupReader:
        """Make a member of a consumer group over `topic`; it joins with its first poll."""
        self._partitions(topic)
        return KafkaGroupReader(
            self._connection,
            self._partitions,
            topic,
            group,
            listener,
            session_timeout=self._session_timeout,
            instance=instance,
        )

    def close(self) -> None:
        """Let go of the cluster; appenders and readers are closed by whoever made them."""
        with self._admin_lock:
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _partitions(self, topic: str) -> int:
        """Count a topic's partitions, in one round trip; raises `TopicError` where there is none."""
        found = self._ask(lambda admin: self._found(admin, topic), f"describe topic {topic!r}")
        return len(found["partitions"])

    def _found(self, admin: Any, topic: str) -> Any:
        (found,) = admin.describe_topics([topic])
        error = for_code(found["error_code"])
        if error is UnknownTopicOrPartitionError:
            raise TopicError(f"there is no topic {topic!r} at {self._connection.bootstrap_servers}: create it")
        if error is not NoError:
            raise error
        return found

    def _ask(self, question: Callable[[Any], _T], doing: str) -> _T:
        """Ask the cluster, again and again while it does not answer, for as long as the timeout."""
        admin = self._connected_admin()
        deadline = time.monotonic() + self._connection.timeout
        with self._connection.errors(doing):
            while True:
                try:
                    return question(admin)
                except RetriableError:
                    # After a lost connection the client refuses at once until its next attempt is due.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_RETRY_SECONDS)

    def _connected_admin(self) -> Any:
        with self._admin_lock:
            if self._admin is None:
                self._admin, _ = self._connection.open(
                    KafkaAdminClient, request_timeout_ms=int(self._connection.timeout * 1000)
                )
            return self._admin
