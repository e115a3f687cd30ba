"""What outlives a producer: its counters, in a file, where that is set."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from penstock_producers import counts
from penstock_producers.counts import kept
from penstock_producers.metrics import ProducerMetrics
from penstock_producers.state import Component, save_state
from penstock_schemas.errors import PolicyRejectedError, SettingsError
from penstock_schemas.service import Health
from tests.producers.producing import running
from tests.producers.publishing import wait_until

if TYPE_CHECKING:
    from pathlib import Path

OWNER = {"producer": "pod-0", "stream": "live"}
SMALL = ("--num-envs", "4", "--fragment-steps", "20")


def metrics() -> tuple[ProducerMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    health = Health("log", "env", "policy", clock=lambda: 0.0, beat_limit=1.0)
    return ProducerMetrics(registry, health), registry


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """All counters, by name and labels."""
    families = [family for family in registry.collect() if family.type == "counter"]
    samples = [sample for family in families for sample in family.samples if sample.name.endswith("_total")]
    return {f"{sample.name} {sample.labels}": sample.value for sample in samples}


def test_a_producer_that_restarts_goes_on_counting(tmp_path: Path) -> None:
    flags = (*SMALL, "--state", str(tmp_path / "state"))
    with running("CartPole-v1", *flags) as first:
        first.await_steps(500)
    with running("CartPole-v1", *flags) as second:
        wait_until(lambda: second.value("episodes_total") > first.value("episodes_total"))
    assert (first.error, second.error) == (None, None)
    assert (first.value("starts_total"), second.value("starts_total")) == (1, 2)
    for name in ("steps_total", "episodes_total", "messages_total", "published_bytes_total"):
        assert second.value(name) > first.value(name) > 0


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    with running("CartPole-v1", *SMALL) as first:
        first.await_steps(100)
    with running("CartPole-v1", *SMALL) as second:
        second.await_steps(1)
    assert second.value("starts_total") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_counter_returns_with_its_labels(tmp_path: Path) -> None:
    told, registry = metrics()
    with kept(tmp_path / "state", OWNER, told):
        told.began(7)
        told.waited("policy_lag", 1.5)
        told.rejected(PolicyRejectedError("names", "detail"))
        told.rejected(PolicyRejectedError("names", "detail"))
        told.left_out({"mask": 3})
    again, resumed = metrics()
    with kept(tmp_path / "state", OWNER, again):
        assert shown(resumed) == shown(registry)
        assert shown(resumed)["penstock_producer_policies_rejected_total {'reason': 'names'}"] == 2
        again.left_out({"mask": 1})
    assert shown(resumed)["penstock_producer_infos_left_out_total {'key': 'mask'}"] == 4


def test_counts_are_kept_now_and_then_from_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_EVERY_SECONDS", 0.001)
    before = set(threading.enumerate())
    told, registry = metrics()
    with kept(tmp_path / "state", OWNER, told):
        told.began(1)
        expected = shown(registry)

        def written() -> bool:
            again, resumed = metrics()
            counts._resume(tmp_path / "state", OWNER, again)
            return shown(resumed) == expected

        wait_until(written)
    assert set(threading.enumerate()) <= before


def test_the_counts_of_another_are_refused(tmp_path: Path) -> None:
    with kept(tmp_path / "state", OWNER, metrics()[0]):
        pass
    other = {"producer": "pod-1", "stream": "live"}
    with pytest.raises(SettingsError, match=re.escape(f"it holds the counts of {OWNER}, not of {other}; name another")):
        kept(tmp_path / "state", other, metrics()[0]).__enter__()


@pytest.mark.parametrize("held", [[], [["steps", {}, -1]], [["steps", {}, "1"]], [["aborted_episodes", {"a": "b"}, 1]]])
def test_a_file_without_counts_is_refused(tmp_path: Path, held: object) -> None:
    path = tmp_path / "state"
    values = {"owner": OWNER} | ({"counts": held} if held else {})
    save_state(path, {"counters": Component(values)})
    with pytest.raises(SettingsError, match="no counts are in it"):
        kept(path, OWNER, metrics()[0]).__enter__()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "loop"])
def test_a_file_that_cannot_be_looked_at_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / name
    with pytest.raises(SettingsError, match=re.escape(f"--state {path}: it cannot be looked at")):
        kept(path, OWNER, metrics()[0]).__enter__()


def test_a_counter_that_is_no_more_is_left_out(tmp_path: Path) -> None:
    told, registry = metrics()
    told.resume([["bygone", {}, 3.0], ["steps", {}, 2.0]])
    assert shown(registry)["penstock_producer_steps_total {}"] == 2


def test_counts_that_cannot_be_kept_are_told_of_and_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "_EVERY_SECONDS", 0.001)
    with running("CartPole-v1", *SMALL, "--state", str(tmp_path / "absent" / "state")) as producer:
        producer.await_steps(200)
        wait_until(lambda: any("the counts are not kept" in message for message in caplog.messages))
    assert producer.error is None
