from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from deploy.local.kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: at the end it would keep one worker busy while the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("whole") is None)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Bootstrap servers: KAFKA_BOOTSTRAP_SERVERS where it is set, else a broker for this test session."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with LocalKafka() as broker:
        yield broker.bootstrap_servers
