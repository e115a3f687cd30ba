"""What lies in quarantine, and that it is judged again once and in order."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition
from penstock_consumers.quarantine import reading
from penstock_consumers.quarantine.letter import Letter, Place
from penstock_consumers.quarantine.retry import Outcome, Source, retry
from penstock_consumers.store import manifest
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.verify import verify
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import LogUnavailableError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Encoded, encode_tick
from tests.consumers.messages import (
    DEAD_LETTERS,
    STREAM,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    append,
    append_garbage,
    append_tick,
    records,
    stored_episodes,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock_consumers.store.bucket import Bucket

MAX_BYTES = 20_000
# Small enough that a message of two rows is over it, large enough for one of one row.
SMALL = Limits(max_message_bytes=5_500)
LARGE = Limits()


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(clock=Clock(), max_message_bytes=MAX_BYTES)
    log.create(TOPIC)
    log.create(DEAD_LETTERS)
    return log


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


def consume(log: MemoryLog, bucket: Bucket, limits: Limits = LARGE) -> Partition:
    """Judge and commit all that the log holds."""
    topic = log.describe(TOPIC)
    letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
    partition = Partition(ReplayStore(bucket, STREAM, topic), 0, letters, limits)
    for record in records(log)[partition.high_water :]:
        partition.take(record)
    partition.commit()
    return partition


def letters(log: MemoryLog) -> list[Letter]:
    return list(reading.read(log, DEAD_LETTERS, log.describe(TOPIC).topic_id).letters.values())


def retried(
    log: MemoryLog, bucket: Bucket, chosen: Collection[int] | None = None, *, dry: bool = False
) -> list[Outcome]:
    """Retry the quarantined records of these offsets, or all."""
    found = manifest.load(bucket)
    source = Source(log, TOPIC, DEAD_LETTERS, bucket, found.spec if found else None)
    known = letters(log)
    places = {letter.place for letter in known if chosen is None or letter.place.offset in chosen}
    return list(retry(source, known, places, dry=dry))


def names(bucket: Bucket) -> list[tuple[str, int, int, int]]:
    """Producer, env, episode and length of every episode that is stored."""
    return [(one["producer"], one["env"], one["episode"], one["length"]) for one in stored_episodes(bucket)]


def whole(env: int, episode: int, steps: int = 3) -> Row:
    return Row(env, episode, 0, 0, steps, Ends.TERMINATED)


def produced(log: MemoryLog) -> ScriptedProducer:
    """Two messages that small limits quarantine, at the offsets 2 and 3, between two that they do not."""
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(whole(0, 0))
    producer.send(whole(0, 1), Row(1, 0, 0, 0, 60))
    producer.send(whole(0, 2), Row(1, 0, 1, 60, 60, Ends.TRUNCATED))
    producer.send(whole(0, 3))
    return producer


RECOVERED = "producer-0~0"
MISSED = [("producer-0", 0, 0, 3), ("producer-0", 0, 3, 3)]
ALL = [*MISSED, (RECOVERED, 0, 1, 3), (RECOVERED, 0, 2, 3), (RECOVERED, 1, 0, 120)]


def test_what_lies_there_is_told_by_place(log: MemoryLog, bucket: Bucket) -> None:
    append_garbage(log)
    produced(log)
    consume(log, bucket, SMALL)
    first, second, third = found = letters(log)
    assert [(letter.place, letter.reason) for letter in found] == [
        (Place(0, 0), "headers"),
        (Place(0, 3), "oversized"),
        (Place(0, 4), "oversized"),
    ]
    assert (first.headers, first.bytes, first.sha256) == ((), len(b"garbage"), None)
    assert second.headers == records(log)[3].headers
    assert second.detail.startswith("oversized: ")
    with closing(reading.Payloads(log, DEAD_LETTERS)) as payloads:
        assert [payloads.of(letter) for letter in (second, first, third)] == [
            records(log)[offset].value for offset in (3, 0, 4)
        ]


def test_repetitions_are_folded_and_what_is_of_another_topic_is_counted(log: MemoryLog, bucket: Bucket) -> None:
    append_garbage(log)
    consume(log, bucket)
    consume(log, open_bucket("memory://"))
    append(log, Encoded(b"x", ()), "no letter", topic=DEAD_LETTERS)
    record = records(log, topic=DEAD_LETTERS)[0]
    log.append(DEAD_LETTERS, 0, b"another:0:7", record.value, record.headers)
    log.append(DEAD_LETTERS, 0, b"%s:0:x" % (record.key or b"")[:-2], record.value, record.headers)
    found = reading.read(log, DEAD_LETTERS, log.describe(TOPIC).topic_id)
    assert (list(found.letters), found.repetitions, found.foreign) == ([Place(0, 0)], 1, 3)
    assert found.letters[Place(0, 0)].at == 1


def test_null_headers_come_back_null(log: MemoryLog, bucket: Bucket) -> None:
    headers = (*encode_tick().headers, ("empty", b""), ("null", None))
    log.append(TOPIC, 0, b"k", None, headers)
    consume(log, bucket)
    (letter,) = letters(log)
    assert letter.headers == headers


def test_quarantined_messages_are_recovered_once_their_limit_is_raised(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    partition = consume(log, bucket, SMALL)
    assert partition.counters["messages_quarantined"] == 2
    assert names(bucket) == MISSED
    assert [(outcome.offset, outcome.refused) for outcome in retried(log, bucket)] == [(5, None), (6, None)]
    partition = consume(log, bucket)
    # The episode that began in the one and ended in the other is whole.
    assert names(bucket) == ALL
    assert partition.counters["rows_orphan"] == 0
    assert verify(bucket, log, TOPIC).ok


def test_the_producer_itself_goes_on_as_if_nothing_had_been(log: MemoryLog, bucket: Bucket) -> None:
    producer = produced(log)
    producer.send(Row(2, 0, 0, 0, 4))
    consume(log, bucket, SMALL)
    retried(log, bucket)
    producer.send(Row(2, 0, 1, 4, 4, Ends.TERMINATED))
    partition = consume(log, bucket)
    assert names(bucket) == sorted([*ALL, ("producer-0", 2, 0, 8)])
    assert partition.open_episodes == 0


def test_what_the_producer_sent_meanwhile_is_no_copy_of_it(log: MemoryLog, bucket: Bucket) -> None:
    producer = produced(log)
    consume(log, bucket, SMALL)
    producer.send(whole(5, 0))
    assert [outcome.offset for outcome in retried(log, bucket)] == [6, 7]
    consume(log, bucket)
    assert names(bucket) == sorted([*ALL, ("producer-0", 5, 0, 3)])


def test_an_episode_of_the_same_numbers_that_ended_before_is_no_copy_of_it(log: MemoryLog, bucket: Bucket) -> None:
    """What was quarantined went on with an episode: its first part is stored, and not this one."""
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(1, 0, 0, 0, 5))
    producer.send(Row(1, 0, 1, 5, 60), Row(2, 0, 0, 0, 60))
    consume(log, bucket, SMALL)
    assert [outcome.offset for outcome in retried(log, bucket)] == [3]
    producer.send(whole(3, 0))
    consume(log, bucket)
    (open_one,) = [letter for letter in letters(log) if letter.place.offset == 2]
    assert open_one.reason == "oversized"
    assert names(bucket) == [("producer-0", 1, 0, 5), ("producer-0", 3, 0, 3)]
    assert [outcome.refused for outcome in retried(log, bucket)] == ["its rows are in the store already"]


def test_a_second_retry_is_refused_whether_the_first_is_judged_or_not(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    consume(log, bucket, SMALL)
    retried(log, bucket)
    assert {outcome.refused for outcome in retried(log, bucket)} == {
        "a copy of it waits for its commit: look again then"
    }
    consume(log, bucket)
    assert {outcome.refused for outcome in retried(log, bucket)} == {"its rows are in the store already"}
    consume(log, bucket)
    assert names(bucket) == ALL


def test_two_that_retry_at_the_same_time_store_it_once(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    consume(log, bucket, SMALL)
    retried(log, bucket)
    copies = records(log)[5:]
    for copy in copies:
        log.append(TOPIC, 0, copy.key, copy.value, copy.headers)
    partition = consume(log, bucket)
    assert partition.counters["messages_duplicate"] == 2
    assert names(bucket) == ALL


def test_the_earlier_ones_of_an_incarnation_go_with_it(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    consume(log, bucket, SMALL)
    assert [outcome.letter.place.offset for outcome in retried(log, bucket, [3])] == [2, 3]
    consume(log, bucket)
    assert names(bucket) == ALL


def test_a_later_one_can_follow_at_another_time(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    consume(log, bucket, SMALL)
    assert [outcome.letter.place.offset for outcome in retried(log, bucket, [2])] == [2]
    consume(log, bucket)
    assert [outcome.offset is not None for outcome in retried(log, bucket)] == [False, True]
    consume(log, bucket)
    assert names(bucket) == ALL


def test_rows_that_go_on_with_what_is_lost_are_orphans(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(1, 0, 0, 0, 5))
    producer.send(whole(0, 0), Row(1, 0, 1, 5, 60, Ends.TRUNCATED))
    producer.send(whole(0, 1))
    consume(log, bucket, SMALL)
    retried(log, bucket)
    partition = consume(log, bucket)
    # The gap that its quarantine was has ended the episode that it goes on with.
    assert names(bucket) == [("producer-0", 0, 1, 3), ("producer-0", 1, 0, 5), (RECOVERED, 0, 0, 3)]
    assert (partition.counters["rows_orphan"], partition.counters["steps_orphan"]) == (1, 60)
    assert verify(bucket, log, TOPIC).ok


def test_what_is_still_not_valid_is_left_where_it_is(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    encoded = producer.encode(whole(0, 0))
    producer.append(Encoded((encoded.value or b"")[:-9], encoded.headers))
    consume(log, bucket)
    (outcome,) = retried(log, bucket)
    assert outcome.offset is None
    assert (outcome.refused or "").startswith("it is still not valid: truncated: ")
    assert len(records(log)) == 2


def test_what_no_commit_has_judged_is_left_where_it_is(log: MemoryLog, bucket: Bucket) -> None:
    """A consumer that died between its letters and its commit has judged nothing: who comes next may take them."""
    produced(log)
    topic = log.describe(TOPIC)
    dead_letters = DeadLetters(log.appender(), DEAD_LETTERS, topic.topic_id)
    partition = Partition(ReplayStore(bucket, STREAM, topic), 0, dead_letters, SMALL)
    for record in records(log):
        partition.take(record)
    dead_letters.flush()
    for limits in (LARGE, LARGE):
        assert {outcome.offset for outcome in retried(log, bucket)} == {None}
        consume(log, bucket, limits)
    stored = [("producer-0", env, episode, steps) for _, env, episode, steps in ALL]
    assert names(bucket) == sorted(stored)
    assert {outcome.refused for outcome in retried(log, bucket)} == {"its rows are in the store already"}


@pytest.mark.parametrize(
    "rows",
    [
        (whole(0, 0, 60), whole(1, 0, 60)),
        (Row(0, 0, 0, 0, 60), Row(1, 0, 0, 0, 60)),
        (whole(0, 0, 1), Row(1, 0, 0, 0, 90)),
    ],
    ids=["ended", "open", "both"],
)
def test_a_message_of_which_another_copy_was_taken_is_left_where_it_is(
    log: MemoryLog, bucket: Bucket, rows: tuple[Row, ...]
) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    message = producer.encode(*rows)
    producer.append(message)
    consume(log, bucket, SMALL)
    producer.append(message)
    assert [outcome.refused for outcome in retried(log, bucket)] == [
        "a copy of it waits for its commit: look again then"
    ]
    consume(log, bucket)
    assert [outcome.refused for outcome in retried(log, bucket)] == ["its rows are in the store already"]


def test_what_was_quarantined_again_is_still_the_message_that_it_was(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    consume(log, bucket, SMALL)
    retried(log, bucket)
    # The consumer's limit was not raised after all.
    consume(log, bucket, SMALL)
    assert [letter.place.offset for letter in letters(log)] == [2, 3, 5, 6]
    appended = [outcome for outcome in retried(log, bucket) if outcome.offset is not None]
    assert [outcome.letter.place.offset for outcome in appended] == [2, 3]
    consume(log, bucket)
    assert names(bucket) == ALL


def test_an_end_record_ends_what_was_recovered(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(whole(0, 0), Row(1, 0, 0, 0, 60))
    producer.end("preempted")
    consume(log, bucket, Limits(max_message_bytes=10))
    retried(log, bucket)
    assert consume(log, bucket).open_episodes == 0
    assert [(one["env"], one["abort_reason"]) for one in stored_episodes(bucket)] == [(0, None), (1, "preempted")]


def test_what_stays_open_ends_by_idleness(log: MemoryLog, bucket: Bucket) -> None:
    clock = Clock()
    log._clock = clock
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(whole(0, 0), Row(1, 0, 0, 0, 60))
    consume(log, bucket, SMALL)
    retried(log, bucket)
    assert consume(log, bucket).open_episodes == 1
    for _ in range(5):
        clock.advance(LARGE.idle_limit_ms / 4000)
        append_tick(log)
    assert consume(log, bucket).open_episodes == 0
    assert stored_episodes(bucket)[-1]["abort_reason"] == "idle"


def test_a_dry_run_tells_and_appends_nothing(log: MemoryLog, bucket: Bucket) -> None:
    produced(log)
    consume(log, bucket, SMALL)
    before = records(log)
    assert [(outcome.offset, outcome.refused) for outcome in retried(log, bucket, dry=True)] == [(None, None)] * 2
    assert records(log) == before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": b"begin"}, "a begin record: the messages of its incarnation are judged without it"),
        ({"kind": b"tick", "again": None}, "its header 'again' is null, which no message may have"),
        ({"penstock": b"7"}, "it is of no format that this Penstock knows: b'7'"),
        ({"kind": b"nonsense"}, "a record of kind b'nonsense': only messages of producers are judged again"),
        ({"sequence": b"x"}, "its headers do not say which message of which producer it is"),
        ({"producer": b"\xff"}, "its headers do not say which message of which producer it is"),
        ({"incarnation": b"9"}, "its incarnation 9 is not below its offset 1"),
        ({"producer": b"p" * 249}, "the name '" + "p" * 249 + "~0' would be longer than the 249 characters"),
    ],
    ids=["begin", "null", "format", "kind", "sequence", "producer", "incarnation", "long"],
)
def test_what_cannot_be_retried_says_why(
    log: MemoryLog, bucket: Bucket, changes: dict[str, bytes | None], told: str
) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    encoded = producer.encode(whole(0, 0), Row(1, 0, 0, 0, 60))
    log.append(TOPIC, 0, b"k", encoded.value, tuple((dict(encoded.headers) | changes).items()))
    consume(log, bucket, SMALL)
    (outcome,) = retried(log, bucket)
    assert outcome.offset is None
    assert (outcome.refused or "").startswith(told)
    assert len(records(log)) == 2


def test_of_a_digest_nothing_can_be_retried(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    encoded = producer.encode(whole(0, 0), Row(1, 0, 0, 0, 60))
    producer.append(encoded)
    log.max_message_bytes = records(log)[1].size + 10
    consume(log, bucket, SMALL)
    (letter,) = letters(log)
    # Whose message it was can still be told.
    assert (letter.headers, letter.bytes) == (encoded.headers, records(log)[1].size)
    (outcome,) = retried(log, bucket)
    assert outcome.refused == "its payload was too large for the dead-letter topic: only a digest of it was kept"


def test_a_retry_that_the_log_breaks_off_is_done_again_without_repeating(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_POLL_SECONDS", 0.01)
    produced(log)
    consume(log, bucket, SMALL)
    found = manifest.load(bucket)
    assert found is not None
    source = Source(log, TOPIC, DEAD_LETTERS, bucket, found.spec)
    known = letters(log)
    outcomes = retry(source, known, {letter.place for letter in known})
    assert next(outcomes).offset == 5
    log.outage = True
    with pytest.raises(LogUnavailableError, match=r"no answer for offset \d+ within 0\.3 s; try again"):
        next(outcomes)
    log.outage = False
    consume(log, bucket)
    retried(log, bucket)
    consume(log, bucket)
    assert names(bucket) == ALL


def test_a_store_that_took_no_message_yet(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(whole(0, 0), Row(1, 0, 0, 0, 60))
    consume(log, bucket, Limits(max_message_bytes=10))
    assert manifest.load(bucket) is None
    begin, message = retried(log, bucket)
    assert begin.refused
    assert message.offset == 2
    consume(log, bucket)
    assert names(bucket) == [(RECOVERED, 0, 0, 3)]


def test_what_another_copy_brought_long_before_is_known(log: MemoryLog, bucket: Bucket) -> None:
    producer = ScriptedProducer(log)
    producer.begin()
    twice = producer.encode(whole(0, 0, 60), whole(1, 0, 60))
    producer.append(twice)
    consume(log, bucket)
    producer.append(twice)
    consume(log, bucket, SMALL)
    assert [outcome.refused for outcome in retried(log, bucket)] == ["its rows are in the store already"]
    consume(log, bucket)
    assert names(bucket) == [("producer-0", 0, 0, 60), ("producer-0", 1, 0, 60)]
