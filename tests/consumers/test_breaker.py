from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.breaker import Breaker
from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import BadStreamError, FatalError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import (
    DEAD_LETTERS,
    STREAM,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    append_garbage,
    append_tick,
    records,
    stored_episodes,
)

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket

LEAST_BAD, WINDOW = 64, 256


def tripped_at(breaker: Breaker, verdicts: str) -> int | None:
    """The place of the verdict at which it trips; "b" is a bad one. None where it never does."""
    for place, verdict in enumerate(verdicts):
        if verdict == "g":
            breaker.good()
            continue
        try:
            breaker.bad("partition 0, offset 7", "format: none")
        except BadStreamError:
            return place
    return None


@pytest.mark.parametrize(
    ("share", "verdicts", "place"),
    [
        (0.5, "b" * 1000, LEAST_BAD - 1),
        (0.5, "b" * (LEAST_BAD - 1) + "g" * 1000, None),
        (0.5, "gb" * 1000, None),
        (0.5, "bbg" * 1000, 94),
        (0.5, "g" * 10_000 + "b" * 1000, 10_000 + WINDOW // 2),
        (0.2, "gggb" * 1000, WINDOW - 1),
        (0.3, "gggb" * 1000, None),
        # What is long past does not count.
        (0.5, ("b" * 63 + "g" * WINDOW) * 20, None),
        (0.0, "b" * (LEAST_BAD - 1), None),
        (0.0, "b" * LEAST_BAD, LEAST_BAD - 1),
        (1.0, "b" * 10_000, None),
    ],
)
def test_it_trips_where_more_than_a_share_of_the_last_are_bad(share: float, verdicts: str, place: int | None) -> None:
    assert tripped_at(Breaker(share), verdicts) == place


def test_a_larger_share_never_trips_earlier() -> None:
    verdicts = ("g" * 50 + "b" * 40 + "gb" * 30 + "bbbbg" * 40) * 3
    places = [tripped_at(Breaker(share / 10), verdicts) for share in range(11)]
    laid = [len(verdicts) if place is None else place for place in places]
    assert all(one <= other for one, other in pairwise(laid))
    assert laid[0] < laid[-1]


def test_it_says_where_how_many_and_what_to_do() -> None:
    breaker = Breaker(0.5)
    breaker.good()
    for _ in range(LEAST_BAD - 1):
        breaker.bad("partition 3, offset 1233", "fingerprint: ab")
    with pytest.raises(BadStreamError) as caught:
        breaker.bad("partition 3, offset 1234", "fingerprint: abc")
    assert isinstance(caught.value, FatalError)
    told = str(caught.value)
    assert told.startswith("partition 3, offset 1234: 64 of the last 65 messages are not valid")
    assert "fingerprint: abc" in told
    assert "--max-bad-share 1" in told


@pytest.fixture
def log() -> MemoryLog:
    """Good messages, a run of bad ones within it, and good ones again."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    log.create(DEAD_LETTERS)
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2, Ends.TERMINATED))
    for _ in range(150):
        append_garbage(log)
    producer.send(Row(0, 0, 1, 3, 2, Ends.TERMINATED))
    for _ in range(10):
        append_garbage(log)
    producer.send(Row(0, 1, 0, 0, 4, Ends.TERMINATED))
    return log


def opened(log: MemoryLog, bucket: Bucket, breaker: Breaker | None) -> Partition:
    topic = log.describe(TOPIC)
    letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
    return Partition(ReplayStore(bucket, STREAM, topic), 0, letters, Limits(), breaker)


def run(partition: Partition, log: MemoryLog, *, until: int | None = None) -> None:
    for record in records(log)[partition.high_water : until]:
        partition.take(record)
    partition.commit()


def test_what_is_good_keeps_it_from_tripping() -> None:
    log = MemoryLog(clock=Clock())
    for topic in (TOPIC, DEAD_LETTERS):
        log.create(topic)
    for _ in range(2 * WINDOW):
        append_tick(log)
        append_garbage(log)
    bucket = open_bucket("memory://")
    run(opened(log, bucket, Breaker(0.5)), log)
    newest = commits.newest(bucket, 0)
    assert newest is not None
    assert newest.counters["messages_quarantined"] == 2 * WINDOW


def test_a_partition_that_trips_leaves_nothing_behind(log: MemoryLog) -> None:
    bucket = open_bucket("memory://")
    run(opened(log, bucket, Breaker(0.5)), log, until=40)
    found = commits.newest(bucket, 0)
    letters = records(log, topic=DEAD_LETTERS)
    with pytest.raises(BadStreamError):
        run(opened(log, bucket, Breaker(0.5)), log)
    assert commits.newest(bucket, 0) == found
    assert records(log, topic=DEAD_LETTERS) == letters


def test_a_partition_that_is_made_anew_stops_at_the_same_place(log: MemoryLog) -> None:
    bucket = open_bucket("memory://")
    told = set()
    for _ in range(3):
        with pytest.raises(BadStreamError) as caught:
            run(opened(log, bucket, Breaker(0.5)), log)
        told.add(str(caught.value))
    assert len(told) == 1


@pytest.mark.parametrize("committed", [2, 40, 65])
def test_whoever_goes_on_stores_the_same_as_if_nothing_had_been(log: MemoryLog, committed: int) -> None:
    plain, stopped = open_bucket("memory://"), open_bucket("memory://")
    run(opened(log, plain, None), log)
    run(opened(log, stopped, Breaker(0.5)), log, until=committed)
    with pytest.raises(BadStreamError):
        run(opened(log, stopped, Breaker(0.5)), log)
    # With a share of 1 it passes; and with code that finds fault with nothing it would as well.
    run(opened(log, stopped, Breaker(1.0)), log)
    assert stored_episodes(stopped) == stored_episodes(plain)
    one, other = (commits.newest(bucket, 0) for bucket in (stopped, plain))
    assert one is not None
    assert other is not None
    assert (one.counters, one.producers, one.high_water) == (other.counters, other.producers, other.high_water)
    assert one.counters["messages_quarantined"] == 160


def test_a_message_that_contradicts_its_producer_counts_as_bad(log: MemoryLog) -> None:
    """It is valid by itself; the judge turns it down."""
    producer = ScriptedProducer(log, "producer-1")
    producer.begin()
    producer.send(Row(0, 5, 0, 0, 3, Ends.TERMINATED))
    start = log.end(TOPIC, 0)
    for _ in range(LEAST_BAD + 1):
        producer.append(producer.encode(Row(0, 5, 0, 0, 3, Ends.TERMINATED)))
    bucket = open_bucket("memory://")
    run(opened(log, bucket, None), log, until=start)
    with pytest.raises(BadStreamError, match="does not follow the env's episode"):
        run(opened(log, bucket, Breaker(0.5)), log)
