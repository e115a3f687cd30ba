from __future__ import annotations

import json
import math
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from penstock_producers.envs.lanes import Lanes
from penstock_producers.envs.lanes.answers import succeed
from penstock_producers.envs.rows import Rows
from penstock_producers.envs.seeds import Seeds
from penstock_producers.envs.source import EnvSource
from penstock_schemas.errors import EnvError
from tests.producers.lanes_driving import Clock, Driver, local, workers
from tests.producers.lanes_zoo import Course, nested, undrawn

KINDS = {"local": local, "workers": workers, "lockstep": lambda *a, **k: workers(*a, lockstep=True, **k)}


def history(lanes: Lanes, steps: int = 25, n: int = 4) -> list[Any]:
    with closing(lanes):
        driver = Driver(lanes, n)
        driver.run(lambda: min(driver.answers[env] for env in range(n)) >= steps)
        # What each env did until it had taken so many steps, the rest left out.
        return [flat(episodes)[:steps] for episodes in driver.episodes]


def flat(episodes: list[Any]) -> list[Any]:
    return [
        (episode.seed, *pair)
        for episode in episodes
        for pair in zip(episode.observations, episode.infos, episode.rewards, strict=False)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_true_last_observations_and_seeded_reset_rows(kind: str) -> None:
    n, seeds = 5, Seeds(7, "pod-0")
    with closing(KINDS[kind](n, infos=["count"])) as lanes:
        driver = Driver(lanes, n)
        driver.run(lambda: min(driver.answers[env] for env in range(n)) >= 30)
    for env, episodes in enumerate(driver.episodes):
        assert len(episodes) > 4
        for number, episode in enumerate(episodes):
            assert episode.seed == seeds.episode(env, number)
            # The env steps into the buffer that it observes in: a row looked at too late would show the next one.
            steps = range(len(episode.rewards) + 1)
            assert episode.observations == [([env, episode.seed % 1000, step],) for step in steps]
            assert episode.infos == [(step,) for step in steps]
            if number < len(episodes) - 1:
                assert episode.end == ("truncated" if len(episode.rewards) % 2 else "terminated")
    taken = [reward for episode in driver.episodes[0] for reward in episode.rewards]
    assert taken == list(range(len(taken)))


def test_runs_and_kinds_give_the_same_rows() -> None:
    infos = ["count"]
    first = history(local(infos=infos))
    assert history(local(infos=infos)) == first
    assert history(Lanes.existing([Course(env) for env in range(4)], seeds=Seeds(7, "pod-0"), infos=infos)) == first
    assert history(workers(count=3, infos=infos)) == first
    assert history(workers(lockstep=True, infos=infos)) == first


@pytest.mark.parametrize("kind", KINDS)
def test_reset_leaves_what_was_open_and_takes_new_seeds(kind: str) -> None:
    with closing(KINDS[kind](4, longest=1000)) as lanes:
        first = lanes.reset()
        lanes.send(first.ready, (np.zeros(4),))
        second = lanes.reset()
        assert second.steps is None
        assert second.aborts == ()
        assert second.ready.tolist() == [0, 1, 2, 3]
        seeds = [rows.seed.tolist() for rows in (first.resets, second.resets) if rows and rows.seed is not None]
        assert len({*seeds[0], *seeds[1]}) == 8
        # That of one env was wanted to end, of which nothing was told yet.
        lanes.reset_env(0)
        assert lanes.reset().aborts == ()


def test_an_env_that_fails_while_all_are_reset_aborts_nothing() -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("no more episodes")

    with closing(local()) as lanes:
        lanes.reset()
        setattr(lanes.envs[0], "reset", broken)  # noqa: B010  (a method of the env's own)
        answer = lanes.reset()
        assert (answer.aborts, answer.ready.tolist()) == ((), [1, 2, 3])


def test_rows_hold_until_the_next_send_though_others_step_on() -> None:
    with closing(workers(4, 4, longest=1000, slow=2)) as lanes:
        answer = lanes.reset()
        lanes.send(answer.ready, (np.zeros(4),))
        held: list[Any] = []
        while sum(len(kept.env) for kept, _ in held) < 4:
            steps = lanes.recv(10.0).steps
            if steps is not None:
                held.append((steps, [leaf.copy() for leaf in steps.observation]))
        for steps, copied in held:
            assert all(np.array_equal(*pair) for pair in zip(steps.observation, copied, strict=True))


def test_an_action_is_only_for_an_env_that_waits() -> None:
    with closing(workers(2, 1, slow=1)) as lanes:
        answer = lanes.reset()
        lanes.send(answer.ready, (np.zeros(2),))
        with pytest.raises(ValueError, match=r"envs \[0, 1\] have not answered"):
            lanes.send(answer.ready, (np.zeros(2),))


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_nothing_in_time_is_an_answer_without_rows(kind: str) -> None:
    with closing(KINDS[kind](2)) as lanes:
        lanes.reset()
        answer = lanes.recv(0.01)
        assert (answer.steps, answer.aborts, answer.resets, len(answer.ready)) == (None, (), None, 0)
        assert [leaf.shape for leaf in answer.observation] == [(0, 3)]


@pytest.mark.parametrize("who", [[0, 1, 2], [0, 2]])
def test_an_env_may_keep_its_action(who: list[int]) -> None:
    """The next one does not show in it."""
    kept: list[list[Any]] = [[], [], []]

    class Keeper(Course):
        action_space = spaces.Box(-100, 100, (2,), np.float64)

        def step(self, action: Any) -> Any:
            kept[self.env_index].append(action)
            return super().step(action[0])

    with closing(Lanes.local(lambda index: Keeper(index, 1000), 3, seeds=Seeds(1, "p"))) as lanes:
        lanes.reset()
        for step in range(4):
            lanes.send(np.array(who, np.int32), (np.full((len(who), 2), float(step)),))
            lanes.recv()
    for env in who:
        assert [action.tolist() for action in kept[env]] == [[step, step] for step in range(4)]


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_nested_spaces_and_strings_pass_bit_for_bit(kind: str) -> None:
    seeds, infos = Seeds(1, "p"), ["told"]
    source = EnvSource("tests.producers.lanes_zoo:nested", {}, (), "p")
    made = (
        Lanes.local(nested, 3, seeds=seeds, infos=infos)
        if kind == "local"
        else Lanes.workers(source, 3, 2, seeds=seeds, infos=infos, lockstep=True)
    )
    with closing(made) as lanes:
        answer = lanes.reset()
        for step in range(1, 5):
            action = (np.array([0, 1, 2]), np.array(["a", "b", "abc"], object))
            lanes.send(answer.ready, action)
            answer = lanes.recv(10.0)
            bits, number, box, text = answer.steps.observation  # type: ignore[union-attr]  # they answered
            assert text.tolist() == ["ab\0"[: step % 4]] * 3
            assert number.tolist() == [step - 3] * 3
            assert np.array_equal(box, np.full((3, 2, 2), step / 8))
            assert bits.tolist() == [[1, 0, step % 2]] * 3
            values, valid = answer.steps.infos[0]  # type: ignore[union-attr]  # they answered
            assert valid.tolist() == [False, True, True]
            assert values.tolist() == [None, "b", "abc"]
            assert answer.steps.reward.tolist() == [0, 1, 2]  # type: ignore[union-attr]  # they answered


@pytest.mark.parametrize("kind", KINDS)
def test_one_env_is_reset_with_options(kind: str) -> None:
    with closing(KINDS[kind](3, longest=1000, infos=["options"])) as lanes:
        driver = Driver(lanes, 3)
        driver.step()
        driver.run(lambda: len(driver.answer.ready) > 0 and min(driver.answers[e] for e in range(3)) > 0)
        lanes.reset_env(1, {"level": 4})
        driver.run(lambda: len(driver.episodes[1]) == 2)
        aborted, begun = driver.episodes[1]
        assert aborted.end == "reset"
        assert json.loads(str(begun.options)) == {"level": 4}
        assert begun.infos[0] == ("{'level': 4}",)
        assert begun.seed == Seeds(7, "pod-0").episode(1, 1)
        assert [len(driver.episodes[env]) for env in (0, 2)] == [1, 1]
        with pytest.raises(EnvError, match="plain JSON"):
            lanes.reset_env(1, {"level": object()})


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_one_env_is_rebuilt_with_other_settings_that_stay(kind: str) -> None:
    with closing(KINDS[kind](3, longest=1000)) as lanes:
        driver = Driver(lanes, 3)
        lanes.rebuild(2, longest=1)
        driver.run(lambda: len(driver.episodes[2]) > 3 and driver.answers[0] > 3)
        assert driver.episodes[2][0].end == "rebuilt"
        assert [len(episode.rewards) for episode in driver.episodes[2][1:-1]] == [1] * (len(driver.episodes[2]) - 2)
        assert len(driver.episodes[0]) == 1


def test_an_action_that_was_not_taken_is_gone_with_a_reset_of_all() -> None:
    with closing(local(2, longest=1)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(2),))
        answer = lanes.reset()
        assert (answer.steps, answer.aborts, answer.ready.tolist()) == (None, (), [0, 1])
        assert lanes.next_episode.tolist() == [2, 2]  # it ended no episode
        assert answer.observation[0][:, 2].tolist() == [0.0, 0.0]


