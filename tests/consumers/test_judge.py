from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock_consumers.judge import Judge, Verdicts
from penstock_consumers.store.commits import Limits
from penstock_schemas.chunks import Ends, check
from penstock_schemas.errors import RejectedError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import decode, encode_begin, encode_end
from tests.consumers.messages import (
    SPEC,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    append,
    append_garbage,
    append_tick,
    records,
    rows_to_batch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_schemas.log import Record

IDLE_MS = 1_000
LIMITS = Limits(idle_limit_ms=IDLE_MS)
HEAD = Row(0, 0, 0, 0, 3)
TAIL = Row(0, 0, 1, 3, 2, Ends.TERMINATED)
NEXT = Row(0, 1, 0, 0, 4, Ends.TRUNCATED)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> MemoryLog:
    log = MemoryLog(clock=clock)
    log.create(TOPIC)
    return log


@pytest.fixture
def producer(log: MemoryLog) -> ScriptedProducer:
    producer = ScriptedProducer(log)
    producer.begin()
    return producer


class Judged:
    """All of a log, judged."""

    def __init__(self, log: MemoryLog, limits: Limits = LIMITS) -> None:
        self.judge = Judge(limits)
        self.verdicts = Verdicts()
        self.rejected: dict[int, str] = {}
        for record in records(log):
            self._take(record)

    def _take(self, record: Record) -> None:
        try:
            self.judge.judge(record, decode(record, SPEC), self.verdicts)
        except RejectedError as rejected:
            self.judge.reject(record, self.verdicts)
            self.rejected[record.offset] = rejected.reason

    @property
    def aborts(self) -> list[tuple[str, int]]:
        """Reasons, and how many episodes each record's abort ended."""
        return [(abort.reason, len(abort.uid)) for abort in self.verdicts.aborted]

    @property
    def accepted(self) -> list[tuple[int, list[int]]]:
        """The offsets of messages with accepted rows, and their rows' episode numbers."""
        return [(a.offset, a.rows.episode.tolist()) for a in self.verdicts.accepted if len(a.rows)]

    def counted(self, *names: str) -> tuple[int, ...]:
        return tuple(self.judge.counters[name] for name in names)


def send_all(producer: ScriptedProducer, rows: Sequence[Row]) -> None:
    for row in rows:
        producer.send(row)


def test_rows_in_sequence_are_accepted(log: MemoryLog, producer: ScriptedProducer) -> None:
    send_all(producer, [HEAD, TAIL, NEXT])
    judged = Judged(log)
    assert judged.accepted == [(1, [0]), (2, [0]), (3, [1])]
    first, second, third = (accepted.uid[0] for accepted in judged.verdicts.accepted)
    assert first == second != third
    assert judged.judge.open_episodes == 0
    assert judged.counted("messages_read", "messages_valid", "messages_begin", "messages_chunks") == (4, 4, 1, 3)
    assert judged.counted("rows_read", "steps_read") == (3, 9)


def test_an_incarnation_is_the_offset_of_its_begin_record(log: MemoryLog) -> None:
    append_tick(log)
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(HEAD)
    judged = Judged(log)
    assert judged.judge.entries()["producer-0"].incarnation == 1
    assert judged.verdicts.accepted[0].incarnation == 1


def test_a_lower_sequence_is_a_duplicate(log: MemoryLog, producer: ScriptedProducer) -> None:
    first = producer.encode(HEAD)
    send_all(producer, [HEAD, TAIL])
    producer.append(first)
    producer.send(NEXT)
    judged = Judged(log)
    assert judged.accepted == [(1, [0]), (2, [0]), (4, [1])]
    assert judged.counted("messages_duplicate", "rows_duplicate", "steps_duplicate") == (1, 1, 3)
    assert judged.aborts == []


def test_a_gap_aborts_what_is_open_and_heals(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD, Row(1, 0, 0, 0, 2))
    producer.skip()
    producer.skip()
    producer.send(Row(0, 1, 0, 0, 1))
    producer.send(Row(0, 1, 1, 1, 1, Ends.TERMINATED))
    judged = Judged(log)
    assert judged.aborts == [("gap", 2)]
    assert judged.verdicts.aborted[0].offset == 2
    assert judged.accepted == [(1, [0, 0]), (2, [1]), (3, [1])]
    assert judged.counted("gaps", "messages_missing") == (1, 2)


def test_rows_that_continue_what_is_not_open_are_orphans(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    producer.skip()
    producer.send(Row(0, 0, 2, 5, 2), Row(0, 0, 3, 7, 1, Ends.TERMINATED), NEXT, Row(2, 4, 6, 9, 4))
    producer.send(Row(2, 4, 7, 13, 1), Row(3, 0, 0, 0, 1))
    judged = Judged(log)
    assert judged.accepted == [(1, [0]), (2, [1]), (3, [0])]
    assert judged.counted("rows_orphan", "steps_orphan", "rows_read") == (4, 8, 7)


def test_a_message_of_nothing_but_orphans_is_judged(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.skip()
    producer.send(TAIL)
    judged = Judged(log)
    assert judged.accepted == []
    assert judged.counted("messages_valid", "rows_orphan") == (2, 1)


def test_an_older_incarnation_is_superseded(log: MemoryLog, producer: ScriptedProducer) -> None:
    zombie, later = producer.encode(HEAD), producer.encode(HEAD, sequence=7)
    producer.begin()
    producer.append(zombie)
    producer.send(HEAD)
    # That its rows contradict what the newest incarnation says is no fault of theirs.
    producer.append(later)
    judged = Judged(log)
    assert (judged.accepted, judged.rejected) == ([(3, [0])], {})
    assert judged.verdicts.accepted[0].incarnation == 1
    assert judged.counted("messages_superseded", "rows_superseded", "steps_superseded") == (2, 2, 6)
    assert judged.aborts == []


def test_a_begin_aborts_the_incarnation_before_it_and_no_other_producer(
    log: MemoryLog, producer: ScriptedProducer
) -> None:
    other = ScriptedProducer(log, "producer-1")
    other.begin()
    producer.send(HEAD)
    other.send(HEAD)
    producer.begin()
    judged = Judged(log)
    assert judged.aborts == [("restarted", 1)]
    assert judged.verdicts.aborted[0].uid == judged.verdicts.accepted[0].uid[0]
    assert judged.judge.open_episodes == 1


def test_an_incarnation_whose_begin_was_not_read_speaks_for_itself(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    producer.incarnation, producer.sequence = append_garbage(log).offset, 0
    producer.send(NEXT)
    judged = Judged(log)
    assert judged.aborts == [("restarted", 1)]
    assert judged.accepted == [(1, [0]), (3, [1])]


def test_a_begin_record_that_is_sent_again_begins_nothing(log: MemoryLog) -> None:
    """Its first acknowledgement was lost, and one copy came last; the producer's messages tell which it goes by."""
    producer = ScriptedProducer(log)
    begin = encode_begin(SPEC, producer.name, "once")
    producer.append(begin)
    producer.incarnation = producer.append(begin).offset
    producer.send(HEAD)
    producer.append(begin)
    producer.send(TAIL)
    judged = Judged(log)
    assert (judged.accepted, judged.aborts) == ([(2, [0]), (4, [0])], [])
    assert judged.counted("begins_repeated", "messages_superseded") == (2, 0)


def test_an_end_aborts_with_its_own_reason(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD, Row(1, 0, 0, 0, 2))
    producer.end("preempted")
    judged = Judged(log)
    assert judged.aborts == [("preempted", 2)]
    assert judged.counted("messages_end", "gaps") == (1, 0)


def test_an_end_after_a_gap_tells_the_gap(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    producer.skip()
    producer.end("preempted")
    assert Judged(log).aborts == [("gap", 1)]


def test_an_end_of_an_older_incarnation_ends_nothing(log: MemoryLog, producer: ScriptedProducer) -> None:
    older, sequence = producer.incarnation, producer.sequence + 7
    producer.begin()
    producer.send(HEAD)
    now, producer.incarnation, producer.sequence = producer.incarnation, older, sequence
    producer.end()
    assert now != older
    judged = Judged(log)
    assert (judged.aborts, judged.judge.open_episodes) == ([], 1)


def test_an_end_that_comes_twice_ends_once(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    producer.end()
    producer.sequence -= 1
    producer.end()
    assert Judged(log).aborts == [("stopped", 1)]
    producer.send(Row(0, 1, 0, 0, 4))
    producer.sequence -= 2
    producer.end()
    assert Judged(log).aborts == [("stopped", 1)]


def test_idle_episodes_end_in_log_time(log: MemoryLog, clock: Clock, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    other = ScriptedProducer(log, "producer-1")
    other.begin()
    other.send(HEAD)
    for _ in range(4):
        clock.advance(0.25)
        other.send(Row(1, other.sequence, 0, 0, 1, Ends.TERMINATED))
    judged = Judged(log)
    # Who spoke is not idle, though its open episode stood still.
    assert judged.aborts == [("idle", 1)]
    assert judged.verdicts.aborted[0].uid == judged.verdicts.accepted[0].uid[0]
    assert judged.verdicts.aborted[0].offset == records(log)[-1].offset


def test_idle_episodes_stay_open_below_the_limit(log: MemoryLog, clock: Clock, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    for step in (0.25, 0.25, 0.25, 0.249):
        clock.advance(step)
        append_tick(log)
    assert Judged(log).aborts == []
    clock.advance(0.001)
    append_tick(log)
    assert Judged(log).aborts == [("idle", 1)]


def test_each_producer_is_idle_by_itself(log: MemoryLog, clock: Clock, producer: ScriptedProducer) -> None:
    other = ScriptedProducer(log, "producer-1")
    other.begin()
    for sends in (producer, None, other, None, None, None):
        clock.advance(0.25)
        if sends:
            sends.send(HEAD)
        else:
            append_tick(log)
    judged = Judged(log)
    (abort,) = judged.verdicts.aborted
    assert (abort.reason, abort.offset, abort.timestamp_ms) == ("idle", 6, 1_001_250)
    assert judged.judge.open_episodes == 1


def test_a_duplicate_is_a_sign_of_life_and_a_superseded_message_is_none(
    log: MemoryLog, clock: Clock, producer: ScriptedProducer
) -> None:
    zombie = producer.encode(HEAD)
    producer.begin()
    again = producer.encode(HEAD)
    producer.send(HEAD)
    for sent in (again, zombie, zombie, zombie):
        clock.advance(0.25)
        producer.append(sent)
    assert Judged(log).aborts == []
    clock.advance(0.25)
    producer.append(zombie)
    assert Judged(log).aborts == [("idle", 1)]


def test_one_record_after_an_outage_counts_as_a_quarter_of_the_limit(
    log: MemoryLog, clock: Clock, producer: ScriptedProducer
) -> None:
    producer.send(HEAD)
    other = ScriptedProducer(log, "producer-1")
    clock.advance(100 * IDLE_MS / 1000)
    other.begin()
    judged = Judged(log)
    assert judged.aborts == []
    assert judged.judge.clock_ms == IDLE_MS // 4
    for _ in range(3):
        clock.advance(100)
        append_tick(log)
    assert Judged(log).aborts == [("idle", 1)]


def test_log_time_that_goes_back_does_not_take_the_clock_back(
    log: MemoryLog, clock: Clock, producer: ScriptedProducer
) -> None:
    producer.send(HEAD)
    clock.advance(0.2)
    append_tick(log)
    clock.advance(-500)
    append_tick(log)
    clock.advance(0.1)
    append_tick(log)
    judged = Judged(log)
    assert (judged.aborts, judged.judge.clock_ms) == ([], 300)


def test_an_invalid_message_changes_nothing_and_the_flow_goes_on(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    append_garbage(log)
    producer.send(TAIL)
    judged = Judged(log)
    assert judged.rejected == {2: "headers"}
    assert judged.accepted == [(1, [0]), (3, [0])]
    assert judged.aborts == []
    assert judged.counted("messages_read", "messages_valid", "messages_quarantined") == (4, 3, 1)


@pytest.mark.parametrize(
    "contradiction",
    [
        Row(0, 0, 2, 3, 1),
        Row(0, 0, 1, 4, 1),
        Row(0, 1, 1, 3, 1),
        Row(0, 1, 0, 0, 1),
    ],
    ids=["chunk", "step", "episode", "begins-anew"],
)
def test_rows_that_contradict_what_is_open_are_rejected(
    log: MemoryLog, producer: ScriptedProducer, contradiction: Row
) -> None:
    producer.send(HEAD)
    producer.append(producer.encode(contradiction))
    producer.send(TAIL)
    judged = Judged(log)
    assert judged.rejected == {2: "rows"}
    assert judged.accepted == [(1, [0]), (3, [0])]
    assert judged.counted("messages_duplicate", "gaps", "rows_read") == (0, 0, 2)


@pytest.mark.parametrize("between", [[], [NEXT]], ids=["at once", "later"])
def test_an_episode_number_that_was_used_is_rejected(
    log: MemoryLog, producer: ScriptedProducer, between: list[Row]
) -> None:
    """Two episodes of one name could never be told apart again; it makes no difference that the first has ended."""
    producer.send(HEAD, TAIL)
    for row in between:
        producer.send(row)
    again = producer.send(HEAD)
    judged = Judged(log)
    assert judged.rejected == {again.offset: "rows"}
    restored = Judge(LIMITS, producers=judged.judge.entries())
    with pytest.raises(RejectedError, match="env 0, episode 0, chunk 0 does not follow the env's episode"):
        restored.judge(records(log)[again.offset], decode(records(log)[again.offset], SPEC), Verdicts())


@pytest.mark.parametrize("skipped", [False, True], ids=["behind an end", "behind a gap"])
def test_behind_an_orphan_no_number_is_used_again(log: MemoryLog, producer: ScriptedProducer, skipped: bool) -> None:
    producer.send(Row(0, 4, 0, 0, 2, Ends.OPEN if skipped else Ends.TERMINATED))
    if skipped:
        producer.skip()
    again = producer.encode(Row(0, 3, 1, 2, 1, Ends.TERMINATED), Row(0, 4, 0, 0, 3, Ends.TERMINATED))
    producer.append(again)
    producer.send(Row(0, 3, 1, 2, 1, Ends.TERMINATED), Row(0, 5, 0, 0, 3, Ends.TERMINATED))
    judged = Judged(log)
    assert judged.rejected == {2: "rows"}
    assert judged.counted("rows_read", "rows_orphan") == (3, 1)


def test_an_orphan_takes_no_number(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(Row(0, 7, 2, 9, 1))
    producer.send(HEAD)
    judged = Judged(log)
    assert not judged.rejected
    assert judged.judge.counters["rows_orphan"] == 1
    assert judged.judge.open_episodes == 1


def test_a_rejected_record_moves_the_logs_time(log: MemoryLog, clock: Clock, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    for _ in range(4):
        clock.advance(0.25)
        append_garbage(log)
    assert Judged(log).aborts == [("idle", 1)]


def test_an_abort_without_a_step_closes_what_is_open(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD, Row(1, 0, 0, 0, 2))
    producer.send(Row(0, 0, 1, 3, 0, Ends.ABORTED, "env raised"), NEXT)
    judged = Judged(log)
    assert not judged.rejected
    assert judged.accepted == [(1, [0, 0]), (2, [0, 1])]
    first, second = (accepted.uid.tolist() for accepted in judged.verdicts.accepted)
    assert second[0] == first[0]
    assert judged.judge.open_episodes == 1
    assert judged.counted("rows_read", "steps_read", "rows_orphan") == (4, 9, 0)
    # The episode is over: nothing of it can follow.
    producer.send(Row(0, 0, 2, 3, 1))
    assert Judged(log).counted("rows_orphan") == (1,)


def test_an_abort_without_a_step_has_to_follow_too(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    producer.append(producer.encode(Row(0, 0, 1, 2, 0, Ends.ABORTED, "env raised")))
    judged = Judged(log)
    assert judged.rejected == {2: "rows"}
    assert judged.judge.open_episodes == 1


def test_a_judge_goes_on_from_its_entries(log: MemoryLog, clock: Clock, producer: ScriptedProducer) -> None:
    producer.send(HEAD, Row(300, 5, 0, 0, 2))
    clock.advance(0.2)
    append_tick(log)
    before = Judged(log).judge
    after = Judge(
        LIMITS,
        producers=before.entries(),
        counters=before.counters,
        clock_ms=before.clock_ms,
        timestamp_ms=records(log)[-1].timestamp_ms,
    )
    assert (after.entries(), after.open_episodes) == (before.entries(), 2)
    clock.advance(0.1)
    producer.send(TAIL, Row(300, 5, 1, 2, 1))
    record, verdicts = records(log)[-1], Verdicts()
    after.judge(record, decode(record, SPEC), verdicts)
    assert (len(verdicts.accepted[0].uid), after.open_episodes, after.clock_ms) == (2, 1, 300)
    assert after.entries() == Judged(log).judge.entries()


# An episode that goes on for ever.


def judged_by_size(log: MemoryLog, most: int) -> Judged:
    return Judged(log, Limits(idle_limit_ms=IDLE_MS, max_episode_bytes=most))


def test_an_episode_that_grows_too_large_is_aborted_alone(log: MemoryLog, producer: ScriptedProducer) -> None:
    sizes = {}
    for chunk in range(3):
        rows = (Row(0, 0, chunk, 10 * chunk, 10), Row(1, 0, chunk, chunk, 1))
        producer.send(*rows)
        sizes[chunk] = check(rows_to_batch(producer.name, 0, rows), SPEC).bytes[0]
    most = sizes[0] + sizes[1]
    assert judged_by_size(log, most + sizes[2]).aborts == []
    judged = judged_by_size(log, most)
    (abort,) = judged.verdicts.aborted
    # What came is the episode's, the row that was too much included.
    assert (abort.reason, abort.uid.tolist(), abort.offset) == ("too large", [0], 3)
    assert [uid for _, uid in judged.accepted] == [[0, 0], [0, 0], [0, 0]]
    assert judged.judge.open_episodes == 1
    # What comes after it is an orphan, until the env's next episode.
    producer.send(Row(0, 0, 3, 30, 2), Row(1, 0, 3, 3, 1))
    producer.send(Row(0, 0, 4, 32, 2, Ends.TERMINATED), Row(0, 1, 0, 0, 2), Row(1, 0, 4, 4, 1, Ends.TERMINATED))
    judged = judged_by_size(log, most)
    assert judged.counted("rows_orphan", "steps_orphan", "messages_quarantined") == (2, 4, 0)
    assert len(judged.aborts) == judged.judge.open_episodes == 1


def test_an_episode_that_has_ended_is_never_too_large(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD)
    producer.send(TAIL, NEXT)
    assert judged_by_size(log, 1).aborts == [("too large", 1)]
    producer.send(Row(0, 2, 0, 0, 4, Ends.CUT), Row(0, 3, 0, 0, 1, Ends.TERMINATED, continues=2))
    assert judged_by_size(log, 1).aborts == [("too large", 1)]


def test_a_judge_that_goes_on_knows_how_large_episodes_are(log: MemoryLog, producer: ScriptedProducer) -> None:
    producer.send(HEAD, Row(1, 0, 0, 0, 2, Ends.TERMINATED))
    before = Judged(log).judge
    (size,) = (check(rows_to_batch(producer.name, 0, [HEAD]), SPEC).bytes).tolist()
    assert before.entries()[producer.name].envs.bytes == [size, 0]
    producer.send(Row(0, 0, 1, 3, 1))
    record, verdicts = records(log)[-1], Verdicts()
    after = Judge(Limits(max_episode_bytes=size), producers=before.entries())
    after.judge(record, decode(record, SPEC), verdicts)
    assert [abort.reason for abort in verdicts.aborted] == ["too large"]


def test_who_only_ends_takes_no_place(log: MemoryLog, producer: ScriptedProducer) -> None:
    """An end record is small and needs no description: it must not be one more name in every commit."""
    append(log, encode_end(producer="nobody", incarnation=0, sequence=0, reason="stopped"), "nobody")
    judged = Judged(log)
    assert judged.judge.entries().keys() == {producer.name}
    assert judged.counted("messages_valid", "messages_end", "gaps") == (2, 1, 0)
