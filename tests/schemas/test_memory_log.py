"""What only the log in memory can do: a given clock, outages, evictions and retention on demand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock_schemas.errors import LogUnavailableError, TooLargeError, TopicError
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        self.told.append(("assigned", list(partitions)))
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None:
        self.told.append(("revoked", list(partitions)))

    def lost(self, partitions: Sequence[int]) -> None:
        self.told.append(("lost", list(partitions)))


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t", partitions=2)
    return log


def test_append_times_come_from_the_given_clock() -> None:
    now = [12.3456]
    log = MemoryLog(clock=lambda: now[0])
    log.create("t")
    appender = log.appender()
    assert appender.append("t", 0, value=b"a").result(0).timestamp_ms == 12345
    now[0] = 20.0
    assert appender.append("t", 0, value=b"b").result(0).timestamp_ms == 20000


def test_values_are_the_bytes_that_were_given(log: MemoryLog) -> None:
    value = bytes(1000)
    log.appender().append("t", 0, value=value)
    reader = log.reader()
    reader.seek("t", 0, 0)
    assert reader.poll(0)[0].value is value


def test_in_an_outage_nothing_answers_and_afterwards_all_goes_on(log: MemoryLog) -> None:
    appender, reader, member = log.appender(), log.reader(), log.group("t", "g", Listener())
    appender.append("t", 0, value=b"before")
    reader.seek("t", 0, 0)
    member.poll(0)
    log.outage = True
    with pytest.raises(LogUnavailableError, match="outage"):
        appender.append("t", 0, value=b"lost").result(0)
    assert list(reader.poll(0)) == []
    for ask in (log.describe, log.create):
        with pytest.raises(LogUnavailableError):
            ask("t")
    with pytest.raises(LogUnavailableError):
        reader.bounds("t", 0)
    assert member.end(0) == 1
    log.outage = False
    assert appender.append("t", 0, value=b"after").result(0).offset == 1
    assert [record.value for record in reader.poll(0)] == [b"before", b"after"]


def test_the_end_of_an_outage_wakes_a_waiting_reader(log: MemoryLog) -> None:
    reader = log.reader()
    log.appender().append("t", 0, value=b"there")
    reader.seek("t", 0, 0)
    log.outage = True
    polled: list[bytes | None] = []
    thread = threading.Thread(target=lambda: polled.extend(record.value for record in reader.poll(60.0)))
    thread.start()
    log.outage = False
    thread.join(10.0)
    assert polled == [b"there"]


def test_no_outage_moves_partitions(log: MemoryLog) -> None:
    listener = Listener()
    member = log.group("t", "g", listener)
    log.outage = True
    member.poll(0)
    assert listener.told == []
    log.outage = False
    member.poll(0)
    assert listener.told == [("assigned", [0, 1])]


def test_an_evicted_member_is_told_and_joins_again(log: MemoryLog) -> None:
    listeners = Listener(), Listener()
    first, second = (log.group("t", "g", listener) for listener in listeners)
    first.poll(0)
    second.poll(0)
    log.evict(first)
    second.poll(0)
    # The partitions have moved on although the first member does not know yet.
    assert listeners[1].told == [("assigned", [0, 1])]
    first.report({0: 9})
    assert log.reported("t", "g") == {}
    first.poll(0)
    assert listeners[0].told == [("assigned", [0, 1]), ("lost", [0, 1])]
    second.poll(0)
    first.poll(0)
    assert listeners[1].told[1:] == [("revoked", [1])]
    assert listeners[0].told[2:] == [("assigned", [1])]


def test_an_evicted_member_that_closes_has_lost_its_partitions(log: MemoryLog) -> None:
    listener = Listener()
    member = log.group("t", "g", listener)
    member.poll(0)
    log.evict(member)
    member.close()
    assert listener.told == [("assigned", [0, 1]), ("lost", [0, 1])]


def test_a_member_waits_for_the_partitions_that_another_still_holds(log: MemoryLog) -> None:
    listeners = Listener(), Listener()
    first, second = (log.group("t", "g", listener) for listener in listeners)
    first.poll(0)
    second.poll(0)
    assert listeners[1].told == []
    first.poll(0)
    assert listeners[0].told == [("assigned", [0, 1]), ("revoked", [1])]
    second.poll(0)
    assert listeners[1].told == [("assigned", [1])]


def test_a_busy_partition_does_not_starve_another(log: MemoryLog) -> None:
    appender, reader = log.appender(), log.reader()
    for number in range(10):
        appender.append("t", 0, value=b"%d" % number)
    appender.append("t", 1, value=b"other")
    reader.seek("t", 0, 0)
    reader.seek("t", 1, 0)
    assert [record.partition for _ in range(3) for record in reader.poll(0, max_records=2)] == [0, 0, 1, 0, 0, 0]


def test_retention_cannot_pass_the_end(log: MemoryLog) -> None:
    log.appender().append("t", 0, value=b"0")
    log.trim("t", 0, 1)
    assert log.bounds("t", 0) == (1, 1)
    for offset in (0, 2):
        with pytest.raises(ValueError, match=f"to {offset}: it holds 1 to 1"):
            log.trim("t", 0, offset)


def test_a_reader_of_a_deleted_topic_is_told(log: MemoryLog) -> None:
    reader = log.reader()
    reader.seek("t", 0, 0)
    log.delete("t")
    with pytest.raises(TopicError, match="no topic 't'"):
        reader.poll(0)


def test_key_and_headers_count_towards_the_largest_record() -> None:
    log = MemoryLog(max_message_bytes=10)
    log.create("t")
    appender = log.appender()
    appender.append("t", 0, key=b"1234", value=b"567", headers=(("8", b"90"),)).result(0)
    with pytest.raises(TooLargeError, match="11 bytes"):
        appender.append("t", 0, key=b"1234", value=b"567", headers=(("8", b"901"),)).result(0)
