"""The watcher keeps the newest readable version at hand, and never goes back."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_producers.policy import PolicyWatcher
from penstock_schemas.errors import LogUnavailableError, PolicyRejectedError
from penstock_schemas.log.memory import MemoryLog, MemoryReader
from penstock_schemas.policies import KEY, PolicyRecord, encode_policy
from tests.producers.publishing import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_schemas.log import Record

TOPIC = "policies.test"


def record_of(version: int) -> PolicyRecord:
    return PolicyRecord(version, {"weight": np.full(3, version, np.float32)}, {"epsilon": version / 10})


class Topic:
    """A policies topic, its watcher's verdicts, and what was taken of it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create(TOPIC, compacted=True)
        self.rejected: list[PolicyRejectedError] = []
        self.checks: dict[bytes, Exception] = {}

    def watcher(self) -> PolicyWatcher:
        return PolicyWatcher(self.log, TOPIC, check=self._check, rejected=self.rejected.append)

    def recreate(self) -> None:
        with self.log.changed:
            self.log.delete(TOPIC)
            self.log.create(TOPIC, compacted=True)

    def _check(self, record: PolicyRecord) -> None:
        if record.digest in self.checks:
            raise self.checks[record.digest]

    def publish(self, *versions: int) -> None:
        for version in versions:
            self.publish_record(record_of(version))

    def publish_record(self, record: PolicyRecord) -> None:
        value, headers = encode_policy(record)
        self.log.append(TOPIC, 0, KEY, value, headers)

    def publish_refused(self, version: int, error: Exception) -> None:
        """Publish a readable version whose check raises `error`."""
        refused = PolicyRecord(version, {"other": np.zeros(1, np.float32)})
        self.checks[refused.digest] = error
        self.publish_record(refused)

    def publish_bad(self, *, version: int = 9, **changed: Any) -> None:
        value, headers = encode_policy(record_of(version))
        spoilt = {**dict(headers), **changed}
        self.log.append(TOPIC, 0, KEY, value, tuple((name, text) for name, text in spoilt.items()))

    def await_read(self) -> None:
        """Wait until the watcher has considered all that the topic holds: a bad record last tells."""
        before = len(self.rejected)
        self.publish_bad(digest=b"")
        wait_until(lambda: len(self.rejected) > before)


@pytest.fixture
def topic() -> Topic:
    return Topic()


def taken(watcher: PolicyWatcher) -> int | None:
    found = watcher.take()
    return None if found is None else found.version


def await_version(watcher: PolicyWatcher, version: int) -> None:
    seen: list[int] = []

    def arrived() -> bool:
        found = watcher.take()
        if found is not None:
            seen.append(found.version)
        return version in seen

    wait_until(arrived)
    assert seen == sorted(seen)


def test_the_newest_is_at_hand_at_once(topic: Topic) -> None:
    topic.publish(1, 2, 7, 3)
    with topic.watcher() as watcher:
        found = watcher.take()
        assert found is not None
        assert found.digest == record_of(7).digest
        assert found.settings == {"epsilon": 0.7}
        assert watcher.take() is None


def test_an_empty_topic_has_nothing(topic: Topic) -> None:
    with topic.watcher() as watcher:
        assert watcher.take() is None
    assert topic.rejected == []


def test_later_versions_arrive_and_older_ones_never(topic: Topic) -> None:
    with topic.watcher() as watcher:
        for version in (1, 2, 5):
            topic.publish(version)
            await_version(watcher, version)
        topic.publish(4, 5, 1, 6)
        await_version(watcher, 6)
        topic.publish(2, 3)
        topic.await_read()
        assert watcher.take() is None


def test_only_the_newest_of_several_waits(topic: Topic) -> None:
    with topic.watcher() as watcher:
        topic.publish(1, 2, 3, 4)
        topic.await_read()
        assert taken(watcher) == 4
        assert taken(watcher) is None


