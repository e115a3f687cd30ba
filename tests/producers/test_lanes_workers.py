from __future__ import annotations

import gc
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_producers.envs.lanes import Containment, Lanes
from penstock_producers.envs.lanes import workers as fleet
from penstock_producers.envs.lanes.remote import State
from penstock_producers.envs.seeds import ListedSeeds, Seeds
from penstock_producers.envs.source import EnvSource
from penstock_schemas.errors import EnvError, SpaceError
from tests.producers.lanes_driving import Clock, Driver, workers
from tests.producers.publishing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


def processes(lanes: Any) -> list[Any]:
    return [lane._process for lane in lanes._workers.lanes]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def open_files() -> set[tuple[str, str]]:
    """Which files are open, without those that only wait to be collected.

    Others of this process, a client's idle connections say, may be closed at any time.
    """
    gc.collect()
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself
            found.add((file.name, str(file.readlink())))
    return found


def kill_once_answered(lanes: Any, killed: int, answered: int) -> None:
    """Kill a worker once what one has answered has come and waits to be handed over; return once that is known."""
    remote = lanes._workers
    while remote.lanes[answered].result is None:
        assert remote.take_in(10.0)
    processes(lanes)[killed].kill()
    while remote.lanes[killed].state is not State.LOST:
        assert remote.take_in(10.0)


def test_a_slow_env_holds_no_other() -> None:
    with closing(workers(4, 4, slow=2)) as lanes:
        driver = Driver(lanes, 4)
        driver.run(lambda: driver.answers[2] >= 10)
        assert all(driver.answers[env] > 5 * driver.answers[2] for env in (0, 1, 3))
        # Nor is it starved: what it answers is taken at once, however busy the others are.
        assert driver.answers[2] >= 10


def test_what_has_come_is_answered_to_one_who_does_not_wait() -> None:
    with closing(workers(1, 1)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(1),))
        (lane,) = lanes._workers.lanes
        assert select.select([lane.filenos[0]], [], [], 10.0)[0]
        assert lanes.recv(0.0).steps is not None


def test_in_lockstep_every_answer_has_every_env() -> None:
    with closing(workers(4, 3, lockstep=True, slow=2)) as lanes:
        driver = Driver(lanes, 4)
        for step in range(1, 11):
            driver.step()
            assert set(driver.answers.values()) == {step}
        lanes.send(driver.answer.ready, driver.act(driver.answer))
        assert lanes.recv(0.0).steps is None
        assert len(lanes.recv(10.0).ready) == 4


def test_envs_are_spread_evenly_and_no_worker_is_without_one() -> None:
    with closing(workers(5, 2)) as lanes:
        assert [(lane.start, lane.stop) for lane in lanes._lanes] == [(0, 3), (3, 5)]
    with closing(workers(1, 4)) as lanes:
        assert len(processes(lanes)) == 1


def test_close_ends_all_workers_also_one_that_spins() -> None:
    lanes = workers(2, 2, wrong="spin", bad=1, one_in=1)
    answer = lanes.reset()
    pids = [process.pid for process in processes(lanes)]
    assert all(map(is_running, pids))
    before = open_files()
    lanes.send(answer.ready, (np.zeros(2),))
    for process in processes(lanes):
        process.send_signal(signal.SIGINT)  # Ctrl-C is for the parent alone
    assert lanes.recv(10.0).ready.tolist() == [0]
    lanes.close()
    assert [process.poll() for process in processes(lanes)] == [0, -signal.SIGKILL]
    # Each worker had a socket, its memory and what tells of its end; one thing listened to all of them.
    assert len(before - open_files()) >= 2 * 3 + 1
    lanes.close()


def test_what_an_env_has_started_ends_with_its_worker() -> None:
    clock, containment = Clock(), Containment(step_timeout=5.0, backoff=1000.0)
    with closing(workers(2, 2, wrong="spawn", bad=1, one_in=1, containment=containment, clock=clock)) as lanes:
        driver = Driver(lanes, 2)
        pid = processes(lanes)[1].pid
        lanes.send(np.array([1], np.int32), (np.zeros(1),))
        wait_until(lambda: len(group(pid)) == 2)
        clock.now = 5.0
        driver.file(lanes.recv(10.0))
        assert lanes.recv(0.0).aborts == ()
        assert lanes.faults == {"env_hung": 1}
        wait_until(lambda: not group(pid))