def test_an_action_for_what_a_reset_of_all_has_left_is_dropped_though_that_reset_raised() -> None:
    errors = [RuntimeError("no options yet")]

    def ask(env: int, episode: int) -> None:
        if episode and errors:
            raise errors.pop()

    with closing(local(2, longest=1000)) as lanes:
        lanes.before_reset = ask
        ready = lanes.reset().ready
        with pytest.raises(RuntimeError, match="no options yet"):
            lanes.reset()
        lanes.send(ready, (np.zeros(2),))
        answer = lanes.recv()
        assert (answer.steps, answer.aborts, answer.ready.tolist()) == (None, (), [0, 1])


def test_an_env_that_is_rebuilt_is_closed() -> None:
    with closing(local(2, longest=1000)) as lanes:
        driver = Driver(lanes, 2)
        before: Any = lanes.envs
        lanes.rebuild(1)
        driver.run(lambda: len(driver.episodes[1]) == 2)
        assert lanes.envs[1] is not before[1]
        assert [env.closed for env in before] == [0, 1]


def test_an_info_that_is_left_out_is_counted_once() -> None:
    class Odd(Course):
        def step(self, action: Any) -> Any:
            *answer, info = super().step(action)
            return *answer, {"count": "a text"} if self.count == 2 else info

    with closing(Lanes.local(lambda i: Odd(i, 1000), 2, seeds=Seeds(7, "p"), infos=["count"])) as lanes:
        driver = Driver(lanes, 2)
        driver.run(lambda: driver.answers[0] == 6)
        assert lanes.unstorable == {"count": 2}


