"""Messages that were valid once, in the middle of a partition: what is turned down leaves only a dead letter."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition
from penstock_consumers.quarantine import reading
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.verify import verify
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_tick
from tests.consumers.messages import DEAD_LETTERS, STREAM, TOPIC, Clock, append, append_tick, records
from tests.schemas import fuzz
from tests.schemas.fuzz_child import MAX_RAW_BYTES, case_of

if TYPE_CHECKING:
    from penstock_schemas.log import Record

CASES = 250
LIMITS = Limits(max_raw_bytes=MAX_RAW_BYTES)


def fuzzed_log(seed: int) -> MemoryLog:
    """A log whose producer begins where the cases say that it did, and the cases where they say that they lie."""
    log = MemoryLog(clock=Clock(), max_message_bytes=16 << 20)
    log.create(TOPIC)
    log.create(DEAD_LETTERS)
    while log.end(TOPIC, 0) < fuzz.OFFSET:
        if log.end(TOPIC, 0) == fuzz.INCARNATION:
            append(log, fuzz.VALID[fuzz.PLAIN.fingerprint][0], fuzz.PRODUCER)
        else:
            append_tick(log)
    for number in range(CASES):
        case = case_of(seed, number)
        log.append(TOPIC, 0, fuzz.PRODUCER.encode(), case.value, case.headers)
    append(log, encode_tick(), "tick")
    return log


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_turned_down_changes_nothing_and_arrives(seed: int) -> None:
    log, bucket = fuzzed_log(seed), open_bucket("memory://")
    topic = log.describe(TOPIC)
    letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
    partition = Partition(ReplayStore(bucket, STREAM, topic), 0, letters, LIMITS)
    rejected: dict[int, Record] = {}
    for record in records(log):
        counted, entries = partition.counters["messages_quarantined"], partition._judge.entries()
        open_before, waiting = partition.open_episodes, letters.pending_bytes
        partition.take(record)
        if partition.counters["messages_quarantined"] > counted:
            assert partition._judge.entries() == entries
            assert partition.open_episodes == open_before
            assert letters.pending_bytes == waiting + record.size
            rejected[record.offset] = record
    assert 20 < len(rejected) < CASES
    assert letters.pending_bytes == sum(record.size for record in rejected.values())
    partition.commit()
    found = reading.read(log, DEAD_LETTERS, topic.topic_id).letters.values()
    assert {letter.place.offset: letter.headers for letter in found} == {
        offset: record.headers for offset, record in rejected.items()
    }
    assert {letter.detail.partition(": ")[0] for letter in found} == {letter.reason for letter in found}
    with closing(reading.Payloads(log, DEAD_LETTERS)) as payloads:
        assert all(payloads.of(letter) == rejected[letter.place.offset].value for letter in found)
    report = verify(bucket, log, TOPIC)
    assert (report.ok, report.counters["messages_quarantined"]) == (True, len(rejected))
