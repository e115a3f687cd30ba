"""What all clients of Kafka share: how they connect, and what their errors mean here."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka import errors

from penstock_schemas.errors import (
    FatalError,
    LogUnavailableError,
    PenstockError,
    SettingsError,
    TooLargeError,
    TopicError,
)
from penstock_schemas.log.kafka_network import NetworkClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_TOPIC = (
    errors.InvalidTopicError,
    errors.LogTruncationError,
    errors.OffsetOutOfRangeError,
    errors.UnknownTopicIdError,
    errors.UnknownTopicOrPartitionError,
)
# All else may pass: the connection, the election of a leader, an expired producer id.
_FATAL = (
    errors.AuthorizationError,
    errors.IllegalArgumentError,
    errors.IllegalStateError,
    errors.InvalidConfigurationError,
    errors.InvalidGroupIdError,
    errors.InvalidPartitionsError,
    errors.InvalidRecordError,
    errors.InvalidReplicationFactorError,
    errors.InvalidSessionTimeoutError,
    errors.KafkaConfigurationError,
    errors.PolicyViolationError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.UnsupportedVersionError,
)


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster; `security` holds kafka-python's `security_protocol`, `ssl_*` and `sasl_*` settings."""

    bootstrap_servers: str
    client_id: str
    timeout: float
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in self.security:
            if name != "security_protocol" and not name.startswith(("ssl_", "sasl_")):
                raise SettingsError(f"{name!r} is no security setting of Kafka: use security_protocol, ssl_… or sasl_…")

    def open(self, kind: Callable[..., Any], **settings: Any) -> tuple[Any, NetworkClient]:
        """Make a client of `kind`, connected, and the network client under it."""
        made: list[NetworkClient] = []

        def network_client(**config: Any) -> NetworkClient:
            made.append(NetworkClient(**config))
            return made[-1]

        config = {
            "bootstrap_servers": [server.strip() for server in self.bootstrap_servers.split(",")],
            "client_id": self.client_id,
            "bootstrap_timeout_ms": _ms(self.timeout),
            # The default, half a minute, would be added to every outage.
            "reconnect_backoff_max_ms": 1000,
            "kafka_client": network_client,
            **self.security,
            **settings,
        }
        try:
            with self.errors("connect"):
                return kind(**config), made[0]
        except BaseException:
            # The constructor leaves its network thread running when it fails.
            for client in made:
                client.close()
            raise

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Raise Kafka's errors as Penstock's, saying what was being done."""
        try:
            yield
        except errors.KafkaError as error:
            raise self.error(error, doing) from error

    def error(self, error: Exception, doing: str) -> PenstockError:
        """Return what an error of kafka-python means here."""
        what = f"cannot {doing}: {error!r}"
        if isinstance(error, _TOO_LARGE):
            return TooLargeError(f"{what}; send smaller records or raise max.message.bytes of the topic")
        if isinstance(error, _TOPIC):
            return TopicError(f"{what}; was the topic deleted, recreated or cut?")
        if isinstance(error, _FATAL):
            return FatalError(f"{what}; look at the settings and at the rights of {self.client_id!r}")
        return LogUnavailableError(
            f"{what}; is Kafka up at {self.bootstrap_servers}, and are the security settings right?"
        )


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