def test_a_worker_that_has_died_unnoticed_is_closed_as_the_others() -> None:
    with closing(workers(2, 2)) as lanes:
        dead, other = processes(lanes)
        dead.kill()
        dead.wait()
    assert other.poll() == 0


def test_a_worker_that_lives_on_without_its_socket_is_lost() -> None:
    with closing(workers(1, 1, wrong="shut", bad=0, one_in=1, containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 1)
        (first,) = processes(lanes)
        driver.run(lambda: bool(driver.episodes[0][0].end))
        assert driver.episodes[0][0].end == "env_died: its worker process closed its socket"
        assert first.poll() == -signal.SIGKILL
        driver.run(lambda: len(driver.episodes[0]) > 1)


def test_an_env_whose_worker_is_lost_is_made_once_when_it_is_due_and_closed_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "noted"
    with closing(workers(2, 1, env="noted", path=str(path), containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 2)
        processes(lanes)[0].kill()
        driver.run(lambda: lanes.faults.total() == 2 and min(map(len, driver.episodes)) > 1)
        lanes.rebuild(1)
        driver.run(lambda: any(episode.end == "rebuilt" for episode in driver.episodes[1][:-1]))
    lines = path.read_text().splitlines()
    assert lines[:2] == ["made 0", "made 1"]
    assert sorted(lines[2:]) == ["closed 0", "closed 1", "closed 1", "made 0", "made 1", "made 1"]


def test_a_worker_that_does_not_start_in_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_CLOSE_S", 1000.0)  # nobody waits for it to close its envs
    (tmp_path / "made").touch()
    clock = itertools.count(0, 121).__next__
    with pytest.raises(EnvError, match=r"envs 0 … 1: its worker process did not start within 120 s, and was killed"):
        workers(2, 1, env="stuck", path=str(tmp_path / "made"), clock=clock)


def test_a_worker_that_does_not_start_again_in_time_is_lost_once_more() -> None:
    clock = Clock()
    with closing(workers(2, 2, containment=Containment(backoff=0.0, step_timeout=5.0), clock=clock)) as lanes:
        driver = Driver(lanes, 2)
        again = lanes._workers.lanes[1]
        processes(lanes)[1].kill()
        driver.run(lambda: again.state is State.STARTING)
        processes(lanes)[1].send_signal(signal.SIGSTOP)
        clock.now = 119.0
        driver.step()
        assert (again.state, lanes.faults) == (State.STARTING, {"env_died": 1})
        assert lanes.render(1) is None
        clock.now = 120.0
        driver.run(lambda: lanes.faults.total() == 2)
        assert lanes.last_fault == {1: "env_hung: its worker process did not start within 120 s, and was killed"}
        assert lanes.faults == {"env_died": 1, "env_hung": 1}
        driver.run(lambda: driver.answers[1] > 0)


@contextmanager
def no_more_files_than(room: int) -> Iterator[None]:
    """Let this process open so many files more at most."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_worker_for_which_there_is_no_room_is_tried_again_later() -> None:
    clock = Clock()
    with closing(workers(2, 2, containment=Containment(backoff=1.0), clock=clock)) as lanes:
        driver = Driver(lanes, 2)
        processes(lanes)[1].kill()
        driver.run(lambda: lanes.faults == {"env_died": 1})
        with no_more_files_than(0):
            clock.now = 1.0
            driver.step()
        assert lanes.last_fault == {1: "env_died: its worker process does not start: [Errno 24] Too many open files"}
        clock.now = 2.999
        driver.step()
        assert lanes.faults == {"env_died": 2}
        clock.now = 3.0
        driver.run(lambda: driver.answers[1] > 3)
        assert lanes.faults == {"env_died": 2}


def test_an_idle_worker_is_never_taken_for_hung() -> None:
    clock = Clock()
    with closing(workers(2, 2, clock=clock)) as lanes:
        driver = Driver(lanes, 2)
        for _ in range(3):
            lanes.send(np.array([0], np.int32), (np.zeros(1),))
            driver.file(lanes.recv(10.0))
            clock.now += 1000.0
            assert lanes.recv(0.0).steps is None
        assert lanes.faults == {}


def test_a_worker_can_import_what_its_parent_can_and_keeps_one_core_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "import os\n\ndef make(**_):\n    raise ValueError(f\"{os.environ['OMP_NUM_THREADS']} threads\")\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = EnvSource("elsewhere:make", {}, (), "pod-0")
    for wanted, threads in ((None, "1"), ("3", "3")):
        if wanted is None:
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", wanted)
        with pytest.raises(EnvError, match=f"ValueError: {threads} threads"):
            Lanes.workers(source, 1, 1, seeds=Seeds(7, "pod-0"))


PARENT = """
import sys, time
from tests.producers.lanes_driving import workers
import numpy as np
lanes = workers(2, 2, env="served", path=sys.argv[1], wrong=sys.argv[2], bad=1, one_in=1)
answer = lanes.reset()
lanes.send(answer.ready, (np.zeros(2),))
print(*(lane._process.pid for lane in lanes._workers.lanes), flush=True)
time.sleep(1000)
"""


def group(leader: int) -> list[int]:
    """The processes of a group that run."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [pid for pid in pids if is_running(pid) and group_of(pid) == leader]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


@pytest.mark.parametrize(("wrong", "started", "closed"), [("spawn", 2, ["0"]), ("outlive", 1, ["0", "1"])])
def test_workers_end_when_their_parent_is_killed_with_what_their_envs_started(
    wrong: str, started: int, closed: list[str], tmp_path: Path
) -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-c", PARENT, str(tmp_path / "noted"), wrong], cwd=root, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 2
        wait_until(lambda: [len(group(pid)) for pid in pids] == [2, 1 + started])
        parent.kill()
    wait_until(lambda: not any(map(group, pids)))
    # An env that does not hang was closed before.
    lines = (tmp_path / "noted").read_text().splitlines()
    assert sorted(lines) == [*(f"closed {env}" for env in closed), "made 0", "made 1"]


def test_a_worker_killed_while_it_waits_is_replaced() -> None:
    with closing(workers(2, 2, containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 2)
        first = processes(lanes)[1]
        before = open_files()
        first.kill()
        driver.run(lambda: any(e.end.startswith("env_died") for e in driver.episodes[1]))
        driver.run(lambda: driver.answers[1] > 20)
        assert len(open_files()) <= len(before)
        assert driver.answers[0] > 20
        assert processes(lanes)[1].pid != first.pid
        assert lanes.faults == {"env_died": 1}


def test_what_a_worker_answered_before_it_died_is_handed_over() -> None:
    with closing(workers(2, 2, longest=1000, containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 2)
        lanes.send(driver.answer.ready, driver.act(driver.answer))
        kill_once_answered(lanes, 1, 1)
        driver.file(lanes.recv(10.0))
        assert driver.answers[1] == 1
        assert 1 not in driver.answer.ready
        assert driver.episodes[1][-1].end == ""
        driver.file(lanes.recv(10.0))
        assert driver.episodes[1][-1].end == "env_died: its worker process was killed by SIGKILL"
        driver.run(lambda: driver.answers[1] > 20)
        assert lanes.faults == {"env_died": 1}


def test_a_death_is_told_with_what_another_has_answered() -> None:
    with closing(workers(2, 2, longest=1000, containment=Containment(backoff=1000.0))) as lanes:
        driver = Driver(lanes, 2)
        lanes.send(np.array([0], np.int32), (np.zeros(1),))
        kill_once_answered(lanes, 1, 0)
        driver.file(lanes.recv(10.0))
        assert driver.answers == {0: 1}
        assert driver.episodes[1][-1].end == "env_died: its worker process was killed by SIGKILL"


def test_what_was_wished_for_an_env_outlives_a_worker_that_had_answered() -> None:
    with closing(workers(2, 2, longest=1000, containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 2)
        lanes.send(driver.answer.ready, driver.act(driver.answer))
        lanes.reset_env(1, {"level": 7})
        kill_once_answered(lanes, 1, 1)
        driver.file(lanes.recv(10.0))
        driver.run(lambda: len(driver.episodes[1]) > 1)
        assert driver.answers[1] == 1
        told = [(episode.end, episode.options) for episode in driver.episodes[1]]
        assert told == [("reset", None), ("", '{"level": 7}')]
        assert lanes.faults == {"env_died": 1}


def test_what_another_answers_while_a_budget_is_used_up_is_handed_over_before_that_is_told() -> None:
    containment = Containment(backoff=0.0, max_rebuilds=0)
    with closing(workers(2, 2, containment=containment, wrong="raise", bad=1, one_in=1, longest=1000)) as lanes:
        driver = Driver(lanes, 2)
        processes(lanes)[0].send_signal(signal.SIGSTOP)
        lanes.send(driver.answer.ready, driver.act(driver.answer))
        driver.file(lanes.recv(10.0))
        assert (driver.answers, lanes.faults) == ({}, {"env_raised": 1})
        processes(lanes)[0].send_signal(signal.SIGCONT)
        assert lanes.next_episode.tolist() == [1, 1]  # what is in flight is waited for, and not handed over
        driver.file(lanes.recv(0.0))
        assert driver.answers == {0: 1}
        with pytest.raises(EnvError, match="env 1 failed 1 times in a row"):
            lanes.recv(0.0)


def test_a_worker_that_died_after_it_told_of_a_fault_is_not_lost_again_later() -> None:
    clock = Clock()
    containment = Containment(backoff=1.0)
    with closing(workers(2, 2, wrong="raise", bad=1, one_in=1, containment=containment, clock=clock)) as lanes:
        driver = Driver(lanes, 2)
        lanes.send(np.array([1], np.int32), (np.zeros(1),))
        kill_once_answered(lanes, 1, 1)
        driver.file(lanes.recv(10.0))
        assert driver.episodes[1][-1].end.startswith("env_raised")
        assert lanes.faults == {"env_raised": 1}
        # Its env is due, and env 0 answers meanwhile.
        clock.now = 1.0
        lanes.send(np.array([0], np.int32), (np.zeros(1),))
        driver.file(lanes.recv(10.0))
        driver.run(lambda: len(driver.episodes[1]) > 1)
        assert lanes.faults == {"env_raised": 1}


def test_a_worker_that_is_closed_while_it_starts_again_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(workers(2, 2, containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 2)
        processes(lanes)[1].kill()
        driver.run(lambda: lanes._workers.lanes[1].state is State.STARTING)
    assert capfd.readouterr().err == ""


def test_a_lost_worker_is_no_fault_of_an_env_that_was_down() -> None:
    with closing(workers(2, 1, wrong="raise", bad=1, one_in=1, containment=Containment(backoff=1000.0))) as lanes:
        driver = Driver(lanes, 2)
        driver.run(lambda: bool(driver.episodes[1][-1].end))
        processes(lanes)[0].kill()
        driver.run(lambda: driver.episodes[0][-1].end.startswith("env_died"))
        assert lanes.faults == {"env_raised": 1, "env_died": 1}


def test_an_action_that_a_lost_worker_had_not_been_told_of_is_gone_with_its_episode() -> None:
    with closing(workers(2, 1, wrong="kill", bad=0, one_in=1, containment=Containment(backoff=0.0))) as lanes:
        driver = Driver(lanes, 2)
        lanes.send(np.array([0], np.int32), (np.zeros(1),))
        lanes.send(np.array([1], np.int32), (np.zeros(1),))  # the worker is busy with the other
        until = time.monotonic() + 20
        while len(driver.episodes[0]) + len(driver.episodes[1]) < 4:
            driver.file(lanes.recv(1.0))
            assert time.monotonic() < until
        assert lanes.faults == {"env_died": 2}
        assert driver.answers.total() == 0


def test_what_a_worker_answered_is_handed_over_before_it_is_told_of_the_next_actions() -> None:
    with closing(workers(3, 2, longest=1000)) as lanes:
        driver = Driver(lanes, 3)
        lanes.send(np.array([0], np.int32), (np.zeros(1),))
        lanes.send(np.array([1], np.int32), (np.ones(1),))  # its worker is busy with the other
        assert lanes.next_episode.tolist() == [1, 1, 1]  # what is in flight is waited for, and not handed over
        lanes.send(np.array([2], np.int32), (np.zeros(1),))
        assert lanes.next_episode.tolist() == [1, 1, 1]
        answer = lanes.recv(10.0)
        driver.file(answer)
        assert answer.ready.tolist() == [0, 2]
        driver.file(lanes.recv(10.0))
        assert driver.answers == {0: 1, 1: 1, 2: 1}
        assert [episodes[0].rewards for episodes in driver.episodes] == [[0.0], [1.0], [0.0]]


def test_the_next_episodes_are_set_when_what_is_in_flight_is_done() -> None:
    seeds = Seeds(7, "pod-0")
    with closing(workers(2, 1, longest=1, slow=1)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(2),))
        lanes.next_episode = np.array([100, 200])
        told = lanes.next_episode
        for episodes in ((1, 1), (100, 200)):
            answer = lanes.recv(10.0)
            assert answer.resets is not None
            assert answer.resets.seed is not None
            assert answer.resets.seed.tolist() == [seeds.episode(*each) for each in enumerate(episodes)]
            lanes.send(answer.ready, (np.zeros(2),))
        assert told.tolist() == [100, 200]
        assert lanes.next_episode.tolist() == [102, 202]


def test_a_worker_killed_while_all_are_reset_comes_back() -> None:
    with closing(workers(2, 2, containment=Containment(backoff=0.0))) as lanes:
        lanes.reset()
        processes(lanes)[0].kill()
        processes(lanes)[0].wait()
        answer = lanes.reset()
        assert answer.resets is not None
        assert answer.ready.tolist() == [1]
        until = time.monotonic() + 20
        while lanes.recv(1.0).ready.tolist() != [0]:
            assert time.monotonic() < until


def test_envs_that_cannot_be_made_are_told_by_the_worker() -> None:
    with pytest.raises(EnvError, match=r"has no attribute|nobody"):
        workers(2, 2, env="nobody")


def test_a_space_that_is_not_mapped_is_told_as_it_is_without_workers() -> None:
    with pytest.raises(SpaceError, match=r"^environment .*: observation space: .*Sequence is not mapped"):
        workers(1, 1, env="unmapped")


def test_what_is_in_flight_is_waited_for_without_spinning_while_an_env_is_due() -> None:
    with closing(workers(2, 2, slow=0, wrong="raise", bad=1, one_in=1, containment=Containment(backoff=0.01))) as lanes:
        driver = Driver(lanes, 2)
        driver.run(lambda: lanes.faults.total() == 1)
        waits = []
        wait = lanes._workers.wait
        lanes._workers.wait = lambda *given: waits.append(given) or wait(*given)  # type: ignore[method-assign,func-returns-value]  # counted
        assert lanes._workers.busy  # env 0 takes its time
        assert lanes.next_episode[0] > 0
        assert 0 < len(waits) < 10


def test_those_that_were_made_are_closed_where_another_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="no room for a fourth"):
        workers(4, 2, env="incomplete", folder=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_settings_that_no_worker_can_be_given_leave_nothing_open() -> None:
    before = open_files()
    with pytest.raises(EnvError, match="not plain JSON"):
        workers(2, 2, wrong={"raise"})
    assert not open_files() - before


@pytest.mark.parametrize("room", range(9))
def test_workers_for_which_there_is_no_room_leave_nothing_open(room: int) -> None:
    before = open_files()
    with pytest.raises(OSError, match="Too many open files"), no_more_files_than(room):
        workers(2, 2)
    assert not open_files() - before


def test_more_seeds_than_a_socket_holds_keep_nobody_waiting() -> None:
    seeds = ListedSeeds(range(1 << 62, (1 << 62) + 100_000), 2)
    source = EnvSource("tests.producers.lanes_zoo:course", {}, (), "pod-0")
    # Nothing is waited for but the workers' hello: what they are told lies there before they can read.
    with closing(Lanes.workers(source, 2, 2, seeds=seeds, containment=Containment(step_timeout=0.01))) as lanes:
        assert [process.poll() for process in processes(lanes)] == [None, None]


def test_an_answer_longer_than_its_socket_holds_is_no_hang() -> None:
    clock = Clock()
    with closing(workers(1, 1, env="novel", containment=Containment(step_timeout=5.0), clock=clock)) as lanes:
        lanes.send(lanes.reset().ready, (np.array(["a"], object),))
        (lane,) = lanes._workers.lanes
        assert select.select([lane.filenos[0]], [], [], 10.0)[0]
        processes(lanes)[0].send_signal(signal.SIGSTOP)  # with a part of its answer still to be sent
        clock.now = 6.0
        assert lanes.recv(0.0).steps is None
        processes(lanes)[0].send_signal(signal.SIGCONT)
        answer = lanes.recv(10.0)
        assert answer.steps is not None
        assert len(answer.steps.observation[0][0]) == 1 << 20


def test_a_worker_that_takes_no_long_order_is_lost_as_one_that_hangs() -> None:
    clock, containment = Clock(), Containment(step_timeout=0.1, backoff=1000.0)
    with closing(workers(1, 1, env="novel", containment=containment, clock=clock)) as lanes:
        ready = lanes.reset().ready
        processes(lanes)[0].send_signal(signal.SIGSTOP)
        lanes.send(ready, (np.array(["a" * (1 << 20)], object),))
        clock.now = 1.0
        (abort,) = lanes.recv(10.0).aborts
        assert abort.reason == "env_hung: no answer within 0.1 s: its worker process was killed"


def test_a_hang_while_an_env_is_made_anew_is_told_with_the_time_that_it_had(tmp_path: Path) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"path": str(tmp_path / "made"), "wrong": "raise", "bad": 1, "one_in": 1}
    with closing(
        workers(2, 2, env="stuck", containment=Containment(backoff=0.0, step_timeout=5.0), clock=clock, **settings)
    ) as lanes:
        driver = Driver(lanes, 2)
        driver.run(lambda: lanes.faults["env_raised"] == 1)
        driver.run(lambda: lanes._workers.lanes[1].state is State.BUSY)
        clock.now = 121.0
        driver.run(lambda: lanes.faults["env_hung"] == 1)
        assert lanes.last_fault[1] == "env_hung: no answer within 120 s: its worker process was killed"


def test_an_env_that_is_parked_begins_no_more_and_loses_nothing_with_its_worker() -> None:
    with closing(workers(2, 1)) as lanes:
        lanes.before_reset = lambda env, episode: lanes.park(env) if env == 0 and episode == 2 else None
        driver = Driver(lanes, 2)
        driver.run(lambda: len(driver.episodes[1]) == 12)
        assert [bool(episode.end) for episode in driver.episodes[0]] == [True, True]
        assert lanes.parked == {0}
        lanes._workers.lanes[0]._process.kill()
        driver.run(lambda: len(driver.episodes[1]) == 24)
        assert lanes.faults == {"env_died": 1}
        assert len(driver.episodes[0]) == 2
        with pytest.raises(EnvError, match="env 0 is parked for good"):
            lanes.reset_env(0)


def test_a_hang_in_close_hides_no_fault_and_is_one_of_making_the_env_anew() -> None:
    clock = Clock()
    settings: dict[str, Any] = {"wrong": "raise", "bad": 1, "one_in": 1, "containment": Containment(backoff=1.0)}
    with closing(workers(2, 1, env="clingy", clock=clock, **settings)) as lanes:
        driver = Driver(lanes, 2)
        for _ in range(3):
            driver.step()
        assert (driver.answers, lanes.faults) == ({0: 3}, {"env_raised": 1})
        assert driver.episodes[1][0].end.startswith("env_raised: step() raised RuntimeError: boom")
        clock.now = 1.0
        driver.step(0.0)
        clock.now = 121.0
        driver.run(lambda: lanes.faults["env_hung"] == 2)
        assert lanes.last_fault[1] == "env_hung: no answer within 120 s: its worker process was killed"


def test_a_hang_while_an_env_draws_itself_is_told_as_one() -> None:
    settings: dict[str, Any] = {"containment": Containment(step_timeout=0.5, backoff=0.0), "clock": Clock()}
    with closing(workers(2, 2, env="frozen", longest=1000, lockstep=True, **settings)) as lanes:
        driver = Driver(lanes, 2)
        with pytest.raises(EnvError, match=r"environment '.*:frozen': env 1: .* render\(\) gave nothing within 0.5 s"):
            lanes.render(1)
        driver.run(lambda: len(driver.episodes[1]) > 1)
        reason = "env_hung: render() gave nothing within 0.5 s: its worker process was killed"
        assert driver.episodes[1][0].end == reason
        processes(lanes)[0].kill()
        processes(lanes)[0].wait()
        with pytest.raises(EnvError, match=r"env 0: .* was killed by SIGKILL"):
            lanes.render(0)
        assert lanes.faults == {"env_hung": 1, "env_died": 1}


def test_what_goes_wrong_while_an_env_draws_itself_is_told() -> None:
    with closing(workers(4, 2, env="undrawn", containment=Containment(backoff=1000.0))) as lanes:
        lanes.reset()
        assert [lanes.render(env) for env in (0, 2)] == [None, None]
        with pytest.raises(EnvError, match=r"env 3: render\(\) raised RuntimeError: no screen"):
            lanes.render(3)
        with pytest.raises(EnvError, match=r"env 1: it could not be drawn: .* was killed by SIGKILL"):
            lanes.render(1)
        assert lanes.render(1) is None  # it is down
        assert lanes.faults == {"env_died": 2}


def test_options_that_a_lost_worker_had_not_been_told_of_are_those_of_the_next_reset() -> None:
    with closing(workers(2, 2, longest=1000)) as lanes:
        driver = Driver(lanes, 2)
        processes(lanes)[0].kill()
        processes(lanes)[0].wait()
        lanes.reset_env(0, {"level": 7})
        driver.file(lanes.recv(10.0))
        assert driver.episodes[0][0].end == "reset"
        driver.run(lambda: len(driver.episodes[0]) > 1)
        assert driver.episodes[0][1].options == '{"level": 7}'