def test_an_env_that_begins_out_of_turn_is_not_taken_for_one_that_ended() -> None:
    def rows(*envs: int) -> Rows:
        flags = np.zeros(len(envs), np.bool_)
        return Rows(np.array(envs, np.int32), (10.0 * np.array(envs),), np.zeros(len(envs)), flags, flags, flags)

    ready, observation = succeed(rows(0, 1, 2), np.array([True, False, False]), rows(3))
    assert ready.tolist() == [1, 2, 3]
    assert observation[0].tolist() == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("rebuilt_last", [False, True])
@pytest.mark.parametrize("kind", ["local", "workers"])
def test_what_is_wished_for_a_busy_env_adds_up(kind: str, rebuilt_last: bool) -> None:
    with closing(KINDS[kind](2, longest=1000)) as lanes:
        driver = Driver(lanes, 2)
        lanes.send(driver.answer.ready, driver.act(driver.answer))
        wishes = [partial(lanes.rebuild, 1, longest=1), partial(lanes.reset_env, 1, {"level": 4})]
        for wish in reversed(wishes) if rebuilt_last else wishes:
            wish()
        driver.file(lanes.recv(10.0))
        driver.run(lambda: len(driver.episodes[1]) > 3)
        assert driver.answers[1] > 0  # its step from before is there
        assert driver.episodes[1][0].end == ("rebuilt" if rebuilt_last else "reset")
        assert driver.episodes[1][1].options == '{"level": 4}'
        assert [len(episode.rewards) for episode in driver.episodes[1][1:3]] == [1, 1]
        assert [episode.options for episode in driver.episodes[1][2:]] == [None] * (len(driver.episodes[1]) - 2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_info_that_cannot_be_stored_is_counted_and_named_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(KINDS[kind](4, infos=["options"])) as lanes:
        lanes.reset({"long": "x" * 256})
        lanes.reset({"long": "y" * 256})
        assert lanes.unstorable == {"options": 8}
    (named,) = caplog.messages
    assert named.startswith("info 'options' is recorded with shape () and dtype object, so \"{'long': 'xxx")


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_one_env_draws_itself(kind: str) -> None:
    with closing(KINDS[kind](3)) as lanes:
        lanes.send(lanes.reset().ready, (np.zeros(3),))
        frame: Any = lanes.render(2)  # its step is waited for
        assert np.array_equal(frame, np.full((2, 3, 3), 2, np.uint8))
        frame[:] = 0  # who asked may draw on it
        assert lanes.recv(10.0).steps is not None


def test_what_an_env_raises_while_it_draws_itself_is_told() -> None:
    with closing(Lanes.local(undrawn, 4, seeds=Seeds(7, "p"), name="E")) as lanes:
        lanes.reset()
        assert lanes.render(0) is None
        with pytest.raises(EnvError, match=r"environment E: env 3: render\(\) raised RuntimeError: no screen"):
            lanes.render(3)
        assert lanes.faults == {}


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_settings_of_a_rebuilt_env_are_plain_json_where_they_go_to_a_worker(kind: str) -> None:
    circular: list[Any] = []
    circular.append(circular)
    with closing(KINDS[kind](2, longest=1000)) as lanes:
        driver = Driver(lanes, 2)
        for settings in ({1}, circular):
            if kind == "workers":
                with pytest.raises(EnvError, match="are not plain JSON, so no worker can be given them"):
                    lanes.rebuild(1, wrong=settings)
            else:
                lanes.rebuild(1, wrong=settings)
        driver.run(lambda: min(driver.answers[0], driver.answers[1]) > 3)
        assert driver.episodes[1][0].end == ("" if kind == "workers" else "rebuilt")
        assert lanes.faults == {}


def test_settings_of_a_rebuilt_env_are_those_of_the_call_whatever_becomes_of_them() -> None:
    with closing(workers(2, longest=1000)) as lanes:
        driver = Driver(lanes, 2)
        settings: list[Any] = []
        lanes.rebuild(1, wrong=settings)
        settings.append({1})
        driver.run(lambda: len(driver.episodes[1]) == 2)
        assert lanes.faults == {}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_those_made_in_this_process_are_closed_where_the_others_cannot_be_had(error: type[BaseException]) -> None:
    made: list[Course] = []

    def make(index: int) -> Course:
        if index == 2:
            raise error("no room for a third")
        made.append(Course(index))
        return made[-1]

    with pytest.raises(error, match="no room for a third"):
        Lanes.local(make, 3, seeds=Seeds(7, "p"))
    with pytest.raises(EnvError, match="no info 'mask'"):
        Lanes.local(make, 2, seeds=Seeds(7, "p"), infos=["mask"])
    assert [env.closed for env in made] == [1, 1, 1, 1]


def test_the_envs_are_at_hand_in_this_process_only() -> None:
    with closing(local(2)) as lanes:
        first, second = lanes.envs
        assert isinstance(first, Course)
        assert isinstance(second, Course)
    assert (first.closed, second.closed) == (1, 1)
    with closing(workers(2)) as remote, pytest.raises(EnvError, match="worker processes"):
        _ = remote.envs


@pytest.mark.parametrize("kind", ["local", "workers"])
def test_what_cannot_be_made_or_recorded_is_refused_at_the_start(kind: str) -> None:
    with pytest.raises(EnvError, match=r"no info 'mask'.*'count', 'options'"):
        KINDS[kind](2, infos=["mask"])
    error: Any = EnvError if kind == "workers" else TypeError
    with pytest.raises(error, match="unexpected keyword argument 'speed'"):
        KINDS[kind](2, speed=3)


def test_with_a_clock_that_stands_still_no_one_waits_for_ever() -> None:
    with closing(local(1, clock=Clock())) as lanes:
        lanes.reset()
        assert lanes.recv(0.01).steps is None


@pytest.mark.parametrize("kind", KINDS)
def test_where_every_env_is_left_out_nothing_is_waited_for(kind: str) -> None:
    with closing(KINDS[kind](2)) as lanes:
        lanes.before_reset = lambda env, episode: lanes.park(env) if episode else None
        driver = Driver(lanes, 2)
        while len(lanes.parked) < 2:
            driver.step(math.inf)
        assert [[bool(episode.end) for episode in episodes] for episodes in driver.episodes] == [[True], [True]]
        assert lanes.recv(math.inf).steps is None


def test_an_env_without_spaces_is_refused_by_name() -> None:
    env = Course(0)
    del env.observation_space
    with pytest.raises(EnvError, match=r"environment E: an env has an observation_space .* no attribute"):
        Lanes.existing([env], seeds=Seeds(0, "pod-0"), name="E")
