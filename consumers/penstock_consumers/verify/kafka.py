"""Verifying a store against the Kafka that a service's settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.store import layout, manifest
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.verify import Report, verify
from penstock_schemas.errors import StoreError
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.service import ServiceSettings, load

if TYPE_CHECKING:
    from penstock_consumers.progress import Progress


def verify_against_kafka(
    store: str, bootstrap_servers: str | None = None, config: str | None = None, *, progress: Progress | None = None
) -> Report:
    """Verify the store at a URL, as `verify` does; Kafka is found as every service finds it."""
    bucket = open_bucket(store)
    found = manifest.load(bucket)
    if found is None:
        raise StoreError(f"store {store}: there is no {layout.MANIFEST}, so nothing was stored yet: check the URL")
    flags = ["--stream", found.spec.stream]
    flags += ["--bootstrap-servers", bootstrap_servers] if bootstrap_servers else []
    flags += ["--config", config] if config else []
    settings = load(ServiceSettings, flags)
    security = settings.kafka_security()
    with KafkaLog(settings.bootstrap_servers, client_id="penstock-store", security=security) as log:
        return verify(bucket, log, settings.rollouts_topic, progress=progress)
