from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from deploy.local.kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Bootstrap servers: KAFKA_BOOTSTRAP_SERVERS where it is set, else a broker for this test session."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with LocalKafka() as broker:
        yield broker.bootstrap_servers
