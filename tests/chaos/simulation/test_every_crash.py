from __future__ import annotations

from itertools import combinations

import pytest

from tests.chaos.simulation.planned import play
from tests.chaos.simulation.stage import Fault, Kind

WRITES = (Kind.CREATE, Kind.PUT, Kind.DELETE)
CRASHES = (Fault.KILL_BEFORE, Fault.KILL_AFTER)
# What befalls those who write: a time-out, a store that says what is not so, a zombie; a lost answer, a full disk.
ODDITIES = (Fault.LATE, Fault.EXISTS, Fault.PAUSE_BEFORE)
MORE_ODDITIES = (Fault.PAUSE_AFTER, Fault.LOSE_ANSWER, Fault.FAIL)


def check(
    *plans: dict[int, Fault],
    workers: int,
    turns: int = 1,
    short: bool = False,
    beside: bool = False,
    upkeep: bool = False,
) -> None:
    for plan in plans:
        played, _ = play(plan, workers=workers, turns=turns, short=short, beside=beside, upkeep=upkeep)
        assert played.ok, f"{plan}\n{played.text}"


def operations(
    workers: int, *, turns: int = 1, short: bool = False, beside: bool = False, upkeep: bool = False
) -> list[tuple[str, Kind, str]]:
    """What happens when nothing goes wrong."""
    played, done = play({}, workers=workers, turns=turns, short=short, beside=beside, upkeep=upkeep)
    assert played.ok, played.text
    return done


def writes(done: list[tuple[str, Kind, str]]) -> list[int]:
    """The numbers of the operations that write to the store."""
    return [at for at, (_, kind, _) in enumerate(done) if kind in WRITES]


def writes_of_upkeep(done: list[tuple[str, Kind, str]]) -> list[int]:
    """Those of one worker that come after a turn's commit of what it read."""
    found, committed = [], False
    for at, (_, kind, name) in enumerate(done):
        if committed and kind in WRITES:
            found.append(at)
        if kind is Kind.POLL:
            committed = False
        elif kind is Kind.CREATE and name.startswith("commits/"):
            committed = True
    return found


def test_the_script_has_every_operation_of_the_commit_path() -> None:
    done = {(kind, name.partition("/")[0].partition("-")[0]) for _, kind, name in operations(1)}
    assert {
        *((Kind.CREATE, "store.json"), (Kind.CREATE, "commits"), (Kind.PUT, "segments"), (Kind.PUT, "open")),
        *((Kind.READ, "open"), (Kind.APPEND, "dead"), (Kind.POLL, "group")),
    } <= done


def test_the_script_of_upkeep_joins_retires_and_collects() -> None:
    done = operations(1, upkeep=True)
    written = [(kind, name.partition("/")[0]) for _, kind, name in map(done.__getitem__, writes_of_upkeep(done))]
    joined = written.index((Kind.PUT, "segments"))
    assert written[joined + 1] == (Kind.CREATE, "commits")
    # What is retired takes a commit, and no segment.
    assert written.count((Kind.CREATE, "commits")) > written.count((Kind.PUT, "segments"))
    assert (Kind.DELETE, "segments") in written


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_at_every_write_of_upkeep(crash: Fault) -> None:
    check(*({at: crash} for at in writes_of_upkeep(operations(1, upkeep=True))), workers=1, upkeep=True)


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_at_every_operation_of_turns_with_upkeep(crash: Fault, workers: int) -> None:
    count = len(operations(workers, upkeep=True))
    check(*({at: crash} for at in range(count)), workers=workers, upkeep=True)


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("odd", [*ODDITIES, *MORE_ODDITIES])
def test_a_fault_at_every_write_of_turns_with_upkeep(odd: Fault, workers: int) -> None:
    check(*({at: odd} for at in writes(operations(workers, upkeep=True))), workers=workers, upkeep=True)


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_at_every_operation_of_one_worker(crash: Fault) -> None:
    check(*({at: crash} for at in range(len(operations(1)))), workers=1)


@pytest.mark.parametrize("odd", [*ODDITIES, *(pytest.param(odd, marks=pytest.mark.chaos) for odd in MORE_ODDITIES)])
def test_a_fault_at_every_write_of_one_worker(odd: Fault) -> None:
    check(*({at: odd} for at in writes(operations(1))), workers=1)


@pytest.mark.chaos
@pytest.mark.parametrize(("turns", "beside"), [(1, False), (3, True), (10, False)])
@pytest.mark.parametrize("fault", [*CRASHES, Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER])
def test_a_crash_at_every_operation_of_two_workers(fault: Fault, turns: int, beside: bool) -> None:
    count = len(operations(2, turns=turns, beside=beside))
    check(*({at: fault} for at in range(count)), workers=2, turns=turns, beside=beside)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", [*ODDITIES, *MORE_ODDITIES])
def test_a_fault_at_every_write_of_two_workers(fault: Fault) -> None:
    check(*({at: fault} for at in writes(operations(2))), workers=2)


@pytest.mark.chaos
@pytest.mark.parametrize("first", [*CRASHES, Fault.LATE])
@pytest.mark.parametrize("second", CRASHES)
def test_pairs_of_crashes(first: Fault, second: Fault) -> None:
    """The second counts on from the first: it falls into the life that follows as well as into the same."""
    count = len(operations(1, short=True))
    check(*({a: first, b: second} for a, b in combinations(range(2 * count), 2)), workers=1, short=True)
