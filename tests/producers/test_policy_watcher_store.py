"""Weights that no message holds: the watcher fetches them, and nobody waits for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock_producers.policy import PolicyWatcher, fetcher, watcher
from penstock_schemas import policies
from penstock_schemas.errors import PolicyRejectedError, StoreError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.policies import KEY, PolicyRecord, encode_policy
from tests.producers.publishing import SECONDS, wait_until
from tests.producers.weights import MAX_BYTES, GatedStore, gated, no_inline

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["gated", "no_inline"]
TOPIC = "policies.test"
pytestmark = pytest.mark.usefixtures("no_inline", "quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving waits for a poll of the log."""
    monkeypatch.setattr(watcher, "_POLL_SECONDS", 0.01)


def version(number: int) -> PolicyRecord:
    return PolicyRecord(number, {"weight": np.full(3, number, np.float32)}, {"epsilon": number / 10})


class Watched:
    """A watcher of a topic whose weights lie in a store."""

    def __init__(self, store: GatedStore) -> None:
        self.store = store
        self.log = MemoryLog()
        self.log.create(TOPIC, compacted=True)
        self.rejected: list[PolicyRejectedError] = []
        self.checks: dict[bytes, Exception] = {}
        self.slow: dict[bytes, threading.Event] = {}
        self.begun: list[int] = []
        self.checked: list[int] = []
        self.watcher = PolicyWatcher(self.log, TOPIC, check=self._check, rejected=self.rejected.append, weights=store)

    def _check(self, record: PolicyRecord) -> None:
        self.begun.append(record.version)
        if record.digest in self.slow:
            assert self.slow[record.digest].wait(SECONDS)
        self.checked.append(record.version)
        if record.digest in self.checks:
            raise self.checks[record.digest]

    def announce(self, record: PolicyRecord) -> None:
        value, headers = encode_policy(record)
        self.log.append(TOPIC, 0, KEY, value, headers)

    def publish(self, number: int) -> PolicyRecord:
        record = version(number)
        self.store.put(record)
        self.announce(record)
        return record

    def publish_inline(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(policies, "MAX_INLINE_BYTES", 1000)
            self.announce(version(number))

    def await_asked(self, number: int) -> None:
        wait_until(lambda: version(number).object_name in self.store.asked)

    def await_announced(self, number: int) -> None:
        wait_until(lambda: self.watcher.announced == number)

    def await_refused(self, *reasons: str) -> None:
        wait_until(lambda: len(self.rejected) >= len(reasons))
        assert [error.reason for error in self.rejected] == list(reasons)

    def taken(self) -> PolicyRecord:
        wait_until(lambda: self.watcher.at_hand)
        found: list[PolicyRecord] = []
        assert self.watcher.load(found.append)
        return found[0]


@pytest.fixture
def watched(gated: GatedStore) -> Iterator[Watched]:
    watched = Watched(gated)
    with watched.watcher:
        yield watched
        gated.gate.set()


def test_a_version_is_fetched_checked_and_at_hand(watched: Watched) -> None:
    record = watched.publish(1)
    found = watched.taken()
    assert (found.version, found.digest, found.settings) == (1, record.digest, {"epsilon": 0.1})
    assert watched.watcher.announced == 1
    assert watched.rejected == []


def test_a_version_that_lies_in_the_topic_at_a_start_is_fetched(gated: GatedStore) -> None:
    watched = Watched(gated)
    gated.gate.clear()
    watched.publish(3)
    with watched.watcher as opened:
        assert (opened.announced, opened.at_hand) == (3, False)
        gated.gate.set()
        assert watched.taken().version == 3


def test_without_a_store_it_is_refused_with_what_to_do() -> None:
    log, rejected = MemoryLog(), list[PolicyRejectedError]()
    log.create(TOPIC)
    value, headers = encode_policy(version(4))
    log.append(TOPIC, 0, KEY, value, headers)
    with PolicyWatcher(log, TOPIC, check=lambda record: None, rejected=rejected.append) as opened:
        assert (opened.announced, opened.at_hand) == (0, False)
    assert [str(error) for error in rejected] == [
        "no_store: policy version 4: its weights lie in the stream's store: give --store"
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"garbage", "unreadable"),
        (b"", "unreadable"),
        (version(3).to_safetensors(), "digest"),
        (PolicyRecord(3, version(2).weights, version(2).settings).to_safetensors(), "version"),
        (bytes(MAX_BYTES + 1), "too_large"),
    ],
)
def test_an_object_that_is_not_the_announced_one_is_refused_and_no_longer_counts(
    watched: Watched, data: bytes, reason: str
) -> None:
    watched.publish(1)
    assert watched.taken().version == 1
    watched.store.put(version(2), data)
    watched.announce(version(2))
    watched.await_refused(reason)
    watched.await_announced(1)
    assert not watched.watcher.at_hand


