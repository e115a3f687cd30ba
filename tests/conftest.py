from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from deploy.local.kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

# As a pod has. Of small products several threads are slower, and while they wait they spin: in every worker and in all
# that a test starts. Torch reads it when it is imported.
os.environ["OMP_NUM_THREADS"] = "1"


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
