"""The watcher keeps the newest readable version at hand, and never goes back."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_producers.policy import PolicyWatcher
from penstock_producers.policy import watcher as watcher_module
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
    """A policies topic, its watcher's verdicts, and what was loaded of it."""

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


def loaded(watcher: PolicyWatcher, refused: Sequence[int] = ()) -> list[int]:
    """The versions that `load` tries, of which some are refused."""
    tried: list[int] = []

    def load(record: PolicyRecord) -> None:
        tried.append(record.version)
        if record.version in refused:
            raise PolicyRejectedError("load", f"version {record.version}")

    assert watcher.load(load) == bool(set(tried) - set(refused))
    return tried


def await_version(watcher: PolicyWatcher, version: int) -> None:
    seen: list[int] = []

    def arrived() -> bool:
        seen.extend(loaded(watcher))
        return version in seen

    wait_until(arrived)
    assert seen == sorted(seen)


def test_the_newest_is_at_hand_at_once(topic: Topic) -> None:
    topic.publish(1, 2, 7, 3)
    with topic.watcher() as watcher:
        found: list[PolicyRecord] = []
        assert watcher.load(found.append)
        assert found[0].digest == record_of(7).digest
        assert found[0].settings == {"epsilon": 0.7}
        assert not watcher.load(found.append)


def test_an_empty_topic_has_nothing(topic: Topic) -> None:
    with topic.watcher() as watcher:
        assert loaded(watcher) == []
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
        assert loaded(watcher) == []


def test_only_the_newest_of_several_waits(topic: Topic) -> None:
    with topic.watcher() as watcher:
        topic.publish(1, 2, 3, 4)
        topic.await_read()
        assert loaded(watcher) == [4]
        assert loaded(watcher) == []


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
        assert loaded(watcher) == []
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
        assert loaded(watcher) == [1]
        assert loaded(watcher) == []
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
        assert loaded(watcher) == []
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


def test_loading_never_waits_and_an_outage_passes(topic: Topic) -> None:
    topic.publish(1)
    with topic.watcher() as watcher:
        topic.log.outage = True
        # Nobody can hold `load` up: not even whoever holds the log.
        with topic.log.changed:
            assert loaded(watcher) == [1]
            assert [loaded(watcher) for _ in range(1000)] == [[]] * 1000
        topic.log.outage = False
        topic.publish(2)
        await_version(watcher, 2)


def test_an_outage_is_told_of_and_its_end(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is published: polls give nothing then, whether or not the log is there."""
    monkeypatch.setattr(watcher_module, "_ASK_SECONDS", 0.0)
    told: list[str | None] = []
    with PolicyWatcher(topic.log, TOPIC, check=lambda _: None, rejected=topic.rejected.append, waiting=told.append):
        for _ in range(2):
            before = len(told)
            topic.log.outage = True
            wait_until(lambda before=before: len(told) >= before + 2)  # type: ignore[misc]  # of this turn
            topic.log.outage = False
            wait_until(lambda: told[-1] is None)
    reasons = {reason for reason in told if reason is not None}
    assert reasons == {"the log in memory 'memory' has an outage: try again"}
    assert told.count(None) == 2


def test_a_version_that_does_not_load_is_waited_for_no_more_and_is_repaired_under_its_number(topic: Topic) -> None:
    topic.publish(1)
    with topic.watcher() as watcher:
        assert loaded(watcher) == [1]
        topic.publish(3)
        topic.await_read()
        assert watcher.announced == 3
        assert loaded(watcher, refused=[3]) == [3]
        assert watcher.announced == 1
        topic.publish(1, 3)
        await_version(watcher, 3)
    assert [str(error) for error in topic.rejected if error.reason == "load"] == ["load: version 3"]


@pytest.mark.parametrize("when", ["before", "while"])
def test_where_the_newest_does_not_load_the_one_before_it_is_loaded(topic: Topic, when: str) -> None:
    if when == "before":
        topic.publish(4, 5, 6)
    with topic.watcher() as watcher:
        if when == "while":
            topic.publish(4, 5, 6)
            topic.await_read()
        assert loaded(watcher, refused=[6]) == [6, 5]
        assert (watcher.announced, watcher.at_hand) == (5, False)
        topic.publish(4, 5)
        topic.await_read()
        assert loaded(watcher) == []


def test_a_version_repaired_while_it_is_at_hand_is_the_one_that_is_loaded(topic: Topic) -> None:
    topic.publish_record(PolicyRecord(6, {}))
    with topic.watcher() as watcher:
        topic.publish(6)
        topic.await_read()
        found: list[PolicyRecord] = []
        assert watcher.load(found.append)
    assert [record.digest for record in found] == [record_of(6).digest]


def test_leaving_ends_the_watching(topic: Topic) -> None:
    before = set(threading.enumerate())
    with topic.watcher() as watcher:
        assert set(threading.enumerate()) - before
    wait_until(lambda: set(threading.enumerate()) <= before)
    topic.publish(1)
    assert loaded(watcher) == []


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
