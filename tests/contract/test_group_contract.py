"""How partitions move between the members of a group, over the log in memory and over a real Kafka."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from test_log_contract import SECONDS, Listener, append, poll_until, read, values

from penstock_schemas.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Subject

    from penstock_schemas.log import Record

Told = list[tuple[str, str, int]]
PARTITIONS = 6


def start(partitions: int = PARTITIONS) -> dict[int, int]:
    return dict.fromkeys(range(partitions), 0)


def held_evenly(*listeners: Listener) -> bool:
    held = [partition for listener in listeners for partition in listener.held]
    each, extra = divmod(PARTITIONS, len(listeners))
    sizes = [each] * (len(listeners) - extra) + [each + 1] * extra
    return sorted(held) == list(range(PARTITIONS)) and sorted(len(listener.held) for listener in listeners) == sizes


def owners(told: Told) -> dict[int, list[str]]:
    """Who has held each partition, in order; fails where it was held twice, or given up for nobody else."""
    held: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    free = dict.fromkeys(held, True)
    for did, name, partition in told:
        assert free[partition] == (did == "assigned"), told
        free[partition] = did != "assigned"
        if did == "assigned":
            assert held[partition][-1:] != [name], f"{partition} was taken from {name} and given back: {told}"
            held[partition].append(name)
        else:
            assert held[partition][-1] == name, told
    return held


def test_only_what_moves_is_revoked(subject: Subject) -> None:
    topic, told = subject.topic(PARTITIONS), Told()
    first, second, third = (Listener(told, name, start()) for name in ("first", "second", "third"))
    with ExitStack() as members:
        one = members.enter_context(closing(subject.log.group(topic, "movers", first)))
        poll_until(lambda: held_evenly(first), one)
        two = members.enter_context(closing(subject.log.group(topic, "movers", second)))
        poll_until(lambda: held_evenly(first, second), one, two)
        assert sum(did == "revoked" for did, _, _ in told) == 3
        three = members.enter_context(closing(subject.log.group(topic, "movers", third)))
        poll_until(lambda: held_evenly(first, second, third), one, two, three)
        assert sum(did == "revoked" for did, _, _ in told) == 5
        kept = set(first.held), set(third.held)
        two.close()
        poll_until(lambda: held_evenly(first, third), one, three)
        assert (first.held >= kept[0], third.held >= kept[1]) == (True, True)
        assert sum(did == "revoked" for did, _, _ in told) == 7
    assert all(1 <= len(names) <= 3 for names in owners(told).values())


def test_what_stays_goes_on_behind_a_long_revocation(subject: Subject) -> None:
    topic, told = subject.topic(PARTITIONS), Told()
    entered, released = threading.Event(), threading.Event()

    class Slow(Listener):
        def revoked(self, partitions: Sequence[int]) -> None:
            entered.set()
            assert released.wait(SECONDS)
            super().revoked(partitions)

    first, second = Slow(told, "first", start()), Listener(told, "second", start())
    one, other = subject.log.group(topic, "slow", first), subject.log.group(topic, "slow", second)
    records: list[Record] = []

    def appended(value: bytes) -> None:
        for partition in range(PARTITIONS):
            append(appender, topic, [value], partition)

    def stayed() -> list[tuple[int, bytes | None]]:
        return [(record.partition, record.value) for record in records if record.partition in first.held]

    with closing(subject.log.appender()) as appender:
        poll_until(lambda: held_evenly(first), one)
        appended(b"before")
        records += read(one, PARTITIONS)

        def hold_up() -> None:
            assert entered.wait(SECONDS)
            # Nobody has what is being given up.
            assert (len(first.held), second.held) == (PARTITIONS, set())
            appended(b"meanwhile")
            released.set()

        thread = threading.Thread(target=hold_up)
        thread.start()
        done = threading.Event()
        joining = threading.Thread(target=lambda: poll_until(done.is_set, other))
        joining.start()
        while len(first.held) == PARTITIONS or len(stayed()) < PARTITIONS:
            records += one.poll(0.1)
        done.set()
        thread.join()
        joining.join()
    assert len(first.held) == PARTITIONS // 2
    assert sorted(stayed()) == sorted((p, value) for p in first.held for value in (b"before", b"meanwhile"))
    other.close()
    one.close()
    owners(told)


def test_reading_goes_on_while_the_group_waits_for_a_member(subject: Subject) -> None:
    """One that is busy, and does not poll, holds up a third that comes, and not the one that reads."""
    topic, told = subject.topic(PARTITIONS), Told()
    first, busy, third = (Listener(told, name, start()) for name in ("first", "busy", "third"))
    with ExitStack() as stack:
        appender = stack.enter_context(closing(subject.log.appender()))
        one, two, three = (
            stack.enter_context(closing(subject.log.group(topic, "busy", listener)))
            for listener in (first, busy, third)
        )
        poll_until(lambda: held_evenly(first, busy), one, two)
        mine = min(first.held)
        done = threading.Event()
        joining = threading.Thread(target=lambda: poll_until(done.is_set, three))
        joining.start()
        # Longer than a heartbeat, by which the one that reads learns that it is to join again.
        for number in range(15):
            append(appender, topic, [b"%d" % number], mine)
            assert values(read(one, 1)) == [b"%d" % number]
            done.wait(0.1)
        done.set()
        joining.join()


def test_an_instance_that_comes_back_moves_nothing(subject: Subject) -> None:
    topic, told = subject.topic(PARTITIONS), Told()
    first, other = Listener(told, "first", start()), Listener(told, "other", start())
    again = Listener(told, "again", start())
    one = subject.log.group(topic, "static", first, instance="pod-0")
    two = subject.log.group(topic, "static", other, instance="pod-1")
    poll_until(lambda: held_evenly(first, other), one, two)
    was = set(first.held)
    one.close()
    # What it read was to be committed, but nobody else gets it.
    assert first.held == set()
    for _ in range(5):
        two.poll(0.05)
    assert other.held == set(range(PARTITIONS)) - was
    before = [what for what in told if what[1] == "other"]
    one = subject.log.group(topic, "static", again, instance="pod-0")
    poll_until(lambda: again.held == was, one, two)
    assert [what for what in told if what[1] == "other"] == before
    one.close()
    two.close()
    owners(told)


def test_a_second_member_of_one_name_puts_the_first_out(subject: Subject) -> None:
    topic, told = subject.topic(PARTITIONS), Told()
    first, second = Listener(told, "first", start()), Listener(told, "second", start())
    one = subject.log.group(topic, "twins", first, instance="pod-0")
    poll_until(lambda: held_evenly(first), one)
    other = subject.log.group(topic, "twins", second, instance="pod-0")
    joining = threading.Thread(target=lambda: poll_until(lambda: held_evenly(second), other))
    joining.start()
    with pytest.raises(FatalError, match=r"another member has joined as instance 'pod-0'.*a name of its own"):
        read(one, 1)
    with pytest.raises(FatalError, match="another member has joined"):
        one.attend()
    joining.join()
    assert held_evenly(second)
    other.close()


def test_who_attends_takes_part_and_reads_nothing(subject: Subject) -> None:
    topic, told = subject.topic(PARTITIONS), Told()
    first, second = Listener(told, "first", start()), Listener(told, "second", start())
    with (
        closing(subject.log.appender()) as appender,
        closing(subject.log.group(topic, "busy", first)) as one,
        closing(subject.log.group(topic, "busy", second)) as other,
    ):
        poll_until(lambda: held_evenly(first), one)
        done = threading.Event()
        joining = threading.Thread(target=lambda: poll_until(done.is_set, other))
        joining.start()
        for partition in range(PARTITIONS):
            append(appender, topic, [b"kept"], partition)
        while not held_evenly(first, second):
            one.attend()
        assert values(read(one, 3)) == [b"kept"] * 3
        done.set()
        joining.join()
