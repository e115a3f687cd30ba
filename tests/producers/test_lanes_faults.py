from __future__ import annotations

import math
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest

from penstock_producers.envs.lanes import Containment, Lanes
from penstock_producers.envs.lanes.recovery import Recovery
from penstock_producers.envs.seeds import Seeds
from penstock_schemas.errors import EnvError
from tests.producers.lanes_driving import BAD, QUICK, Clock, Driver, check_siblings, local, workers
from tests.producers.lanes_zoo import FAULT_OF, IN_RESET, KINDS, Course, brittle

if TYPE_CHECKING:
    from collections.abc import Callable


def check_aborts(driver: Driver, kind: str, least: int) -> None:
    reasons = [episode.end for episode in driver.episodes[BAD] if episode.end.startswith("env_")]
    assert {reason.partition(": ")[0] for reason in reasons} <= {kind}
    assert set(driver.lanes.faults) == {kind}
    assert driver.lanes.faults[kind] >= least
    assert all(len(reason) <= len(kind) + 2 + 200 for reason in reasons)
    # What was faulty is no row: an aborted episode has one observation more than steps too.
    assert all(len(episode.observations) == len(episode.rewards) + 1 for episode in driver.episodes[BAD])
    seeds = [episode.seed for episode in driver.episodes[BAD]]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("wrong", KINDS)
def test_an_env_that_goes_wrong_at_random_costs_its_own_episodes_only(wrong: str) -> None:
    with closing(local(4, wrong=wrong, bad=BAD)) as lanes:
        driver = Driver(lanes, 4)
        driver.run(lambda: sum(driver.answers.values()) >= 4000)
        check_aborts(driver, FAULT_OF[wrong], 50)
        assert driver.answers[BAD] >= 200
        if wrong not in IN_RESET:  # those fail between two episodes
            assert sum(episode.end.startswith(FAULT_OF[wrong]) for episode in driver.episodes[BAD]) >= 50
    check_siblings(driver, local(4), 4)


@pytest.mark.parametrize(
    ("lockstep", "wrong"), [(False, "raise"), (False, "outside"), (True, "spaces"), (True, "exit")]
)
def test_workers_contain_the_same(lockstep: bool, wrong: str) -> None:
    with closing(workers(4, 2, lockstep=lockstep, wrong=wrong, bad=BAD)) as lanes:
        driver = Driver(lanes, 4)
        driver.run(lambda: min(driver.answers[env] for env in range(4)) >= 300)
        check_aborts(driver, FAULT_OF[wrong], 20)
    check_siblings(driver, local(4), 4)


