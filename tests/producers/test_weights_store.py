"""Weights are read from the stream's store, or it is told why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock_consumers.policies import PolicyPublisher
from penstock_producers.policy import weights_store
from penstock_producers.policy.weights_store import WeightsStore
from penstock_schemas.errors import PolicyRejectedError, SettingsError, StoreError
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_schemas.policies import PolicyRecord


def published(folder: Path) -> PolicyRecord:
    with PolicyPublisher("test", store=folder, log=MemoryLog()) as publisher:
        return publisher.publish({"w": np.arange(100, dtype=np.float32)})


@pytest.mark.parametrize("range_bytes", [1, 7, 100, 1 << 20])
def test_what_a_learner_has_published_is_read_in_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr(weights_store, "_RANGE_BYTES", range_bytes)
    record = published(tmp_path)
    for url in (str(tmp_path), f"file://{tmp_path}"):
        assert WeightsStore(url, 1 << 20).read(record.object_name) == record.to_safetensors()


def test_a_url_names_the_same_folder_as_to_the_learner(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/50%25 %23"
    with PolicyPublisher("test", store=url, log=MemoryLog()) as publisher:
        record = publisher.publish({"w": np.arange(100, dtype=np.float32)})
    assert (tmp_path / "50% #").is_dir()
    assert WeightsStore(url, 1 << 20).read(record.object_name) == record.to_safetensors()


def test_an_object_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        PolicyRejectedError, match=r"absent: store .* has no 'policies/x': check that --store"
    ) as caught:
        WeightsStore(str(tmp_path), 100).read("x")
    assert caught.value.reason == "absent"


def test_one_byte_more_than_may_be_read_is_refused_unread(tmp_path: Path) -> None:
    record = published(tmp_path)
    size = len(record.to_safetensors())
    assert WeightsStore(str(tmp_path), size).read(record.object_name)
    with pytest.raises(PolicyRejectedError, match=rf"{size} bytes large, at most {size - 1} are read: raise") as caught:
        WeightsStore(str(tmp_path), size - 1).read(record.object_name)
    assert caught.value.reason == "too_large"


def test_a_folder_may_come_to_be_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    store = WeightsStore(str(folder), 1 << 20)
    with pytest.raises(StoreError, match="cannot read 'policies/x'"):
        store.read("x")
    record = published(folder)
    assert store.read(record.object_name) == record.to_safetensors()


def test_a_url_of_no_kind_that_is_known_is_refused_without_its_secrets() -> None:
    with pytest.raises(SettingsError, match="--store 'nope://host/path': obstore does not open it") as caught:
        WeightsStore("nope://user:secret@host/path", 100)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("url", ["s3://bucket/name?versions", "s3://bucket/na#me", "file://data/store"])
def test_a_url_of_which_a_part_would_be_left_aside_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"--store '(s3|file)://.*': its URL .* write (%3F|file:///)"):
        WeightsStore(url, 100)


@pytest.mark.parametrize("url", ["s3://[user:secret@bucket/name", "s3://user:secret\u2100@bucket/name"])
def test_a_url_without_a_host_that_can_be_read_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^--store 's3://…': its URL names no host that can be read$"):
        WeightsStore(url, 100)