def test_an_object_that_is_not_there_is_refused(watched: Watched) -> None:
    watched.announce(version(2))
    watched.await_refused("absent")
    watched.await_announced(0)


def test_a_store_that_does_not_answer_is_asked_again_and_told_of_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetcher, "_AGAIN_SECONDS", 0.001)
    watched.store.failures = [StoreError("the store is away")] * 3 + [ZeroDivisionError("of all things")]
    watched.publish(1)
    assert watched.taken().version == 1
    assert len(watched.store.asked) == 5
    assert watched.rejected == []
    assert caplog.messages == [
        f"policy version 1 not fetched, trying again: {told}" for told in ("the store is away", "of all things")
    ]


def test_a_store_that_hangs_holds_no_news_up(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.store.gate.clear()
    watched.publish(2)
    watched.await_asked(2)
    assert (watched.watcher.announced, watched.watcher.at_hand) == (2, False)
    watched.publish_inline(3, monkeypatch)
    assert watched.taken().version == 3
    watched.publish(4)
    watched.await_announced(4)
    watched.store.gate.set()
    assert watched.taken().version == 4
    assert not watched.watcher.at_hand


def test_a_version_that_is_overtaken_while_it_is_checked_is_not_gone_back_to(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = watched.slow[version(2).digest] = threading.Event()
    watched.publish(2)
    wait_until(lambda: watched.begun == [2])
    watched.publish_inline(3, monkeypatch)
    assert watched.taken().version == 3
    gate.set()
    watched.announce(version(4))
    watched.await_refused("absent")
    assert watched.checked == [3, 2]
    watched.await_announced(3)
    assert not watched.watcher.at_hand


def test_versions_that_were_overtaken_are_not_fetched(watched: Watched) -> None:
    watched.store.gate.clear()
    for number in (1, 2, 3, 4):
        watched.publish(number)
        watched.await_asked(1)
    watched.await_announced(4)
    watched.store.gate.set()
    wait_until(lambda: version(4).object_name in watched.store.asked)
    assert watched.store.asked == [version(number).object_name for number in (1, 4)]


def test_where_the_newest_is_refused_the_one_before_it_is_fetched(watched: Watched) -> None:
    watched.store.gate.clear()
    watched.publish(1)
    watched.await_asked(1)
    watched.publish(2)
    watched.announce(version(3))
    watched.checks[version(4).digest] = PolicyRejectedError("names", "no such weight")
    watched.publish(4)
    watched.await_announced(4)
    watched.store.gate.set()
    wait_until(lambda: version(2).object_name in watched.store.asked)
    watched.await_refused("names", "absent")
    assert watched.store.asked == [version(number).object_name for number in (1, 4, 3, 2)]
    wait_until(lambda: watched.watcher.at_hand)
    watched.await_announced(2)


def test_where_the_newest_does_not_load_the_one_before_it_is_fetched_and_loaded(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 was overtaken by one that lies in a message before it was fetched."""
    watched.checks[version(1).digest] = PolicyRejectedError("names", "no such weight")
    watched.store.gate.clear()
    watched.publish(1)
    watched.await_asked(1)
    watched.publish(2)
    watched.publish_inline(3, monkeypatch)
    wait_until(lambda: watched.watcher.at_hand)
    watched.store.gate.set()

    def refuse(record: PolicyRecord) -> None:
        raise PolicyRejectedError("load", f"version {record.version}")

    assert not watched.watcher.load(refuse)
    assert watched.taken().version == 2
    assert watched.store.asked == [version(number).object_name for number in (1, 2)]


def test_a_version_announced_again_under_its_number_is_fetched_again(watched: Watched) -> None:
    bad = PolicyRecord(2, {"other": np.zeros(1, np.float32)})
    watched.checks[bad.digest] = PolicyRejectedError("names", "no such weight")
    watched.store.gate.clear()
    watched.store.put(bad)
    watched.announce(bad)
    wait_until(lambda: bad.object_name in watched.store.asked)
    watched.publish(2)
    watched.publish(1)
    watched.await_announced(2)
    watched.store.gate.set()
    assert watched.taken().digest == version(2).digest


def test_leaving_waits_for_no_store_that_hangs(gated: GatedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "_LEAVE_SECONDS", 0.01)
    watched = Watched(gated)
    gated.gate.clear()
    with watched.watcher:
        watched.announce(version(2))
        watched.await_asked(2)
    assert "policy-fetcher" in {thread.name for thread in threading.enumerate()}
    gated.gate.set()
    wait_until(lambda: "policy-fetcher" not in {thread.name for thread in threading.enumerate()})
    # Nobody is told of it any more.
    assert watched.rejected == []