class Unmapped(gymnasium.Env[Any, Any]):
    """Its spaces become ones that are not mapped when it is reset."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))
        self.action_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))
        return np.zeros(1, np.float32), {}


def test_spaces_that_are_no_longer_mapped_are_a_fault() -> None:
    lanes = Lanes.existing([Unmapped()], seeds=Seeds(7, "pod-0"), containment=QUICK)
    with closing(lanes), pytest.raises(EnvError, match=r"env 0 .*env_spaces"):
        Driver(lanes, 1).run(lambda: False, most=100)


@pytest.mark.parametrize("make", [local, workers])
@pytest.mark.parametrize("wrong", ["raise", "raise_in_reset"])
def test_faults_while_infos_are_typed_are_contained_too(make: Callable[..., Lanes], wrong: str) -> None:
    with closing(make(2, infos=["count"], wrong=wrong, bad=0, one_in=5)) as lanes:  # in its first two episodes
        assert [column.name for column in lanes.infos] == ["info.count"]
        driver = Driver(lanes, 2)
        driver.run(lambda: min(driver.answers[0], driver.answers[1]) > 20)
        assert driver.episodes[0][0].seed == Seeds(7, "pod-0").episode(0, 0 if wrong == "raise" else 2)
    with pytest.raises(EnvError, match=r"first 5 episodes, each of which failed, the last one with RuntimeError: "):
        make(2, infos=["count"], wrong=wrong, bad=0, one_in=1)
    make(2, infos=["count"], wrong=wrong, bad=1, one_in=1).close()  # the first env alone is asked


@pytest.mark.parametrize("wrong", ["hang", "leave", "kill", "fork", "signal"])
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_worker_of_its_own_contains_what_a_process_cannot(wrong: str, lockstep: bool) -> None:
    containment = Containment(step_timeout=1.0, backoff=0.0, max_rebuilds=1000)
    with closing(workers(3, 3, lockstep=lockstep, containment=containment, wrong=wrong, bad=BAD, one_in=8)) as lanes:
        driver = Driver(lanes, 3)
        driver.run(lambda: lanes.faults.total() >= 3 and driver.answers[BAD] >= 6)
        check_aborts(driver, FAULT_OF[wrong], 3)
        detail = {
            **dict.fromkeys(("hang", "leave"), "no answer within 1 s"),
            **dict.fromkeys(("kill", "fork"), "killed by SIGKILL"),
            "signal": "killed by signal 40",
        }[wrong]
        assert all(detail in e.end for e in driver.episodes[BAD] if e.end.startswith("env_"))
        if not lockstep:  # the siblings did not wait
            assert min(driver.answers[0], driver.answers[2]) > 10 * driver.answers[BAD]
    check_siblings(driver, local(3), 3)


def test_a_lost_worker_costs_an_episode_of_each_of_its_envs() -> None:
    with closing(workers(4, 2, wrong="kill", bad=BAD, one_in=20)) as lanes:
        driver = Driver(lanes, 4)
        driver.run(lambda: lanes.faults.total() >= 2 and driver.answers[0] > 20)
        assert lanes.faults["env_died"] % 2 == 0
        assert all(any(e.end.startswith("env_died") for e in driver.episodes[env]) for env in (0, BAD))
        assert not any(e.end.startswith("env_") for env in (2, 3) for e in driver.episodes[env])


def test_an_env_is_rebuilt_after_its_back_off_and_no_earlier() -> None:
    clock = Clock()
    made: list[Course] = []

    def make(index: int) -> Course:
        made.append(Course(index, 1000, wrong="raise", bad=BAD, one_in=1))
        return made[-1]

    lanes = Lanes.local(make, 2, seeds=Seeds(7, "p"), containment=Containment(backoff=2.0), clock=clock)
    with closing(lanes):
        driver = Driver(lanes, 2)
        for wait in (2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            driver.step()
            assert driver.answer.ready.tolist() == [0]
            assert lanes.envs[BAD] is None
            assert lanes.render(BAD) is None
            count = len(made)
            clock.now += wait - 0.001
            driver.step()
            assert len(made) == count
            assert made[-1].closed == 0
            clock.now += 0.001
            driver.step()
            assert len(made) == count + 1
            assert made[-2].closed == 1
            assert driver.answer.ready.tolist() == [0, 1]
        assert [env.closed for env in made] == [0] + [1] * 6 + [0]
        driver.step()
    assert [env.closed for env in made] == [1] * 8  # also the one that is down


def test_an_env_is_tried_again_as_soon_as_it_is_due_however_long_an_answer_may_take() -> None:
    settings: dict[str, Any] = {"longest": 1000, "wrong": "raise", "bad": 0, "one_in": 1}
    with closing(local(1, containment=Containment(backoff=0.01), **settings)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(1),))
        assert len(lanes.recv(math.inf).aborts) == 1
        assert lanes.recv(math.inf).ready.tolist() == [0]


@pytest.mark.parametrize("make", [local, workers])
def test_a_budget_used_up_fails_after_everything_was_handed_over(make: Callable[..., Lanes]) -> None:
    containment = Containment(backoff=0.0, max_rebuilds=2)
    with closing(make(3, containment=containment, wrong="raise", bad=BAD, one_in=1, longest=1000)) as lanes:
        driver = Driver(lanes, 3)
        with pytest.raises(EnvError, match=r"env 1 failed 3 times in a row.*env_raised: step\(\) raised.*allow more"):
            driver.run(lambda: False)
        assert [episode.end[:10] for episode in driver.episodes[BAD]] == ["env_raised"] * 3
        assert driver.answers[0] >= 3
        with pytest.raises(EnvError, match="env 1 failed"):
            lanes.recv(0.0)


def test_a_budget_used_up_in_what_a_reset_leaves_is_told_by_the_reset() -> None:
    containment = Containment(backoff=0.0, max_rebuilds=0)
    with closing(workers(2, 1, containment=containment, wrong="raise", bad=BAD, one_in=1, longest=1000)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(2),))
        for _ in range(2):
            with pytest.raises(EnvError, match="env 1 failed 1 times in a row"):
                lanes.reset()


def test_what_is_due_next_is_told_also_while_another_waits_for_its_worker() -> None:
    clock = Clock()
    recovery = Recovery(3, name="zoo", containment=Containment(backoff=1.0), clock=clock, can_rebuild=True)
    recovery.failed(0, "env_raised")
    clock.now = 0.5
    recovery.failed(1, "env_raised")
    assert recovery.next_due() == 1.0
    clock.now = 1.0
    assert recovery.due() == [0]  # and stays so: its worker is busy
    assert [recovery.backs_off(env) for env in range(3)] == [False, True, False]
    assert recovery.next_due() == 1.5
    clock.now = 1.6  # nobody has looked since
    assert recovery.next_due() == 1.5
    assert recovery.due() == [0, 1]
    assert recovery.next_due() is None


def test_the_longest_back_off_stays_the_longest_however_often_an_env_fails() -> None:
    settings = Containment(backoff=1.0, max_rebuilds=2_000)
    recovery = Recovery(1, name="zoo", containment=settings, clock=Clock(), can_rebuild=True)
    for _ in range(2_000):
        recovery.failed(0, "env_raised")
    assert recovery.next_due() == 30.0


def test_an_episode_that_ends_by_itself_gives_the_whole_budget_again() -> None:
    with closing(local(2, containment=Containment(backoff=0.0, max_rebuilds=4), wrong="nan", bad=BAD)) as lanes:
        driver = Driver(lanes, 2)
        driver.run(lambda: lanes.faults["env_observation"] > 20)


@pytest.mark.parametrize(("good", "fails"), [(999, True), (1000, False)])
def test_a_thousand_good_steps_in_a_row_give_the_whole_budget_again(good: int, fails: bool) -> None:
    """In an env that never ends an episode."""

    class Rare(Course):
        def step(self, action: Any) -> Any:
            if self.env_index == BAD and self.count == good:
                raise RuntimeError("now and then")
            return super().step(action)

    # Its sibling goes on beyond its bounds meanwhile.
    containment = Containment(backoff=0.0, max_rebuilds=1, check_bounds=False)
    with closing(
        Lanes.local(lambda index: Rare(index, 10**9), 2, seeds=Seeds(7, "p"), containment=containment)
    ) as lanes:
        driver = Driver(lanes, 2)
        if fails:
            with pytest.raises(EnvError, match="env 1 failed 2 times in a row"):
                driver.run(lambda: False)
        else:
            driver.run(lambda: lanes.faults.total() >= 4)


def test_the_health_of_one_env_gives_no_other_its_budget_again() -> None:
    settings = Containment(max_rebuilds=1)
    recovery = Recovery(2, name="zoo", containment=settings, clock=Clock(), can_rebuild=True)
    recovery.failed(1, "env_raised")
    for _ in range(3):
        recovery.failed(0, "env_raised")
        recovery.ended(np.array([0]))
    recovery.failed(0, "env_raised")
    for _ in range(1000):
        recovery.stepped(np.array([0]))
    recovery.failed(0, "env_raised")
    assert recovery.failure is None
    recovery.failed(1, "env_raised")
    assert "env 1 failed 2 times in a row" in str(recovery.failure)


def test_the_env_that_failed_last_stands_last_among_the_faults() -> None:
    envs = [Course(0, 1000), Course(1, 1000)]
    with closing(Lanes.existing(envs, seeds=Seeds(7, "p"), containment=QUICK)) as lanes:
        driver = Driver(lanes, 2)
        for bad in (0, 1, 0):
            envs[bad].wrong, envs[bad].one_in = "raise", 1
            driver.step()
            envs[bad].wrong = ""
            driver.step()  # it is reset
        assert lanes.faults == {"env_raised": 3}
        assert list(lanes.last_fault) == [1, 0]


def test_existing_envs_are_reset_after_a_fault_then_parked() -> None:
    envs = [Course(0, wrong="raise", bad=0, one_in=3), Course(1), Course(2, 1000, wrong="raise", bad=2, one_in=20)]
    with closing(Lanes.existing(envs, seeds=Seeds(7, "p"), containment=QUICK)) as lanes:
        driver = Driver(lanes, 3)
        driver.run(lambda: lanes.faults["env_raised"] > 20)
        assert [env.closed for env in envs] == [0, 0, 0]
        assert all(len(driver.episodes[env]) > 3 for env in (0, 1, 2))
        with pytest.raises(EnvError, match="cannot be rebuilt"):
            lanes.rebuild(0, longest=3)
        for env in (0, 2):  # from now on no reset mends them
            envs[env].wrong, envs[env].one_in = "raise_in_reset", 1
            driver.run(lambda env=env: bool(driver.episodes[env][-1].end) and env not in driver.answer.ready)  # type: ignore[misc]  # bound now
        before = dict(driver.answers)
        for _ in range(50):
            driver.step()
        assert driver.answers[1] == before[1] + 50
        assert driver.answers[0] == before[0]
        with pytest.raises(EnvError, match="parked"):
            lanes.reset_env(0)
        envs[1].wrong, envs[1].env_index, envs[1].one_in = "raise_in_reset", 1, 1
        with pytest.raises(EnvError, match="all 3 envs are parked"):
            driver.run(lambda: False)


def test_an_env_that_fails_keeps_the_settings_with_which_it_was_rebuilt() -> None:
    with closing(local(2, longest=1000, wrong="raise", bad=BAD, one_in=2)) as lanes:
        driver = Driver(lanes, 2)
        lanes.rebuild(BAD, longest=1)
        driver.run(lambda: lanes.faults.total() > 5)
        assert max(len(episode.rewards) for episode in driver.episodes[BAD]) == 1


def test_an_env_that_is_reset_while_it_is_down_begins_once_and_with_the_options() -> None:
    clock, made = Clock(), list[Course]()

    def make(index: int) -> Course:
        made.append(Course(index, 1000, wrong="raise" if len(made) < 2 else "", bad=BAD, one_in=1))
        return made[-1]

    lanes = Lanes.local(make, 2, seeds=Seeds(7, "p"), containment=Containment(backoff=1.0), clock=clock)
    with closing(lanes):
        driver = Driver(lanes, 2)
        driver.step()
        lanes.reset_env(BAD, {"level": 4})
        clock.now = 1.0
        driver.run(lambda: driver.answers[BAD] == 3)
        assert [episode.end[:10] for episode in driver.episodes[BAD]] == ["env_raised", ""]
        assert driver.episodes[BAD][1].options == '{"level": 4}'


def test_an_env_that_is_down_while_all_are_reset_begins_later_and_with_the_options() -> None:
    clock, containment = Clock(), Containment(backoff=30.0)
    envs = [Course(0, 1000), Course(BAD, 1000, wrong="raise", bad=BAD, one_in=1)]
    with closing(Lanes.existing(envs, seeds=Seeds(7, "p"), containment=containment, clock=clock)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(2),))
        assert lanes.recv().ready.tolist() == [0]
        assert lanes.reset({"level": 4}).ready.tolist() == [0]
        clock.now = 30.0
        resets = lanes.recv().resets
        assert resets is not None
        assert resets.options is not None
        assert (resets.env.tolist(), resets.options.tolist()) == ([BAD], ['{"level": 4}'])
        assert lanes.faults == {"env_raised": 1}


def test_an_env_that_is_parked_is_left_out_when_all_are_reset() -> None:
    envs = [Course(0), Course(BAD, wrong="raise_in_reset", bad=BAD, one_in=1)]
    with closing(Lanes.existing(envs, seeds=Seeds(7, "p"), containment=QUICK)) as lanes:
        assert lanes.reset().ready.tolist() == [0]
        assert lanes.recv(0.0).steps is None
        assert (lanes.parked, lanes.faults) == ({BAD}, {"env_raised": 2})
        assert lanes.reset().ready.tolist() == [0]
        assert lanes.faults == {"env_raised": 2}


def test_a_reset_after_one_with_options_that_failed_is_recorded_without_them() -> None:
    class Picky(Course):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if options:
                raise RuntimeError("no such level")
            return super().reset(seed=seed)

    with closing(Lanes.local(lambda i: Picky(i, 1000), 2, seeds=Seeds(7, "p"), containment=QUICK)) as lanes:
        driver = Driver(lanes, 2)
        lanes.reset_env(BAD, {"level": 4})
        driver.run(lambda: len(driver.episodes[BAD]) == 2)
        assert [(episode.end, episode.options) for episode in driver.episodes[BAD]] == [("reset", None), ("", None)]
        assert lanes.faults == {"env_raised": 1}


@pytest.mark.parametrize("make", [local, workers])
def test_what_is_outside_the_bounds_is_let_pass_where_that_is_set(make: Callable[..., Lanes]) -> None:
    with closing(make(2, containment=Containment(check_bounds=False), wrong="outside", bad=BAD)) as lanes:
        driver = Driver(lanes, 2)
        driver.run(lambda: driver.answers[BAD] > 50)
        assert not lanes.faults
        assert max(o[0][0] for e in driver.episodes[BAD] for o in e.observations) > 1000


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_an_env_that_cannot_be_made_again_uses_up_its_budget(kind: str, tmp_path: Any) -> None:
    path = str(tmp_path / "made")
    containment = Containment(backoff=0.0, max_rebuilds=2)
    settings: dict[str, Any] = {"wrong": "raise", "bad": BAD, "path": path}
    if kind == "workers":
        lanes = workers(2, 1, containment=containment, env="brittle", **settings)
    else:
        lanes = Lanes.local(lambda i: brittle(i, **settings), 2, seeds=Seeds(7, "p"), containment=containment)
    with closing(lanes):
        driver = Driver(lanes, 2)
        with pytest.raises(EnvError, match=r"env 1 failed 3 times.*making it anew raised .*its port is taken"):
            driver.run(lambda: False)


class Foreign:
    """What a number must not be."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not for numpy")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((np.zeros(3, np.float32), 0.0, False, False), r"env_raised: step\(\) gave a tuple of 4, no tuple of 5"),
        (None, r"env_raised: step\(\) gave a NoneType, no tuple of 5"),
        ((np.zeros(3, np.float32), None, False, False, {}), "env_reward: the reward is no number but a NoneType"),
        ((np.zeros(3, np.float32), np.nan, False, False, {}), "env_reward: the reward is not finite: nan"),
        ((np.zeros(3, np.float32), -math.inf, False, False, {}), "env_reward: the reward is not finite: -inf"),
        ((np.zeros(3, np.float32), [1.0], False, False, {}), "env_reward: the reward is no number but a list"),
        ((None, 0.0, False, False, {}), "env_observation: observation: it is a NoneType, .* has shape"),
        ((Foreign(), 0.0, False, False, {}), "env_raised: reading what it gave raised RuntimeError: not for numpy"),
        ((np.zeros((3, 1)), 0.0, False, False, {}), r"env_observation: observation: it is an array of shape \(3, 1\)"),
        (
            (np.zeros(3, np.int32), 0.0, False, False, {}),
            "env_observation: .* dtype int32, but its space has .* float32",
        ),
        ((np.zeros(3, np.float32), 0.0, False, False, [1]), "env_info: the info is no dict but a list"),
        ((np.zeros(3, np.float32), 0.0, np.zeros(2), False, {}), r"env_raised: step\(\) gave a ndarray where a bool"),
        ((np.zeros(3, np.float32), 0.0, False, np.array([True]), {}), r"env_raised: step\(\) gave a ndarray where a "),
        ((np.zeros(3, np.float32), 0.0, "False", False, {}), r"env_raised: step\(\) gave a str where a bool belongs"),
        ((np.zeros(3, np.float32), 0.0, False, np.nan, {}), r"env_raised: step\(\) gave a float where a bool belongs"),
        ((np.zeros(3, np.float32), 0.0, None, False, {}), r"env_raised: step\(\) gave a NoneType where a bool"),
    ],
)
def test_each_wrong_answer_is_named(answer: Any, reason: str) -> None:
    class Wrong(Course):
        def step(self, action: Any) -> Any:
            return answer if self.env_index == BAD else super().step(action)

    with closing(Lanes.local(lambda index: Wrong(index, 1000), 2, seeds=Seeds(7, "p"))) as lanes:
        first = lanes.reset()
        lanes.send(first.ready, (np.zeros(2),))
        second = lanes.recv()
        assert second.steps is not None
        assert second.steps.env.tolist() == second.ready.tolist() == [0]
        assert [abort.env for abort in second.aborts] == [BAD]
        assert re.match(reason, second.aborts[0].reason), second.aborts[0].reason


def test_a_factory_that_gives_no_env_is_told() -> None:
    made: list[Any] = []

    def make(index: int) -> Any:
        made.append(index)
        return Course(index, wrong="raise", bad=0, one_in=1) if len(made) == 1 else "env"

    lanes = Lanes.local(make, 1, seeds=Seeds(7, "p"), containment=Containment(backoff=0.0, max_rebuilds=1))
    with closing(lanes):
        driver = Driver(lanes, 1)
        with pytest.raises(EnvError, match=r"gave a str, no gymnasium.Env"):
            driver.run(lambda: False)
