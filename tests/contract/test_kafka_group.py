"""What only groups of a real Kafka meet: members that die, sleep or are thrown out, and a broker that is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove
from test_log_contract import Listener, append, poll_until, read, values

from deploy.local import leash
from penstock_schemas.errors import FatalError
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The shortest that a broker allows, unless it is told otherwise.
SESSION = 6.0
SECONDS = 60.0
MEMBER = Path(__file__).with_name("group_member.py")


class Process:
    """A member as a process, and the lines that it has told."""

    def __init__(self, out: Path, *arguments: str) -> None:
        self.out = out
        with out.open("wb") as log:
            self.process = leash.spawn([sys.executable, "-W", "ignore", str(MEMBER), *arguments], log)

    def told(self) -> list[list[str]]:
        """What it was told, without the times."""
        return [line.split()[1:] for line in self.out.read_text().splitlines() if line[:1].isdigit()]

    def wait_for(self, *words: str) -> None:
        deadline = time.monotonic() + SECONDS
        while list(words) not in self.told():
            assert time.monotonic() < deadline, f"no {words} in {self.out.read_text()}"
            assert self.process.poll() is None, self.out.read_text()
            time.sleep(0.02)


@contextmanager
def process(tmp_path: Path, name: str, *arguments: str) -> Iterator[Process]:
    member = Process(tmp_path / name, *arguments)
    try:
        yield member
    finally:
        leash.kill(member.process)


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    with KafkaLog(kafka_bootstrap, session_timeout=SESSION) as log:
        yield log


def test_who_is_thrown_out_amid_a_join_is_told_and_begins_anew(log: KafkaLog, kafka_bootstrap: str) -> None:
    """It learns it from its request to join, and not from a heartbeat, upon which kafka-python tells nobody."""
    topic, told = log.create("thrown-out", partitions=2).name, list[tuple[str, str, int]]()
    listener = Listener(told, "only", {0: 0, 1: 1})
    with (
        closing(log.appender()) as appender,
        KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin,
        closing(log.group(topic, "thrown-out", listener)) as member,
    ):
        append(appender, topic, [b"0"], 0)
        append(appender, topic, [b"1", b"2"], 1)
        assert sorted(values(read(member, 2))) == [b"0", b"2"]
        (found,) = admin.describe_groups(["thrown-out"])["thrown-out"]["members"]
        admin.remove_group_members("thrown-out", [MemberToRemove(member_id=found["member_id"])])
        member._coordinator.request_rejoin()
        # From where the listener says, once more.
        assert sorted(values(read(member, 2))) == [b"0", b"2"]
        append(appender, topic, [b"3"], 1)
        assert values(read(member, 1)) == [b"3"]
    kinds = [did for did, _, _ in told]
    assert kinds == ["assigned"] * 2 + ["lost"] * 2 + ["assigned"] * 2 + ["revoked"] * 2


def test_a_join_that_ends_between_two_polls_is_not_begun_anew(log: KafkaLog) -> None:
    """Else a group whose members have work to do would join again and again."""
    topic, told = log.create("between", partitions=4).name, list[tuple[str, str, int]]()
    first, second = (Listener(told, name, dict.fromkeys(range(4), 0)) for name in ("first", "second"))
    with closing(log.group(topic, "between", first)) as one, closing(log.group(topic, "between", second)) as other:
        poll_until(lambda: len(first.held) == 4, one)
        done = threading.Event()
        polling = threading.Thread(target=lambda: poll_until(done.is_set, other))
        polling.start()
        rounds = 0
        while len(first.held) != 2 or len(second.held) != 2:
            one.attend()
            # Its work, during which joins end.
            time.sleep(0.3)
            rounds += 1
            assert rounds < 40, told
        done.set()
        polling.join()
        generation = one._consumer.group_metadata().generation_id
    # First alone; then to give up; then to take over, and perhaps once more for a member's first request.
    assert generation <= 5


class Dying(Listener):
    """Stands still as it gives partitions up, until it is buried: what it would do next, it does not."""

    buried = threading.Event()

    def revoked(self, partitions: Sequence[int]) -> None:
        super().revoked(partitions)
        self.buried.wait()


def test_what_an_instance_gave_up_before_it_died_is_given_to_another(log: KafkaLog) -> None:
    """The broker gives an instance that comes back what it had, and has nobody share the rest."""
    topic, told = log.create("died", partitions=4).name, list[tuple[str, str, int]]()
    again, other = (Listener(told, name, dict.fromkeys(range(4), 0)) for name in ("again", "other"))
    first = Dying(told, "first", dict.fromkeys(range(4), 0))
    dying = log.group(topic, "died", first, instance="one")
    with closing(log.group(topic, "died", other, instance="other")) as second:
        poll_until(lambda: len(first.held) == 4, dying)

        def die() -> None:
            with suppress(FatalError):
                poll_until(first.buried.is_set, dying)

        dies = threading.Thread(target=die)
        dies.start()
        try:
            poll_until(lambda: len(first.held) == 2, second)
            with closing(log.group(topic, "died", again, instance="one")) as one:
                poll_until(lambda: (len(again.held), again.held | other.held) == (2, set(range(4))), one, second)
        finally:
            first.buried.set()
            dies.join()
            with suppress(FatalError):
                dying.close()


@pytest.mark.chaos
def test_a_killed_members_partitions_flow_again_within_the_session(
    log: KafkaLog, kafka_bootstrap: str, tmp_path: Path
) -> None:
    topic = log.create("killed", partitions=2).name
    arguments = kafka_bootstrap, topic, "killed", str(SESSION)
    with closing(log.appender()) as appender, process(tmp_path, "first", *arguments) as first:
        first.wait_for("assigned", "0", "1")
        with process(tmp_path, "second", *arguments) as second:
            second.wait_for("assigned", "1")
            append(appender, topic, [b"0"], 0)
            append(appender, topic, [b"0"], 1)
            first.wait_for("read", "0", "0")
            second.wait_for("read", "1", "0")
            os.killpg(first.process.pid, signal.SIGKILL)
            killed = time.monotonic()
            append(appender, topic, [b"1"], 0)
            second.wait_for("read", "0", "1")
            elapsed = time.monotonic() - killed
            # What it had stayed with it.
            assert [line for line in second.told() if line[0] in ("revoked", "lost")] == []
    print(f"\nflows again after {elapsed:.2f} s, with a session of {SESSION:g} s")  # noqa: T201  (the figure)
    assert elapsed < SESSION + 2


@pytest.mark.chaos
def test_a_member_that_slept_past_its_session_is_told_that_it_lost(
    log: KafkaLog, kafka_bootstrap: str, tmp_path: Path
) -> None:
    topic = log.create("asleep", partitions=1).name
    told: list[tuple[str, str, int]] = []
    heir = Listener(told, "heir", {0: 1})
    with (
        closing(log.appender()) as appender,
        process(tmp_path, "sleeper", kafka_bootstrap, topic, "asleep", str(SESSION)) as sleeper,
    ):
        append(appender, topic, [b"0"])
        sleeper.wait_for("read", "0", "0")
        os.kill(sleeper.process.pid, signal.SIGSTOP)
        with closing(log.group(topic, "asleep", heir)) as member:
            poll_until(lambda: heir.held == {0}, member)
            append(appender, topic, [b"1"])
            assert values(read(member, 1)) == [b"1"]
            os.kill(sleeper.process.pid, signal.SIGCONT)
            # One partition: it is the heir's now, and the sleeper gets none.
            while ["lost", "0"] not in sleeper.told():
                member.poll(0.1)
            append(appender, topic, [b"2"])
            assert values(read(member, 1)) == [b"2"]
            assert heir.held == {0}
    # What it had fetched, or could before it was told, it may have read: the store's fence is for that.
    kinds = [line[0] for line in sleeper.told()]
    assert (kinds[:2], kinds[-1], set(kinds[2:-1]) - {"read"}) == (["assigned", "read"], "lost", set())
