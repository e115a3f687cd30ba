"""How the commands that need the log find it: as every service does."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_consumers.store import manifest
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Log
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class Connected:
    """A store, and the log that it is read from; `spec` is None where nothing was stored yet."""

    log: Log
    rollouts_topic: str
    dead_letter_topic: str
    bucket: Bucket
    spec: StreamSpec | None


def add_kafka(parser: argparse.ArgumentParser) -> None:
    """Declare how Kafka is found."""
    parser.add_argument("--bootstrap-servers", help="Kafka brokers; KAFKA_BOOTSTRAP_SERVERS where not given")
    parser.add_argument("--config", help="a TOML file with a service's settings, for Kafka's TLS and SASL")


def add_stream(parser: argparse.ArgumentParser) -> None:
    """Declare how Kafka and the stream are found."""
    add_kafka(parser)
    parser.add_argument("--stream", help="the stream, where the store has taken nothing yet that names it")


@contextmanager
def connect(words: argparse.Namespace) -> Iterator[Connected]:
    """Open a store and its log; raises `SettingsError` where neither says which stream it is."""
    # Reading a store must not need Kafka's client.
    from penstock_schemas.log.kafka import KafkaLog  # noqa: PLC0415
    from penstock_schemas.service import ServiceSettings, load  # noqa: PLC0415  (the same)

    bucket = open_bucket(words.store)
    found = manifest.load(bucket)
    stream = found.spec.stream if found else words.stream
    if stream is None:
        raise SettingsError(f"store {bucket.url}: it has taken no message yet: name its stream with --stream")
    flags = ["--stream", stream]
    flags += ["--bootstrap-servers", words.bootstrap_servers] if words.bootstrap_servers else []
    flags += ["--config", words.config] if words.config else []
    settings = load(ServiceSettings, flags)
    with KafkaLog(settings.bootstrap_servers, client_id="penstock-store", security=settings.kafka_security()) as log:
        spec = found.spec if found else None
        yield Connected(log, settings.rollouts_topic, settings.dead_letter_topic, bucket, spec)