@pytest.mark.parametrize("when", ["before", "while"])
def test_bad_records_are_counted_and_skipped(topic: Topic, when: str) -> None:
    def publish() -> None:
        topic.publish(1)
        topic.publish_bad(digest=bytes(32))
        topic.publish_bad(penstock=b"2")
        topic.publish_bad(settings=b"{")
        topic.publish_bad(version=0)
        topic.log.append(TOPIC, 0, KEY, b"no safetensors", encode_policy(record_of(9))[1])
        topic.log.append(TOPIC, 0, KEY, None, ())
        topic.publish(2)

    if when == "before":
        publish()
    with topic.watcher() as watcher:
        if when == "while":
            publish()
        await_version(watcher, 2)
        assert watcher.take() is None
    reasons = [error.reason for error in topic.rejected]
    assert reasons == ["digest", "format", "unreadable", "unreadable", "unreadable", "format"]


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_version_that_cannot_act_displaces_none_and_is_repaired_under_its_number(topic: Topic, when: str) -> None:
    def publish() -> None:
        topic.publish(1)
        topic.publish_refused(2, PolicyRejectedError("names", "no such weight"))

    if when == "before":
        publish()
    with topic.watcher() as watcher:
        if when == "while":
            publish()
            wait_until(lambda: bool(topic.rejected))
        assert taken(watcher) == 1
        assert taken(watcher) is None
        topic.publish(2)
        await_version(watcher, 2)
    assert [str(error) for error in topic.rejected] == ["names: no such weight"]


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_record_that_nobody_foresaw_is_counted_and_the_watching_goes_on(topic: Topic, when: str) -> None:
    def publish() -> None:
        topic.publish(1)
        topic.publish_refused(2, ZeroDivisionError("of all things"))

    if when == "before":
        publish()
    with topic.watcher() as watcher:
        if when == "while":
            publish()
        wait_until(lambda: bool(topic.rejected))
        topic.publish(3)
        await_version(watcher, 3)
    assert [error.reason for error in topic.rejected] == ["error"]
    assert str(topic.rejected[0]) == "error: policy version 2: ZeroDivisionError('of all things')"


def test_a_recreated_topic_is_read_from_its_start_and_told_of_once(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.publish(5, 6)
    with topic.watcher() as watcher:
        topic.recreate()
        wait_until(lambda: bool(caplog.records))
        topic.publish(3, 9)
        await_version(watcher, 9)
        assert watcher.take() is None
    (told,) = caplog.messages
    assert told.startswith(f"no news of policies, trying again: offset 2 of {TOPIC}-0 is outside its log, which holds")


def test_a_topic_that_stays_away_is_told_of_once(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    tries = Counter[str]()

    class Counting(MemoryReader):
        def bounds(self, topic: str, partition: int) -> tuple[int, int]:
            tries[topic] += 1
            return super().bounds(topic, partition)

    topic.log.reader = lambda: Counting(topic.log)  # type: ignore[method-assign]  # counts what it is asked
    with topic.watcher() as watcher:
        topic.log.delete(TOPIC)
        wait_until(lambda: tries[TOPIC] >= 4)
        topic.log.create(TOPIC)
        topic.publish(1)
        await_version(watcher, 1)
    assert caplog.messages == [f"no news of policies, trying again: there is no topic '{TOPIC}': create it"]


def test_entering_while_the_log_is_away_raises_and_leaves_nothing(topic: Topic) -> None:
    before = set(threading.enumerate())
    topic.log.outage = True
    with pytest.raises(LogUnavailableError, match="outage"), topic.watcher():
        pass
    assert set(threading.enumerate()) <= before


def test_taking_never_waits_and_an_outage_passes(topic: Topic) -> None:
    topic.publish(1)
    with topic.watcher() as watcher:
        topic.log.outage = True
        # Nobody can hold `take` up: not even whoever holds the log.
        with topic.log.changed:
            assert taken(watcher) == 1
            assert [taken(watcher) for _ in range(1000)] == [None] * 1000
        topic.log.outage = False
        topic.publish(2)
        await_version(watcher, 2)


def test_a_version_that_was_taken_and_withdrawn_is_waited_for_no_more_and_is_repaired_under_its_number(
    topic: Topic,
) -> None:
    topic.publish(1)
    with topic.watcher() as watcher:
        assert taken(watcher) == 1
        topic.publish(3)
        await_version(watcher, 3)
        assert watcher.announced == 3
        watcher.withdraw(3, acting=1)
        assert watcher.announced == 1
        topic.publish(1, 3)
        await_version(watcher, 3)
        topic.publish(4)
        wait_until(lambda: watcher.announced == 4)
        watcher.withdraw(3, acting=1)
        assert watcher.announced == 4
        assert taken(watcher) == 4


def test_leaving_ends_the_watching(topic: Topic) -> None:
    before = set(threading.enumerate())
    with topic.watcher() as watcher:
        assert set(threading.enumerate()) - before
    wait_until(lambda: set(threading.enumerate()) <= before)
    topic.publish(1)
    assert watcher.take() is None


class HangingReader(MemoryReader):
    """A reader whose polls do not return before `released`, and then find that the log is gone."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.closed = threading.Event()

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        self.hangs.set()
        self.released.wait()
        raise LogUnavailableError(f"closed amid a poll of {max_records} records and {timeout} s")

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_leaving_does_not_wait_for_a_log_that_hangs(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    reader, left = HangingReader(topic.log), threading.Event()
    topic.log.reader = lambda: reader  # type: ignore[method-assign]  # hangs

    def run() -> None:
        with topic.watcher():
            assert reader.hangs.wait(SECONDS)
        left.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        assert left.wait(SECONDS)
        # It is still being read.
        assert not reader.closed.is_set()
    finally:
        reader.released.set()
    assert reader.closed.wait(SECONDS)
    assert caplog.messages == []
