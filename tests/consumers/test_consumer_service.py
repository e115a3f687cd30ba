from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.service import consume
from penstock_consumers.settings import ConsumerSettings
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import (
    BadStreamError,
    FatalError,
    LogUnavailableError,
    SettingsError,
    StoreMismatchError,
    TopicError,
)
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.service import Health, load
from tests.consumers.messages import STREAM, TOPIC, Row, ScriptedProducer, append_garbage, records, stored_episodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock_schemas.log import Appended, TopicInfo

DEAD_LETTERS = f"{TOPIC}.dead-letter"
SECONDS = 60.0


class PatchyLog(MemoryLog):
    """A log whose dead-letter topic alone may be away."""

    away = False

    def append(self, topic: str, *arguments: Any) -> Appended:
        if self.away and topic == DEAD_LETTERS:
            raise LogUnavailableError("its broker is away")
        return super().append(topic, *arguments)


class WritersTimesLog(MemoryLog):
    """A log whose topics have the timestamps of their writers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def describe(self, topic: str) -> TopicInfo:
        self.asked.set()
        return replace(super().describe(topic), log_append_time=False)


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.01)


def settings(store: Path, *flags: str) -> ConsumerSettings:
    return load(ConsumerSettings, ["--stream", STREAM, "--store", str(store), "--commit-seconds", "0.01", *flags])


@contextmanager
def consuming(log: MemoryLog, store: Path, *flags: str) -> Iterator[Health]:
    """A consumer in a thread; what it raises is raised here."""
    health = Health("log", "store", clock=time.monotonic, beat_limit=SECONDS)
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            consume(settings(store, *flags), log, ConsumerMetrics(CollectorRegistry()), health, stop)
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is raised below)
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield health
    finally:
        stop.set()
        thread.join(SECONDS)
    assert not thread.is_alive()
    for failure in failures:
        raise failure


def whole_episode(log: MemoryLog) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3, Ends.TERMINATED))


def test_a_consumer_is_ready_once_it_has_joined_and_stores_what_comes(tmp_path: Path) -> None:
    log = MemoryLog()
    with consuming(log, tmp_path) as health:
        wait_until(lambda: "there is no topic" in health.failing().get("log", ""))
        log.create(TOPIC)
        wait_until(lambda: not health.failing())
        whole_episode(log)
        # Its producer's begin may be committed alone.
        wait_until(
            lambda: (newest := commits.newest(open_bucket(tmp_path), 0)) and newest.counters.get("episodes_ended")
        )
    assert len(stored_episodes(open_bucket(tmp_path))) == 1


def test_a_dead_letter_topic_that_is_away_holds_back_and_says_so(tmp_path: Path) -> None:
    log = PatchyLog()
    log.create(TOPIC)
    log.create(DEAD_LETTERS)
    append_garbage(log)
    whole_episode(log)
    log.away = True
    bucket = open_bucket(tmp_path)
    with consuming(log, tmp_path) as health:
        wait_until(lambda: "its broker is away" in health.failing().get("log", ""))
        assert commits.newest(bucket, 0) is None
        log.away = False
        wait_until(lambda: commits.newest(bucket, 0))
        wait_until(lambda: not health.failing())
    assert len(stored_episodes(bucket)) == 1
    assert len(records(log, topic=DEAD_LETTERS)) == 1


def test_an_outage_while_partitions_are_taken_on_is_waited_out(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    whole_episode(log)
    log.outage = True
    with consuming(log, tmp_path) as health:
        wait_until(lambda: "log" in health.failing() and "not reported" not in health.failing()["log"])
        log.outage = False
        wait_until(lambda: commits.newest(open_bucket(tmp_path), 0))
    assert len(stored_episodes(open_bucket(tmp_path))) == 1


def test_a_store_of_another_stream_is_refused(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    whole_episode(log)
    with consuming(log, tmp_path):
        wait_until(lambda: commits.newest(open_bucket(tmp_path), 0))
    log.delete(TOPIC)
    log.create(TOPIC)
    health = Health("log", "store", clock=time.monotonic, beat_limit=SECONDS)
    with pytest.raises(StoreMismatchError, match="the topic was recreated; begin a new store"):
        consume(settings(tmp_path), log, ConsumerMetrics(CollectorRegistry()), health, threading.Event())


def test_a_topic_whose_timestamps_are_its_writers_is_refused(tmp_path: Path) -> None:
    log = WritersTimesLog()
    log.create(TOPIC)
    whole_episode(log)
    told = r"its timestamps are its writers'.* message\.timestamp\.type=LogAppendTime"
    with pytest.raises(TopicError, match=told), consuming(log, tmp_path):
        assert log.asked.wait(SECONDS)
    assert commits.newest(open_bucket(tmp_path), 0) is None


def test_a_stream_of_mostly_bad_messages_ends_the_consumer_and_readiness_says_why(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    for _ in range(300):
        append_garbage(log)
    health = Health("log", "store", clock=time.monotonic, beat_limit=SECONDS)
    metrics = ConsumerMetrics(CollectorRegistry())
    with pytest.raises(BadStreamError, match=r"partition 0, offset .*--max-bad-share 1"):
        consume(settings(tmp_path), log, metrics, health, threading.Event())
    assert "--max-bad-share 1" in health.failing()["log"]
    assert commits.newest(open_bucket(tmp_path), 0) is None


def test_the_share_of_bad_messages_is_the_operators(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    for _ in range(300):
        append_garbage(log)
    with consuming(log, tmp_path, "--max-bad-share", "1"):
        wait_until(lambda: (newest := commits.newest(open_bucket(tmp_path), 0)) and newest.high_water == 300)


def test_two_consumers_of_one_name_end_the_first(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    whole_episode(log)

    def twins() -> None:
        with consuming(log, tmp_path, "--instance", "pod-0") as first:
            wait_until(lambda: commits.newest(open_bucket(tmp_path), 0))
            with consuming(log, tmp_path, "--instance", "pod-0"):
                wait_until(lambda: "pod-0" in first.failing().get("log", ""))

    with pytest.raises(FatalError, match="another member has joined as instance 'pod-0'"):
        twins()


def test_settings_that_cannot_work_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--idle-seconds '0\.5'"):
        settings(tmp_path, "--idle-seconds", "0.5")
