"""Publishing through a log that comes and goes: in order, nothing lost, and doubled only under its old number."""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock_producers.publisher import PublishLimits, message_room, partition_for
from penstock_schemas.chunks import list_values
from penstock_schemas.errors import LogUnavailableError, TooLargeError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import Kind, encode_begin, encode_chunks
from tests.producers.publishing import (
    SECONDS,
    SPEC,
    TOPIC,
    FaultyLog,
    Observer,
    Source,
    messages,
    publisher,
    records,
    store,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_schemas.log import Log

MESSAGE = encode_chunks(SPEC, Source().batches()[0], producer="pod-0", incarnation=0, sequence=0).size


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog()
    log.create(TOPIC)
    yield log
    log.outage = False


def rewards(log: Log) -> list[float]:
    """The rewards of all messages, each message once by its incarnation and sequence, in their order."""
    kept = {(message.incarnation, message.sequence): message for message in messages(log)}
    batches = [message.batch for message in kept.values() if message.batch is not None]
    return [step for batch in batches for step in list_values(batch.column("reward"), SPEC.columns[2]).tolist()]


def told(log: Log) -> list[tuple[Kind, int, int]]:
    return [(message.kind, message.incarnation, message.sequence) for message in messages(log)]


def test_an_incarnation_is_the_offset_of_its_begin_and_counts_from_zero(log: MemoryLog) -> None:
    source, sent = Source(), []
    for incarnation in (0, 5):
        with publisher(log, Observer()) as publishing:
            assert publishing.incarnation == incarnation
            for _ in range(3):
                batches = source.batches()
                sent += batches
                publishing.publish(batches)
            publishing.end("shutdown")
            publishing.flush()
            kinds = [Kind.BEGIN, Kind.CHUNKS, Kind.CHUNKS, Kind.CHUNKS, Kind.END]
            numbers = [0, 0, 1, 2, 3]
            expected = [(kind, incarnation, number) for kind, number in zip(kinds, numbers, strict=True)]
            assert told(log)[-5:] == expected
    found = messages(log)
    came = [message.batch for message in found if message.batch is not None]
    assert pa.Table.from_batches(came).equals(pa.Table.from_batches(sent))
    assert {message.producer for message in found} == {"pod-0"}
    assert {message.reason for message in found if message.kind is Kind.END} == {"shutdown"}
    assert {record.key for record in records(log)} == {b"pod-0"}


def test_a_fragment_too_large_for_one_message_travels_as_several(log: MemoryLog) -> None:
    source, limits = Source(400, message_room(SPEC, 16_384)), PublishLimits(max_message_bytes=16_384)
    with publisher(log, Observer(), limits=limits) as publishing:
        publishing.publish(source.batches())
        publishing.flush()
    sizes = [record.size for record in records(log)]
    assert len(sizes) > 2
    assert max(sizes) <= 16_384
    assert sorted(rewards(log)) == list(range(source.steps))
    assert [number for _, _, number in told(log)[1:]] == list(range(len(sizes) - 1))


@pytest.mark.parametrize(
    ("producer", "partitions", "expected"),
    [
        ("pod-0", 4, 0),
        ("pod-7", 4, 3),
        ("a-b-12", 5, 2),
        ("pod-12", 1, 0),
        # No ordinal at the end: a hash that every Python and every start computes alike.
        ("pod12", 7, zlib.crc32(b"pod12") % 7),
        ("pod-1x", 7, zlib.crc32(b"pod-1x") % 7),
    ],
)
def test_a_producer_s_partition_follows_from_its_name(producer: str, partitions: int, expected: int) -> None:
    assert partition_for(producer, partitions) == expected
    log = MemoryLog()
    log.create(TOPIC, partitions=partitions)
    with publisher(log, Observer(), producer=producer) as publishing:
        publishing.publish(Source().batches())
        publishing.flush()
    assert [record.partition for record in records(log)] == [expected] * 2


def test_the_loop_waits_while_the_log_is_away_and_goes_on_after(log: MemoryLog) -> None:
    source, observer, waited, done = Source(), Observer(), threading.Event(), threading.Event()
    limits = PublishLimits(max_in_flight_bytes=int(2.5 * MESSAGE))
    accepted = 0

    def run() -> None:
        nonlocal accepted
        with publisher(log, observer, limits=limits, while_waiting=waited.set) as publishing:
            log.outage = True
            for _ in range(6):
                publishing.publish(source.batches())
                accepted += 1
            publishing.end("shutdown")
            publishing.flush()
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waited.wait(SECONDS)
    wait_until(lambda: bool(observer.reasons))
    assert accepted == 2
    assert not done.is_set()
    log.outage = False
    assert done.wait(SECONDS)
    thread.join()
    assert told(log) == [(Kind.BEGIN, 0, 0), *((Kind.CHUNKS, 0, n) for n in range(6)), (Kind.END, 0, 6)]
    assert sorted(rewards(log)) == list(range(source.steps))
    assert 2 * MESSAGE <= max(observer.sizes) <= limits.max_in_flight_bytes
    assert observer.sizes[-1] == 0
    *reasons, last = observer.reasons
    assert last is None
    assert {reason for reason in reasons if "outage" in (reason or "")} == set(reasons)


def test_one_message_is_taken_however_large(log: MemoryLog) -> None:
    with publisher(log, Observer(), limits=PublishLimits(max_in_flight_bytes=1)) as publishing:
        for _ in range(3):
            publishing.publish(Source().batches())
        publishing.flush()
    assert told(log)[1:] == [(Kind.CHUNKS, 0, n) for n in range(3)]


def test_what_published_is_told_with_its_latency(log: MemoryLog) -> None:
    observer = Observer()
    with publisher(log, observer) as publishing:
        publishing.publish(Source().batches())
        publishing.flush()
    ((encoded, seconds),) = observer.messages
    assert encoded.value == records(log)[1].value
    assert 0 <= seconds < SECONDS
    assert observer.reasons == []


def test_an_acknowledgement_that_is_long_in_coming_is_told_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_producers.publisher._SLOW_SECONDS", 0.01)
    log, observer = FaultyLog(unanswered={1}), Observer()
    log.create(TOPIC)
    with publisher(log, observer) as publishing:
        publishing.publish(Source().batches())
        wait_until(lambda: bool(observer.reasons))
        assert observer.reasons == ["no acknowledgement for 0.01 s"]
        log.answer()
        publishing.flush()
    assert observer.reasons == ["no acknowledgement for 0.01 s", None]
    assert told(log) == [(Kind.BEGIN, 0, 0), (Kind.CHUNKS, 0, 0)]


@pytest.mark.parametrize("number", [2, 3])
def test_a_lost_acknowledgement_doubles_under_the_same_sequence_and_is_stored_once(number: int) -> None:
    source, observer, log = Source(), Observer(), FaultyLog(lost={number})
    log.create(TOPIC)
    with publisher(log, observer) as publishing:
        for _ in range(4):
            publishing.publish(source.batches())
        publishing.end("shutdown")
        publishing.flush()
    sequences = [0, 1, 2, 3]
    sequences.insert(number - 1, number - 1)
    assert [sequence for kind, _, sequence in told(log) if kind is Kind.CHUNKS] == sequences
    assert observer.reasons == [f"the acknowledgement of append {number} is lost", None]
    assert len(observer.messages) == 5
    stored = store(log)
    assert stored.report.ok, stored.report.findings
    assert stored.counters["rows_duplicate"] == 4
    assert sorted(step for episode in stored.episodes for step in episode["reward"]) == list(range(source.steps))
    assert {episode["abort_reason"] for episode in stored.episodes} == {"shutdown"}


def test_a_lost_acknowledgement_of_the_begin_makes_a_later_incarnation() -> None:
    source, log = Source(), FaultyLog(lost={0})
    log.create(TOPIC)
    with publisher(log, Observer()) as publishing:
        assert publishing.incarnation == 1
        publishing.publish(source.batches())
        publishing.end("shutdown")
        publishing.flush()
    stored = store(log)
    assert stored.report.ok
    assert stored.report.steps_stored == source.steps


def test_a_refusal_for_good_reaches_the_loop() -> None:
    begin = encode_begin(SPEC, "pod-0", "0" * 32).size
    log = MemoryLog(max_message_bytes=begin + 200)
    log.create(TOPIC)
    source, observer = Source(100), Observer()
    with publisher(log, observer) as publishing:
        publishing.publish(source.batches())
        with pytest.raises(TooLargeError, match="is over the limit"):
            publishing.flush()
        with pytest.raises(TooLargeError, match="is over the limit"):
            publishing.publish(source.batches())
        with pytest.raises(TooLargeError, match="is over the limit"):
            publishing.end("shutdown")
    assert told(log) == [(Kind.BEGIN, 0, 0)]
    assert observer.messages == []


def test_a_message_counts_with_its_producer_s_name(log: MemoryLog) -> None:
    (batch,) = Source(50).batches()
    size = encode_chunks(SPEC, batch, producer="pod-0", incarnation=0, sequence=0).size + len("pod-0")
    with (
        publisher(log, Observer(), limits=PublishLimits(max_message_bytes=size - 1)) as publishing,
        pytest.raises(TooLargeError, match=f"takes {size} bytes, at most {size - 1} may be sent"),
    ):
        publishing.publish([batch])
    assert len(told(log)) == 1


def test_a_chunk_larger_than_a_message_is_an_error_not_a_drop(log: MemoryLog) -> None:
    with publisher(log, Observer(), limits=PublishLimits(max_message_bytes=16_384)) as publishing:
        with pytest.raises(TooLargeError, match=r"a message of 4 chunks takes \d+ bytes, at most 16384 may be sent"):
            publishing.publish(Source(2000).batches())
        publishing.publish(Source().batches())
        publishing.flush()
    assert told(log)[1:] == [(Kind.CHUNKS, 0, 0)]


def test_leaving_during_an_outage_gives_up(log: MemoryLog) -> None:
    observer = Observer()
    with publisher(log, observer) as publishing:
        log.outage = True
        publishing.publish(Source().batches())
        wait_until(lambda: bool(observer.reasons))
    wait_until(lambda: not publishing._thread.is_alive())
    log.outage = False
    assert told(log) == [(Kind.BEGIN, 0, 0)]
    assert observer.messages == []


def test_leaving_does_not_wait_for_an_acknowledgement_that_does_not_come() -> None:
    log = FaultyLog(unanswered={1})
    log.create(TOPIC)

    def run() -> None:
        with publisher(log, Observer()) as publishing:
            publishing.publish(Source().batches())
            wait_until(lambda: len(records(log)) == 2)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert log.closed == 1


@pytest.mark.parametrize("outage", [False, True])
def test_leaving_does_not_wait_for_an_append_that_hangs_and_nothing_is_appended_after(*, outage: bool) -> None:
    """Nor is anything told of it any more."""
    log, observer = FaultyLog(hanging={1}), Observer()
    log.create(TOPIC)
    left = threading.Event()

    def run() -> None:
        with publisher(log, observer) as publishing:
            publishing.publish(Source().batches())
            assert log.hangs.wait(SECONDS)
        left.set()
        wait_until(lambda: not publishing._thread.is_alive())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert left.wait(SECONDS)
        assert log.closed == 1
    finally:
        log.outage = outage
        log.released.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    log.outage = False
    assert told(log) == [(Kind.BEGIN, 0, 0)]
    assert observer.reasons == []


def test_who_waits_may_give_up() -> None:
    class GivenUpError(Exception):
        pass

    def give_up() -> None:
        raise GivenUpError

    log = MemoryLog()
    log.create(TOPIC)
    source, limits = Source(), PublishLimits(max_in_flight_bytes=1)
    with publisher(log, Observer(), limits=limits, while_waiting=give_up) as publishing:
        log.outage = True
        publishing.publish(source.batches())
        with pytest.raises(GivenUpError):
            publishing.publish(source.batches())
        with pytest.raises(GivenUpError):
            publishing.flush()


def test_the_begin_waits_for_the_log(log: MemoryLog) -> None:
    observer = Observer()

    def come_back() -> None:
        log.outage = False

    entering = publisher(log, observer, while_waiting=come_back)
    log.outage = True
    with entering as publishing:
        assert publishing.incarnation == 0
    *reasons, last = observer.reasons
    assert last is None
    assert reasons
    assert {reason for reason in reasons if "outage" in (reason or "")} == set(reasons)


def test_who_waits_may_give_up_a_begin_whose_acknowledgement_does_not_come() -> None:
    log, given_up = FaultyLog(unanswered={0}), threading.Event()
    log.create(TOPIC)

    def give_up() -> None:
        raise LogUnavailableError("long enough")

    def run() -> None:
        with pytest.raises(LogUnavailableError, match="long enough"):
            publisher(log, Observer(), while_waiting=give_up).__enter__()
        given_up.set()

    threading.Thread(target=run, daemon=True).start()
    assert given_up.wait(SECONDS)
    assert log.closed == 1
    assert told(log) == [(Kind.BEGIN, 0, 0)]


def test_giving_up_the_begin_lets_go_of_the_log() -> None:
    log = FaultyLog(lost=range(100))
    log.create(TOPIC)

    def give_up() -> None:
        raise LogUnavailableError("long enough")

    with pytest.raises(LogUnavailableError, match="long enough"), publisher(log, Observer(), while_waiting=give_up):
        pytest.fail("it began")
    assert log.closed == 1
