"""What every log keeps to: one suite over the log in memory and over a real Kafka."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penstock_schemas.errors import FatalError, TooLargeError, TopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from conftest import Subject

    from penstock_schemas.log import Appender, GroupReader, Reader, Record

SECONDS = 60.0


def append(appender: Appender, topic: str, values: Sequence[bytes], partition: int = 0) -> list[int]:
    futures = [appender.append(topic, partition, value=value) for value in values]
    return [future.result(SECONDS).offset for future in futures]


def read(reader: Reader | GroupReader, count: int, max_records: int = 500) -> list[Record]:
    deadline = time.monotonic() + SECONDS
    records: list[Record] = []
    while len(records) < count and time.monotonic() < deadline:
        records += reader.poll(0.5, max_records)
    return records


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


class Listener:
    """Notes what a member is told, in a list that several may share; all read from the offsets in `start`."""

    def __init__(self, told: list[tuple[str, str, int]], name: str, start: Mapping[int, int]) -> None:
        self.told = told
        self.name = name
        self.start = start
        self.held: set[int] = set()

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        self.held.update(partitions)
        self.told += [("assigned", self.name, partition) for partition in partitions]
        return {partition: self.start[partition] for partition in partitions}

    def revoked(self, partitions: Sequence[int]) -> None:
        self.held.difference_update(partitions)
        self.told += [("revoked", self.name, partition) for partition in partitions]

    def lost(self, partitions: Sequence[int]) -> None:
        self.held.difference_update(partitions)
        self.told += [("lost", self.name, partition) for partition in partitions]


def poll_until(condition: Callable[[], bool], *members: GroupReader) -> None:
    """Poll members side by side, as processes do, until `condition` holds."""
    deadline = time.monotonic() + SECONDS
    done = threading.Event()
    errors: list[Exception] = []

    def loop(member: GroupReader) -> None:
        try:
            while not done.is_set():
                member.poll(0.05)
        except Exception as error:  # noqa: BLE001 - raised again in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    while not condition() and not errors and time.monotonic() < deadline:
        done.wait(0.01)
    done.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert condition(), "the group did not settle in time"


def test_appends_answer_offsets_in_order_and_broker_times(subject: Subject) -> None:
    topic = subject.topic()
    before = time.time() * 1000 - 1
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        futures = [appender.append(topic, 0, value=b"%d" % number) for number in range(100)]
        answers = [future.result(SECONDS) for future in futures]
        after = time.time() * 1000 + 1
        reader.seek(topic, 0, 0)
        records = read(reader, 100)
    assert [(answer.partition, answer.offset) for answer in answers] == [(0, number) for number in range(100)]
    assert [(record.offset, record.value) for record in records] == [(n, b"%d" % n) for n in range(100)]
    assert [record.timestamp_ms for record in records] == [answer.timestamp_ms for answer in answers]
    assert before <= answers[0].timestamp_ms <= answers[-1].timestamp_ms <= after


def test_a_record_comes_back_as_it_was(subject: Subject) -> None:
    topic = subject.topic(partitions=2)
    headers = (("version", b"1"), ("empty", b""), ("version", b"2"))
    wanted = [(b"key", None, ()), (None, b"", headers), (b"", b"value", ()), (None, bytes(range(250)) * 4000, headers)]
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        for key, value, given in wanted:
            appender.append(topic, 1, key=key, value=value, headers=given).result(SECONDS)
        reader.seek(topic, 1, 0)
        records = read(reader, len(wanted))
    assert [(record.key, record.value, record.headers) for record in records] == wanted
    assert {(record.topic, record.partition) for record in records} == {(topic, 1)}


def test_a_record_needs_a_key_or_a_value(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender, pytest.raises(ValueError, match="neither key nor value"):
        appender.append(topic, 0)


def test_an_appender_takes_no_null_header(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender:
        with pytest.raises(ValueError, match=f"{topic}-0 has the null header 'null'"):
            appender.append(topic, 0, value=b"v", headers=(("null", None),))  # type: ignore[arg-type]  # what is refused
        assert append(appender, topic, [b"next"]) == [0]


def test_null_headers_of_other_clients_are_read(subject: Subject) -> None:
    topic = subject.topic()
    headers = (("empty", b""), ("null", None), ("full", b"x"))
    subject.append_foreign(topic, b"key", headers)
    with closing(subject.log.reader()) as reader:
        reader.seek(topic, 0, 0)
        (record,) = read(reader, 1)
    assert record.headers == headers
    assert record.size == len(b"key" + b"empty" + b"null" + b"full" + b"x")


def test_a_record_that_is_too_large_fails_and_the_next_does_not(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender:
        refused = appender.append(topic, 0, value=bytes(1_100_000))
        with pytest.raises(TooLargeError, match=topic):
            refused.result(SECONDS)
        assert append(appender, topic, [b"small"]) == [0]


@pytest.mark.parametrize(("known", "partition"), [(False, 0), (True, 7)])
def test_appending_to_what_does_not_exist_fails(subject: Subject, known: bool, partition: int) -> None:
    topic = subject.topic() if known else "contract-never-created"
    with closing(subject.log.appender()) as appender:
        refused = appender.append(topic, partition, value=b"lost")
        with pytest.raises(TopicError, match=topic):
            refused.result(SECONDS)


def test_a_closed_appender_refuses(subject: Subject) -> None:
    topic = subject.topic()
    appender = subject.log.appender()
    appender.close()
    with pytest.raises(FatalError, match="closed"):
        appender.append(topic, 0, value=b"late").result(SECONDS)


def test_closing_an_appender_waits_for_what_is_under_way(subject: Subject) -> None:
    topic = subject.topic()
    appender = subject.log.appender()
    futures = [appender.append(topic, 0, value=bytes(100_000)) for _ in range(50)]
    appender.close()
    assert [future.result(0).offset for future in futures] == list(range(50))


def test_readers_start_where_they_are_sent_and_do_not_disturb_each_other(subject: Subject) -> None:
    topic = subject.topic()
    with (
        closing(subject.log.appender()) as appender,
        closing(subject.log.reader()) as first,
        closing(subject.log.reader()) as second,
    ):
        append(appender, topic, [b"0", b"1", b"2", b"3"])
        first.seek(topic, 0, 2)
        second.seek(topic, 0, 0)
        assert values(read(first, 2)) == [b"2", b"3"]
        assert values(read(second, 4)) == [b"0", b"1", b"2", b"3"]
        first.seek(topic, 0, 1)
        assert values(read(first, 3)) == [b"1", b"2", b"3"]


def test_max_records_bounds_a_poll(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        append(appender, topic, [b"%d" % number for number in range(7)])
        reader.seek(topic, 0, 0)
        polls = []
        while sum(map(len, polls)) < 7:
            polls.append(reader.poll(SECONDS, max_records=3))
    assert max(map(len, polls)) <= 3
    assert [value for poll in polls for value in values(poll)] == [b"%d" % number for number in range(7)]


def test_a_reader_of_several_partitions_keeps_the_order_of_each(subject: Subject) -> None:
    topic = subject.topic(partitions=3)
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        for partition in range(3):
            append(appender, topic, [b"%d" % number for number in range(40)], partition)
            reader.seek(topic, partition, 10 * partition)
        records = read(reader, 90, max_records=7)
    for partition in range(3):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(10 * partition, 40))


def test_a_waiting_reader_wakes_for_a_new_record(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        append(appender, topic, [b"old"])
        reader.seek(topic, 0, 1)
        assert list(reader.poll(0.2)) == []
        answers: list[float] = []

        def wait() -> None:
            assert values(reader.poll(SECONDS)) == [b"new"]
            answers.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        append(appender, topic, [b"new"])
        appended = time.monotonic()
        thread.join()
    assert answers[0] - appended < 2.0


def test_bounds_follow_appends_and_retention(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        assert reader.bounds(topic, 0) == (0, 0)
        append(appender, topic, [b"0", b"1", b"2"])
        assert reader.bounds(topic, 0) == (0, 3)
        subject.trim(topic, 2)
        assert reader.bounds(topic, 0) == (2, 3)


@pytest.mark.parametrize("position", [0, 9])
def test_a_position_outside_the_log_is_an_error_and_no_reset(subject: Subject, position: int) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        append(appender, topic, [b"0", b"1", b"2"])
        subject.trim(topic, 2)
        reader.seek(topic, 0, position)
        with pytest.raises(TopicError, match=rf"offset {position} of {topic}-0 .* 2 to 3"):
            read(reader, 1)
        reader.seek(topic, 0, 2)
        assert values(read(reader, 1)) == [b"2"]


def test_a_position_outside_one_log_loses_nothing_of_another(subject: Subject) -> None:
    topic = subject.topic(partitions=2)
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        append(appender, topic, [b"0", b"1"])
        append(appender, topic, [b"a", b"b"], partition=1)
        subject.trim(topic, 1)
        reader.seek(topic, 1, 0)
        reader.seek(topic, 0, 0)
        found: list[bytes | None] = []

        def read_on() -> None:
            while len(found) < 3:
                found.extend(values(reader.poll(SECONDS)))

        # What can be read comes before the error or after it.
        with pytest.raises(TopicError, match=f"offset 0 of {topic}-0"):
            read_on()
        reader.seek(topic, 0, 1)
        read_on()
        assert sorted(filter(None, found)) == [b"1", b"a", b"b"]


def test_there_is_nothing_to_read_in_what_does_not_exist(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.reader()) as reader:
        for name, partition in (("contract-never-created", 0), (topic, 1)):
            with pytest.raises(TopicError, match=name):
                reader.seek(name, partition, 0)
            with pytest.raises(TopicError, match=name):
                reader.bounds(name, partition)
    with pytest.raises(TopicError, match="contract-never-created"):
        subject.log.describe("contract-never-created")


def test_creating_a_topic_twice_describes_the_first(subject: Subject) -> None:
    topic = subject.topic(partitions=3)
    info = subject.log.describe(topic)
    assert (info.name, info.partitions, info.log_append_time) == (topic, 3, True)
    assert info.topic_id
    assert info.cluster_id
    assert subject.log.create(topic, partitions=5, compacted=True) == info


def test_a_recreated_topic_has_another_id(subject: Subject) -> None:
    topic = subject.topic()
    first = subject.log.describe(topic)
    subject.delete(topic)
    with pytest.raises(TopicError, match=topic):
        subject.log.describe(topic)
    second = subject.log.create(topic)
    assert second.topic_id != first.topic_id
    assert second.cluster_id == first.cluster_id


def test_a_compacted_topic_keeps_its_newest_record(subject: Subject) -> None:
    topic = f"{subject.topic()}-compacted"
    assert subject.log.create(topic, compacted=True).partitions == 1
    with closing(subject.log.appender()) as appender, closing(subject.log.reader()) as reader:
        for version in (b"1", b"2"):
            appender.append(topic, 0, key=b"policy", value=version).result(SECONDS)
        reader.seek(topic, 0, 0)
        assert values(read(reader, 2))[-1] == b"2"


def test_one_member_gets_all_partitions_at_the_offsets_that_its_listener_names(subject: Subject) -> None:
    topic = subject.topic(partitions=2)
    listener = Listener([], "only", {0: 1, 1: 0})
    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"a", b"b", b"c"], 0)
        append(appender, topic, [b"d"], 1)
    with closing(subject.log.group(topic, "readers", listener)) as member:
        records = read(member, 3)
        assert sorted(values(records)) == [b"b", b"c", b"d"]
        assert listener.held == {0, 1}
        assert member.bounds(0) == (0, 3)
        member.seek(0, 2)
        assert values(read(member, 1)) == [b"c"]
        with pytest.raises(ValueError, match="partition 5"):
            member.seek(5, 0)
    assert listener.held == set()
    assert sorted(listener.told) == [(did, "only", p) for did in ("assigned", "revoked") for p in (0, 1)]


def test_a_member_knows_the_end_from_its_fetches(subject: Subject) -> None:
    topic = subject.topic(partitions=2)
    member = subject.log.group(topic, "ends", Listener([], "only", {0: 3, 1: 0}))
    with closing(subject.log.appender()) as appender, closing(member):
        append(appender, topic, [b"0", b"1", b"2"])
        append(appender, topic, [b"3", b"4"], 1)
        assert member.end(0) is None
        assert values(read(member, 1, max_records=1)) == [b"3"]
        assert member.end(1) == 2
        # From the last record on there is nothing to fetch; the answer tells the end all the same.
        poll_until(lambda: member.end(0) == 3, member)
        append(appender, topic, [b"5", b"6", b"7"])
        poll_until(lambda: member.end(0) == 6, member)
        assert member.end(5) is None
    assert member.end(0) is None


def test_members_share_the_partitions_and_none_is_ever_held_twice(subject: Subject) -> None:
    topic = subject.topic(partitions=4)
    told: list[tuple[str, str, int]] = []
    start = dict.fromkeys(range(4), 0)
    first, second = Listener(told, "first", start), Listener(told, "second", start)
    one = subject.log.group(topic, "sharers", first)
    poll_until(lambda: len(first.held) == 4, one)
    other = subject.log.group(topic, "sharers", second)
    poll_until(lambda: len(first.held) == len(second.held) == 2 and not first.held & second.held, one, other)
    one.close()
    assert first.held == set()
    poll_until(lambda: len(second.held) == 4, other)
    other.close()
    holders: dict[int, str | None] = dict.fromkeys(range(4))
    for did, name, partition in told:
        assert holders[partition] == (None if did == "assigned" else name), told
        holders[partition] = name if did == "assigned" else None
    assert set(holders.values()) == {None}


def test_a_new_owner_reads_on_while_the_group_lives(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"0", b"1", b"2"])
        with closing(subject.log.group(topic, "heirs", Listener([], "first", {0: 0}))) as member:
            assert values(read(member, 3)) == [b"0", b"1", b"2"]
        with closing(subject.log.group(topic, "heirs", Listener([], "second", {0: 2}))) as member:
            assert values(read(member, 1)) == [b"2"]
            append(appender, topic, [b"3"])
            assert values(read(member, 1)) == [b"3"]


def test_a_listener_may_take_its_time_and_use_the_log(subject: Subject) -> None:
    topic = subject.topic()
    found: list[tuple[int, int]] = []

    class Curious(Listener):
        def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
            found.append(member.bounds(0))
            with closing(subject.log.reader()) as reader:
                reader.seek(topic, 0, 0)
                assert values(read(reader, 1)) == [b"0"]
            append(appender, topic, [b"1"])
            return super().assigned(partitions)

    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"0"])
        with closing(subject.log.group(topic, "curious", Curious([], "only", {0: 1}))) as member:
            assert values(read(member, 1)) == [b"1"]
    assert found == [(0, 1)]


def test_what_a_listener_raises_comes_out_of_every_poll(subject: Subject) -> None:
    topic = subject.topic()

    class Broken(Listener):
        def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
            raise TopicError(f"the listener refuses {list(partitions)}")

    listener = Broken([], "broken", {})
    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"unread"])
    with closing(subject.log.group(topic, "broken", listener)) as member:
        for _ in range(2):
            with pytest.raises(TopicError, match=r"the listener refuses \[0\]"):
                read(member, 1)
    # What it never took on is not revoked either.
    assert listener.told == []


def test_what_a_listener_raises_while_it_gives_up_comes_out_of_close(subject: Subject) -> None:
    topic = subject.topic()

    class Stubborn(Listener):
        def revoked(self, partitions: Sequence[int]) -> None:
            raise TopicError(f"the listener keeps {list(partitions)}")

    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"0"])
    member = subject.log.group(topic, "stubborn", Stubborn([], "stubborn", {0: 0}))
    assert values(read(member, 1)) == [b"0"]
    with pytest.raises(TopicError, match=r"the listener keeps \[0\]"):
        member.close()
    # It has left all the same.
    with closing(subject.log.group(topic, "stubborn", Listener([], "next", {0: 0}))) as member:
        assert values(read(member, 1)) == [b"0"]


def test_reported_offsets_can_be_seen_and_decide_nothing(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"0", b"1", b"2"])
    with closing(subject.log.group(topic, "reporters", Listener([], "first", {0: 0}))) as member:
        read(member, 3)
        member.report({0: 3})
        deadline = time.monotonic() + SECONDS
        while subject.group_offsets(topic, "reporters") != {0: 3} and time.monotonic() < deadline:
            member.poll(0.05)
        assert subject.group_offsets(topic, "reporters") == {0: 3}
    with closing(subject.log.group(topic, "reporters", Listener([], "second", {0: 1}))) as member:
        assert values(read(member, 2)) == [b"1", b"2"]


def test_an_evicted_member_has_lost_its_partitions_and_joins_again(subject: Subject) -> None:
    topic = subject.topic()
    told: list[tuple[str, str, int]] = []
    listener = Listener(told, "only", {0: 0})
    with closing(subject.log.appender()) as appender:
        append(appender, topic, [b"0"])
    with closing(subject.log.group(topic, "evicted", listener)) as member:
        assert values(read(member, 1)) == [b"0"]
        subject.evict("evicted", member)
        poll_until(lambda: len(told) == 3, member)
    assert [did for did, _, _ in told] == ["assigned", "lost", "assigned", "revoked"]


def test_a_group_needs_its_topic(subject: Subject) -> None:
    with pytest.raises(TopicError, match="contract-never-created"):
        subject.log.group("contract-never-created", "nobody", Listener([], "nobody", {}))
