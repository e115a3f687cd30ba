"""Callbacks that choose the options of resets: curricula."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from penstock_producers.callbacks import CallbackList, Callbacks, attach
from penstock_producers.envs import CanonicalEnv, Lanes, Seeds
from penstock_schemas.errors import EnvError
from tests.producers.callback_zoo import KINDS, QUICK, Climber, Ladder, Play, Witness, in_process, in_workers
from tests.producers.env_zoo import CountingVectorEnv

if TYPE_CHECKING:
    from collections.abc import Mapping


def levels(play: Play, n: int) -> list[list[int]]:
    """The levels at which each env's episodes began, as they were recorded, and as the env had them."""
    begun: dict[tuple[int, int], int] = {}
    for row in play.rows():
        if row["chunk"] == 0:
            recorded = json.loads(row["reset_options"])["level"]
            assert row["observation"][0] == [row["env"], recorded, 0]
            begun[row["env"], row["episode"]] = recorded
    return [[level for (of, _), level in sorted(begun.items()) if of == env] for env in range(n)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_curriculum_goes_by_the_last_return_and_is_recorded(kind: str) -> None:
    climber = Climber()
    with closing(KINDS[kind]()) as envs:
        play = Play(envs, climber)
        play.until(lambda: len(climber.levels) == 3 and min(climber.levels.values()) == 4)
        for _ in range(9):
            play.step()
        for env, found in enumerate(levels(play, 3)):
            assert found[:4] == [1, 2, 3, 4]
            assert set(found[4:]) <= {4}
            # It is asked once for each episode, in their order.
            assert [episode for of, episode in climber.asked if of == env] == list(
                range(len([of for of, _ in climber.asked if of == env]))
            )


def test_in_lockstep_a_curriculum_repeats_itself_in_any_number_of_workers() -> None:
    runs = []
    for made in (in_process, lambda: in_workers(count=1, lockstep=True), lambda: in_workers(count=3, lockstep=True)):
        climber = Climber(3)
        with closing(made()) as envs:
            play = Play(envs, climber)
            for _ in range(20):
                play.step()
            runs.append((climber.asked, play.rows()))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("kind", KINDS)
def test_an_env_that_is_asked_for_gives_up_one_answer_an_episode_and_its_siblings_none(kind: str) -> None:
    class Two(Callbacks):
        def on_reset(self, env: int, episode: int) -> Mapping[str, Any]:
            return {"level": 2 if env == 0 else 1000}

    with closing(KINDS[kind](2, **({} if kind == "in process" else {"count": 1}))) as envs:
        play = Play(envs, Two())
        stepped = []
        for _ in range(7):
            steps = play.step().steps
            stepped.append([] if steps is None else steps.env.tolist())
    assert stepped == [[0, 1], [0, 1], [1]] * 2 + [[0, 1]]


def test_without_such_a_callback_envs_begin_at_once() -> None:
    with closing(in_process(2)) as envs:
        play = Play(envs, Witness())
        for _ in range(3):
            answer = play.step()
            assert answer.ready.tolist() == [0, 1]
            assert answer.resets is not None


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_asked_after_faults_and_envs_that_were_made_anew_begin_with_what_it_says(kind: str) -> None:
    witness, climber = Witness(), Climber()
    with closing(KINDS[kind](faults=True)) as envs:
        play = Play(envs, witness, climber)
        play.until(lambda: len([env for env, end in witness.of("end") if end.abort_reason]) >= 3)
        play.until(lambda: climber.levels.get(2) == 4)
        found = levels(play, 3)
    assert found[1][:3] == [1, 2, 2]
    assert found[2][:3] == [1, 2, 3]


def test_envs_that_wait_to_begin_when_their_worker_is_lost_begin_in_the_next_one() -> None:
    climber, witness = Climber(), Witness()
    with closing(in_workers(2, count=1)) as envs:
        play = Play(envs, climber, witness)
        play.until(lambda: len(climber.levels) == 2)
        assert play.answer.ready.tolist() == []
        worker = envs._workers.lanes[0]._process
        worker.kill()
        worker.wait()
        play.until(lambda: len(witness.of("start")) == 4)
        assert envs.faults == {"env_died": 2}
        assert levels(play, 2) == [[1], [1]]
        play.until(lambda: min(climber.levels.values()) == 3)
        assert levels(play, 2) == [[2], [2]]
    # There was no episode to abort, and no seed was used up.
    assert all(end.abort_reason is None for _, end in witness.of("end"))
    assert [begun.seed for env, begun in witness.of("start") if env == 0] == [
        Seeds(7, "pod-0").episode(0, episode) for episode in range(2)
    ]


def test_existing_envs_are_asked_for_too() -> None:
    climber = Climber()
    made = Lanes.existing(
        [Ladder(0), Ladder(1, faults=True)], seeds=Seeds(1, "pod-0"), infos=["level"], containment=QUICK
    )
    with closing(made) as envs:
        play = Play(envs, climber)
        play.until(lambda: climber.levels.get(0) == 4)
        assert levels(play, 2)[1][:3] == [1, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_are_given_win_and_forced_resets_without_are_asked_for(kind: str) -> None:
    climber = Climber()
    with closing(KINDS[kind]()) as envs:
        play = Play(envs, climber)
        assert [env for env, _ in climber.asked] == [0, 1, 2]
        play.take(envs.reset({"level": 9}))
        assert len(climber.asked) == 3
        envs.reset_env(1, {"level": 8})
        envs.reset_env(2)
        # Envs 0 and 2 had to be asked for between: neither at level 9 ends an episode before that.
        play.until(lambda: len([env for env, _ in climber.asked if env == 2]) == 2)
        play.until(lambda: 0 in climber.levels and 1 in climber.levels)
        assert climber.asked[3] == (2, 2)
        rows = [row for row in play.rows() if row["chunk"] == 0]
    options = [[row["reset_options"] for row in rows if row["env"] == env] for env in range(3)]
    assert options[0][0] == '{"level": 9}'
    assert options[1][0] == '{"level": 8}'
    assert options[2][0] == '{"level": 1}'


def test_a_forced_reset_of_an_env_that_has_ended_gives_the_options_of_its_next_episode() -> None:
    """It has not begun yet, so there is nothing to abort."""
    climber, witness = Climber(), Witness()
    with closing(in_process(2)) as envs:
        play = Play(envs, climber, witness)
        assert play.step().ready.tolist() == []
        envs.reset_env(1, {"level": 7})
        answer = play.step()
        assert answer.resets is not None
        assert answer.resets.observation[0][:, 1].tolist() == [2, 7]
        assert answer.resets.options is not None
        assert answer.resets.options.tolist() == ['{"level": 2}', '{"level": 7}']
    assert (1, 1) not in climber.asked
    assert all(end.abort_reason is None for _, end in witness.of("end"))


def test_a_wish_for_a_busy_env_whose_episode_then_ends_is_its_next_episode() -> None:
    witness = Witness()
    with closing(in_workers(2, count=1, lockstep=True)) as envs:
        play = Play(envs, Climber(), witness)
        ready = play.answer.ready
        envs.send(ready, (ready.astype("int64"),))
        play.fragment.sent(ready, (ready.astype("int64"),))
        envs.reset_env(1, {"level": 7})
        play.take(envs.recv(10.0))
        play.step()
        assert play.answer.resets is not None
        assert play.answer.resets.observation[0][:, 1].tolist() == [2, 7]
    assert all(end.abort_reason is None for _, end in witness.of("end"))


def test_two_callbacks_that_choose_for_one_env_are_refused_by_name_and_one_may_stand_back() -> None:
    class Other(Callbacks):
        def on_reset(self, env: int, episode: int) -> Mapping[str, Any] | None:
            return {"level": 2} if episode else None

    with closing(in_process()) as envs:
        play = Play(envs, Climber(), Other())
        with pytest.raises(EnvError, match=r"env 0: both callback Climber and callback .*Other choose .*'level': 2"):
            play.until(lambda: False)
        assert [len(row["reward"]) for row in play.rows()] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["in process", "workers"])
@pytest.mark.parametrize("options", [{"level": object()}, {"level": float("nan")}, 3])
def test_options_that_are_not_plain_json_are_refused_and_what_was_recorded_stays(kind: str, options: Any) -> None:
    class Odd(Callbacks):
        def on_reset(self, env: int, episode: int) -> Any:
            return options if episode else None

    with closing(KINDS[kind]()) as envs:
        play = Play(envs, Odd())
        for _ in range(2):  # again, where it is called again
            with pytest.raises(EnvError, match=r"reset options .* are not plain JSON"):
                play.until(lambda: False)
        assert [len(row["reward"]) for row in play.rows()][:1] == [1]


def test_envs_that_reset_by_themselves_refuse_a_callback_that_is_to_be_asked() -> None:
    with closing(CanonicalEnv(CountingVectorEnv(2))) as envs:
        with pytest.raises(EnvError, match=r"callback Climber overrides on_reset, but CanonicalEnv .*lanes"):
            attach(CallbackList([Climber()]), envs)
        assert attach(CallbackList([Witness()]), envs) is not None
