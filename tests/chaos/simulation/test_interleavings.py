from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreUnavailableError, TopicError
from penstock_schemas.messages import Encoded
from tests.chaos.audit.records import memory_records
from tests.chaos.simulation.scene import IDLE_MS, Scene
from tests.consumers.messages import DEAD_LETTERS, TOPIC, Row, stored_episodes

if TYPE_CHECKING:
    from penstock_consumers.worker import Worker

TERMINATED, ABORTED = int(Ends.TERMINATED), int(Ends.ABORTED)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def whole(episode: int, env: int = 0, length: int = 3) -> Row:
    return Row(env, episode, 0, 0, length, Ends.TERMINATED)


def fail(worker: Worker) -> None:
    """Its next commit meets what the bucket has for it, and the worker is given up."""
    with pytest.raises(StoreUnavailableError):
        worker.run_once()
    worker.abandon()


# A zombie's late put. Rule: creating commit N is the fence, whoever creates it and whenever.


def test_a_late_put_that_nobody_came_before_is_a_commit_like_any_other(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(whole(0), Row(1, 0, 0, 0, 2))
    zombie, bucket = scene.worker(), scene.bucket
    bucket.befalls = [bucket.times_out]
    fail(zombie)
    # The next owner finds no commit, judges the same records and more, and is about to commit.
    owner = scene.worker(commit_seconds=5)
    owner.run_once()
    producer.send(Row(1, 0, 1, 2, 1, Ends.TERMINATED))
    owner.run_once()
    assert scene.newest() is None
    bucket.late.pop()()
    scene.clock.advance(5)
    owner.run_once()
    assert scene.fenced(owner) == 1
    # It has loaded the zombie's commit, and goes on where that ends.
    scene.clock.advance(0.1)
    owner.run_once()
    owner.close()
    assert [row[1:5] for row in scene.stored()] == [(0, 0, 3, TERMINATED), (1, 0, 3, TERMINATED)]
    assert scene.audit().ok, scene.audit().text


def test_a_late_put_that_another_came_before_changes_nothing(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(whole(0))
    zombie, bucket = scene.worker(), scene.bucket
    bucket.befalls = [bucket.times_out]
    fail(zombie)
    producer.send(whole(1))
    owner = scene.worker()
    owner.run_once()
    before = scene.newest()
    bucket.late.pop()()
    assert scene.newest() == before
    producer.send(whole(2))
    owner.run_once()
    assert scene.fenced(owner) == 0
    assert [row[2] for row in scene.stored()] == [0, 1, 2]
    assert scene.audit().ok, scene.audit().text


def test_a_late_put_after_several_commits_of_others_takes_no_number(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(whole(0))
    zombie, bucket = scene.worker(), scene.bucket
    bucket.befalls = [bucket.times_out]
    fail(zombie)
    for episode in range(1, 4):
        producer.send(whole(episode))
        owner = scene.worker()
        owner.run_once()
        owner.close()
    bucket.late.pop()()
    newest = scene.newest()
    assert newest is not None
    assert (newest.number, newest.high_water) == (2, 5)
    assert scene.audit().ok, scene.audit().text


def test_a_worker_that_was_paused_amid_its_commit_discards_it(scene: Scene) -> None:
    """It wakes up when its partition has been another's, who has committed; it notices by the fence alone."""
    producer = scene.producer()
    producer.send(whole(0))
    paused, rival, bucket = scene.worker(), scene.worker(), scene.bucket

    def meanwhile(name: str, data: bytes) -> bool:
        scene.evict(paused)
        rival.run_once()
        producer.send(whole(1))
        rival.run_once()
        return bucket.inner.create(name, data)

    bucket.befalls = [meanwhile]
    paused.run_once()
    assert scene.fenced(paused) == 1
    for worker in (paused, rival) * 3:
        worker.run_once()
    assert [row[2] for row in scene.stored()] == [0, 1]
    assert scene.audit().ok, scene.audit().text


# A store that says what is not so. Rule: exists with the same bytes, it is mine; other bytes, reload.


def test_a_store_that_retried_by_itself_and_says_exists_has_made_the_commit(scene: Scene) -> None:
    producer = scene.producer()
    worker, bucket = scene.worker(), scene.bucket
    for episode in range(3):
        producer.send(whole(episode))
        bucket.befalls = [bucket.retries_by_itself]
        worker.run_once()
    assert scene.fenced(worker) == 0
    newest = scene.newest()
    assert newest is not None
    assert (newest.number, newest.high_water) == (2, 4)
    assert scene.audit().ok, scene.audit().text


def test_a_commit_whose_answer_was_lost_is_found_by_whoever_comes_next(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(whole(0), Row(1, 0, 0, 0, 2))
    bucket = scene.bucket
    bucket.befalls = [bucket.loses_answer]
    fail(scene.worker())
    producer.send(Row(1, 0, 1, 2, 1, Ends.TERMINATED))
    worker = scene.worker()
    worker.run_once()
    # The first thing that it reads is what the commit does not hold.
    newest = scene.newest()
    assert newest is not None
    assert (newest.number, newest.high_water, newest.counters["messages_read"]) == (1, 3, 3)
    assert [row[1:5] for row in scene.stored()] == [(0, 0, 3, TERMINATED), (1, 0, 3, TERMINATED)]
    assert scene.audit().ok, scene.audit().text


# Rule: each record is judged once, so that where polls, batches and commits fall has no say.


@pytest.mark.parametrize("seed", range(4))
def test_polls_and_commits_of_workers_cut_at_random_give_the_same_store(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  (to be repeated, not to be kept secret)
    scenes = [Scene() for _ in range(3)]
    stores = []
    for scene in scenes:
        lived(scene, random.Random(seed))  # noqa: S311  (the same log each time)
        worker = scene.worker(commit_seconds=rng.choice((0, 0.05, 1e9)))
        end = scene.log.bounds(TOPIC, 0)[1]
        while worker_at(worker) < end:
            poll = worker._group.poll
            most = rng.choice((1, 2, 5, 500))
            worker._group.poll = lambda timeout, _=0, poll=poll, most=most: poll(0, most)  # type: ignore[method-assign, misc]  # the reader takes as many as it is told
            worker.run_once()
            worker._group.poll = poll  # type: ignore[method-assign]  # likewise
            scene.clock.advance(0.02)
            if rng.random() < 0.2:
                worker.close() if rng.random() < 0.5 else worker.abandon()
                worker = scene.worker(commit_seconds=rng.choice((0, 0.05, 1e9)))
        worker.close()
        found = scene.audit()
        assert found.ok, f"seed {seed}: {found.text}"
        stores.append(stored_episodes(scene.bucket.inner))
    assert stores[0] == stores[1] == stores[2] != []


def lived(scene: Scene, rng: random.Random) -> None:
    """Two producers with open episodes, gaps and restarts; no time goes on, since ticks would be part of the log."""
    producers = [scene.producer(f"producer-{number}") for number in range(2)]
    for message in range(30):
        producer = rng.choice(producers)
        match rng.choice(("open", "whole", "whole", "skip", "begin", "garbage")):
            case "open":
                producer.send(Row(0, 100 + message, 0, 0, 2)) if producer.sequence == 0 else producer.send(
                    whole(1_000 + message, env=1)
                )
            case "whole":
                producer.send(whole(1_000 + message, env=1), Row(2, 1_000 + message, 0, 0, 1, Ends.CUT))
            case "skip":
                producer.skip()
            case "garbage":
                producer.append(Encoded(rng.randbytes(9), ()))
            case _:
                producer.begin()


def worker_at(worker: Worker) -> int:
    """The next offset that a worker judges."""
    held = worker._held.get(0)
    return held.partition.high_water if held else 0


# Rule: nothing below a commit's high-water mark decides anything again, so other code or settings change no verdict.


def test_another_idle_limit_after_a_restart_changes_no_old_verdict(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(Row(0, 0, 0, 0, 2))
    other = scene.producer("producer-1")
    other.send(whole(0))
    for _ in range(3):
        scene.clock.advance(0.25)
        other.send(whole(other.sequence))
    first = scene.worker(idle_ms=IDLE_MS)
    first.run_once()
    first.close()
    # 0.75 s of the log's time have gone by: open by the first limit, idle by the second with its next record.
    assert [row for row in scene.stored() if row[5]] == []
    second = scene.worker(idle_ms=400)
    second.run_once()
    assert [row for row in scene.stored() if row[5]] == []
    other.send(whole(other.sequence))
    second.run_once()
    (idle,) = [row for row in scene.stored() if row[5]]
    assert idle[3:] == (2, ABORTED, "idle")
    second.close()
    third = scene.worker(idle_ms=60_000)
    other.send(whole(other.sequence))
    third.run_once()
    assert [row for row in scene.stored() if row[5]] == [idle]
    assert scene.audit().ok, scene.audit().text


# Rule: a gap is never papered over, and heals.


def test_a_corrupt_message_amid_an_incarnation_heals(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(Row(0, 0, 0, 0, 2), Row(1, 0, 0, 0, 1))
    message = producer.encode(Row(0, 0, 1, 2, 2), whole(1, env=1))
    producer.append(Encoded((message.value or b"")[:-100], message.headers))
    producer.skip()
    # Goes on as if nothing had been: a row of an episode that is not open any more, a new one, its continuation.
    producer.send(Row(0, 0, 2, 4, 1, Ends.TERMINATED), Row(1, 2, 0, 0, 2))
    producer.send(whole(1), Row(1, 2, 1, 2, 1, Ends.TERMINATED))
    worker = scene.worker()
    for _ in range(3):
        worker.run_once()
    told = sorted(row[1:] for row in scene.stored())
    assert told == [
        (0, 0, 2, ABORTED, "gap"),
        (0, 1, 3, TERMINATED, None),
        (1, 0, 1, ABORTED, "gap"),
        (1, 2, 3, TERMINATED, None),
    ]
    newest = scene.newest()
    assert newest is not None
    counted = {name: newest.counters.get(name) for name in ("gaps", "messages_missing", "rows_orphan")}
    assert counted == {"gaps": 1, "messages_missing": 1, "rows_orphan": 1}
    (letter,) = memory_records(scene.log, DEAD_LETTERS)[0]
    assert dict(letter.headers)["penstock.offset"] == b"2"
    assert scene.audit().ok, scene.audit().text


def test_a_message_of_an_older_incarnation_is_superseded_after_a_restart_too(scene: Scene) -> None:
    """What is known of incarnations is in the commit, not in the memory of who judged them."""
    producer = scene.producer()
    old = producer.encode(whole(0))
    producer.append(old)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 2))
    worker = scene.worker()
    worker.run_once()
    worker.close()
    producer.append(old)
    producer.send(Row(0, 0, 1, 2, 1, Ends.TERMINATED))
    scene.worker().run_once()
    assert [row[:5] for row in scene.stored()] == [(0, 0, 0, 3, TERMINATED), (2, 0, 0, 3, TERMINATED)]
    newest = scene.newest()
    assert newest is not None
    assert (newest.counters["messages_superseded"], newest.counters.get("messages_duplicate", 0)) == (1, 0)
    assert scene.audit().ok, scene.audit().text


def test_a_repeated_message_is_a_duplicate_after_a_restart_too(scene: Scene) -> None:
    producer = scene.producer()
    repeated = producer.encode(whole(0))
    producer.append(repeated)
    producer.sequence += 1
    worker = scene.worker()
    worker.run_once()
    worker.close()
    producer.append(repeated)
    scene.worker().run_once()
    assert [row[2] for row in scene.stored()] == [0]
    newest = scene.newest()
    assert newest is not None
    assert newest.counters["messages_duplicate"] == 1
    assert scene.audit().ok, scene.audit().text


# Rule: nothing is decided by a clock; silence is measured in the log's time.


@pytest.mark.parametrize("restart", [False, True])
def test_one_record_after_an_hours_outage_makes_nobody_idle(scene: Scene, restart: bool) -> None:
    patient, other = scene.producer(), scene.producer("producer-1")
    patient.send(Row(0, 0, 0, 0, 2))
    other.send(Row(0, 0, 0, 0, 1))
    worker = scene.worker()
    worker.run_once()
    scene.log.outage = True
    scene.clock.advance(3_600)
    scene.log.outage = False
    if restart:
        worker.abandon()
        worker = scene.worker()
    other.send(Row(0, 0, 1, 1, 1, Ends.TERMINATED))
    worker.run_once()
    assert [row[4:] for row in scene.stored()] == [(TERMINATED, None)]
    patient.send(Row(0, 0, 1, 2, 1, Ends.TERMINATED))
    worker.run_once()
    assert [row[4:] for row in scene.stored()] == [(TERMINATED, None)] * 2
    assert scene.audit().ok, scene.audit().text


def test_a_producer_that_never_comes_back_ends_by_ticks_through_restarts(scene: Scene) -> None:
    """Each consumer lives for one tick only; the log's time goes on all the same."""
    scene.producer().send(Row(0, 0, 0, 0, 2))
    for _ in range(6):
        worker = scene.worker()
        worker.run_once()
        scene.clock.advance(IDLE_MS / 4_000)
        worker.run_once()
        worker.close()
    assert [row[3:] for row in scene.stored()] == [(2, ABORTED, "idle")]
    # Nothing is open any more, so nothing ticks.
    assert scene.log.bounds(TOPIC, 0)[1] == 2 + 4
    assert scene.audit().ok, scene.audit().text


def test_clocks_an_hour_apart_give_the_same_store() -> None:
    stores = []
    for skew in (-3_600.0, 0.0, 3_600.0):
        scene = Scene()
        producer = scene.producer()
        producer.send(Row(0, 0, 0, 0, 2))
        worker = scene.worker()
        worker._clock = worker._wall = lambda scene=scene, skew=skew: scene.clock() + skew  # type: ignore[misc]  # a lambda's default has no type
        worker.run_once()
        producer.send(Row(0, 0, 1, 2, 1, Ends.TERMINATED))
        worker.run_once()
        stores.append(stored_episodes(scene.bucket.inner))
        assert scene.audit().ok, scene.audit().text
    assert stores[0] == stores[1] == stores[2] != []


# Rule: where the log is not what the store has read, it is refused or counted, never papered over.


def test_a_broker_that_lost_its_tail_is_refused_by_who_holds_the_partition_and_by_who_comes_next(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(whole(0))
    producer.send(Row(0, 1, 0, 0, 2))
    worker = scene.worker()
    worker.run_once()
    before = scene.newest()
    del scene.log._topics[TOPIC].partitions[0].records[1:]
    with pytest.raises(TopicError):
        worker.run_once()
    worker.abandon()
    worker = scene.worker()
    with pytest.raises(TopicError, match="it ends at offset 1, the store has read up to 3"):
        worker.run_once()
    worker.abandon()
    # It grows again past where the store stands, with other records.
    for episode in range(5, 8):
        producer.send(whole(episode))
    with pytest.raises(TopicError, match="the log was rewritten"):
        scene.worker().run_once()
    assert scene.newest() == before


def test_a_fresh_store_on_a_topic_already_trimmed_counts_what_it_never_saw(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(Row(0, 0, 0, 0, 2), Row(1, 0, 0, 0, 2))
    producer.send(whole(0, env=2))
    producer.send(Row(0, 0, 1, 2, 1, Ends.TERMINATED), whole(1, env=1))
    scene.trim(3)
    worker = scene.worker()
    worker.run_once()
    assert [row[1:] for row in scene.stored()] == [(1, 1, 3, TERMINATED, None)]
    newest = scene.newest()
    assert newest is not None
    counted = {name: newest.counters.get(name) for name in ("offsets_lost", "messages_missing", "rows_orphan", "gaps")}
    assert counted == {"offsets_lost": 3, "messages_missing": 2, "rows_orphan": 1, "gaps": 1}
    producer.send(whole(2))
    worker.run_once()
    worker.close()
    # Who comes next counts nothing again.
    producer.send(whole(3))
    scene.worker().run_once()
    assert [row[2] for row in scene.stored()] == [2, 3, 1]
    newest = scene.newest()
    assert newest is not None
    assert newest.counters["offsets_lost"] == 3
    assert scene.audit().ok, scene.audit().text


def test_a_log_trimmed_under_its_reader_is_a_counted_loss(scene: Scene) -> None:
    producer = scene.producer()
    producer.send(Row(0, 0, 0, 0, 2))
    worker = scene.worker()
    worker.run_once()
    producer.send(Row(0, 0, 1, 2, 1))
    producer.send(Row(0, 0, 2, 3, 1, Ends.TERMINATED))
    scene.trim(3)
    with pytest.raises(TopicError):
        worker.run_once()
    worker.abandon()
    scene.worker().run_once()
    assert [row[3:] for row in scene.stored()] == [(2, ABORTED, "gap")]
    assert scene.audit().ok, scene.audit().text
    assert scene.audit().counts["offsets_lost"] == 1
