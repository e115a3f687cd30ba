"""That the harness itself can find what it looks for."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from penstock_consumers.store import layout
from penstock_consumers.store.folder import Folder
from penstock_schemas.errors import StoreUnavailableError
from penstock_schemas.log.memory import MemoryLog
from tests.chaos.bucket import Trouble, TroubledBucket, injected, make_trouble
from tests.chaos.checks import acknowledged, bad_ends, mixed_up_in, tracebacks
from tests.chaos.notes import Notes, read_notes
from tests.chaos.producer import NotingLog
from tests.chaos.run import Load, Outcome, asked, command, told
from tests.chaos.schedule import BROKER, Act, Schedule, draw


def test_a_seed_draws_the_same_schedule_again_and_another_one_another() -> None:
    assert draw(3, 60.0) == draw(3, 60.0)
    assert draw(3, 60.0).faults != draw(4, 60.0).faults


@pytest.mark.parametrize("seed", range(50))
def test_a_schedule_kills_every_kind_of_process_and_no_two_faults_of_a_victim_overlap(seed: int) -> None:
    plan = draw(seed, 120.0, kills=3)
    kills = Counter(
        victim.partition("-")[0] for victim, faults in plan.faults.items() for fault in faults if fault.kind is Act.KILL
    )
    assert min(kills[kind] for kind in ("producer", "consumer", BROKER)) >= 3
    assert any(fault.kind is Act.ZOMBIE for faults in plan.faults.values() for fault in faults)
    for faults in plan.faults.values():
        assert all(before.at + before.seconds <= after.at + 1e-6 for before, after in pairwise(faults))


def test_the_ledger_holds_what_was_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with MemoryLog() as memory:
        memory.create("topic")
        appender = NotingLog(memory, Notes(path)).appender()
        appender.append("topic", 0, key=b"k", value=b"v").result()
        assert appender.append("absent", 0, key=b"k", value=b"v").exception() is not None
        appender.close()
    (entry,) = acknowledged(path)
    assert (entry.partition, entry.offset) == (0, 0)


def commit_of(bucket: TroubledBucket, number: int) -> bool:
    return bucket.create(layout.commit(0, number), json.dumps({"number": number}).encode())


def test_each_trouble_shows_as_it_should_and_is_noted(tmp_path: Path) -> None:
    control, inner = tmp_path / "control", Folder(tmp_path / "store")
    bucket = TroubledBucket(inner, control)
    assert commit_of(bucket, 0)
    make_trouble(control, Trouble.GONE)
    with pytest.raises(StoreUnavailableError):
        bucket.read(layout.commit(0, 0))
    make_trouble(control, Trouble.FULL)
    with pytest.raises(StoreUnavailableError, match="File too large"):
        bucket.put("segments/00000/large", b"x" * 10_000)
    make_trouble(control, Trouble.COMMIT_UNANSWERED)
    with pytest.raises(StoreUnavailableError):
        commit_of(bucket, 1)
    assert inner.read(layout.commit(0, 1))
    # Every other commit goes well.
    assert commit_of(bucket, 2)
    make_trouble(control, Trouble.COMMIT_ECHOED)
    assert not commit_of(bucket, 3)
    make_trouble(control, None)
    assert commit_of(bucket, 4)
    noted = Counter(words[0] for words in read_notes(injected(control)))
    kinds = (Trouble.GONE, Trouble.FULL, Trouble.COMMIT_UNANSWERED, Trouble.COMMIT_ECHOED)
    assert noted == Counter(kinds)


def test_a_traceback_in_a_log_is_found_by_its_error(tmp_path: Path) -> None:
    log = tmp_path / "consumer-0.log"
    log.write_text('INFO fine\nTraceback (most recent call last):\n  File "x"\nKeyError: 3\nINFO on\n')
    assert tracebacks(log) == ["consumer-0.log: KeyError: 3"]


@pytest.mark.parametrize(
    "line",
    [
        "error: segment segments/00000/x: its schema is not the store's",
        "error: partition 0 at offset 9: 12 chunk rows were read, 11 are accounted for: nothing was committed",
        "error: topic 'rollouts.chaos'-0: 60 of the last 100 messages are not valid, the last for: crc",
    ],
)
def test_an_error_that_ends_a_process_is_found_unless_a_schedule_can_cause_it(line: str, tmp_path: Path) -> None:
    log = tmp_path / "consumer-0.log"
    fenced = "error: group 'g' of topic 't': another member has joined as instance 'consumer-0', so this one is out: x"
    log.write_text(f"INFO fine\n{fenced}\nINFO on\nerror: the log did not take all within 20 s after the stop: ")
    with log.open("a") as more:
        more.write("the rest is lost\n")
    assert bad_ends(log, [0, 1, 1]) == []
    with log.open("a") as more:
        more.write(f"{line}\n")
    assert bad_ends(log, [0, 1, 1, 1]) == [f"consumer-0: {line}"]


def test_an_end_without_a_reason_is_found(tmp_path: Path) -> None:
    log = tmp_path / "producer-1.log"
    assert bad_ends(log, []) == []
    assert bad_ends(log, [1]) == [f"producer-1 ended with 1, and did not tell why each time; see {log}"]
    assert bad_ends(log, [0, 2, None]) == [f"producer-1 ended with [2, None]; see {log}"]


@pytest.mark.parametrize(
    ("plan", "load"),
    [
        (draw(7, 20.0, producers=2, consumers=2, extras=0), Load()),
        (draw(8, 60.0), Load()),
        (draw(9, 180.0, kills=3), Load(num_envs=4, fragment_steps=2, pace=0.0, messages=100_000)),
    ],
)
def test_the_command_that_a_finding_prints_repeats_its_run(plan: Schedule, load: Load) -> None:
    text = told(Outcome(plan.seed, command(plan, load), findings=["something"]), Path("kept"))
    (line,) = (line for line in text.splitlines() if line.startswith("  again: "))
    words = shlex.split(line)
    assert words[:4] == ["again:", "python", "-m", "tests.chaos.run"]
    assert asked(words[4:])[:2] == (plan, load)


def episodes(*observations: list[list[int]]) -> pa.Table:
    count = len(observations)
    return pa.table(
        {
            "producer": ["producer-2"] * count,
            "incarnation": [5] * count,
            "env": [1] * count,
            "episode": list(range(count)),
            "observation": pa.array(observations, pa.list_(pa.list_(pa.int64(), 5))),
        }
    )


@pytest.mark.parametrize("place", range(5))
def test_an_observation_that_is_anothers_is_found(place: int) -> None:
    good = [[2, 77, 1, 0, 0], [2, 77, 1, 0, 1]]
    assert mixed_up_in([episodes(good, [[2, 77, 1, 1, 0]])]) == []
    good[1][place] += 1
    assert len(mixed_up_in([episodes(good)])) >= 1


def test_a_start_of_two_incarnations_is_found() -> None:
    other = episodes([[2, 77, 1, 0, 0]])
    other = other.set_column(1, "incarnation", pa.array([9]))
    assert len(mixed_up_in([episodes([[2, 77, 1, 0, 0]]), other])) == 1
