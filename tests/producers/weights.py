"""A stream's store of weights in a folder, with gates in front of it, and policies that travel by it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock_producers.policy.weights_store import WeightsStore
from penstock_schemas import policies
from penstock_schemas.policies import FOLDER
from tests.producers.publishing import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_schemas.policies import PolicyRecord

MAX_BYTES = 1 << 20


class GatedStore:
    """A store in a folder that answers, where its gate is closed, once it is opened; or fails as often as it is told.

    `asked` are the names of objects that it was asked for, in order.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.gate = threading.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.asked: list[str] = []
        self._store = WeightsStore(str(folder), MAX_BYTES)

    def put(self, record: PolicyRecord, data: bytes | None = None) -> None:
        """Keep a version, under its name, or other data."""
        path = self.folder / FOLDER / record.object_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record.to_safetensors() if data is None else data)

    def read(self, object_name: str) -> bytes:
        self.asked.append(object_name)
        assert self.gate.wait(SECONDS), "the gate was never opened"
        if self.failures:
            raise self.failures.pop(0)
        return self._store.read(object_name)


@pytest.fixture
def gated(tmp_path: Path) -> GatedStore:
    return GatedStore(tmp_path / "store")


@pytest.fixture
def no_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weights travel inline, however small."""
    monkeypatch.setattr(policies, "MAX_INLINE_BYTES", 0)
