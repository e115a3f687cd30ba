"""Options for the reset of all envs, in every kind."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from penstock_producers.envs import CanonicalEnv, EnvSource, Lanes, Seeds, make_envs
from penstock_producers.envs.envpool import make_envpool
from penstock_producers.envs.lanes import Containment
from penstock_schemas.errors import EnvError
from tests.producers.callback_zoo import ZOO, Ladder
from tests.producers.env_zoo import CountingVectorEnv
from tests.producers.lanes_driving import Clock

if TYPE_CHECKING:
    from penstock_producers.envs import Envs

LEVEL = {"level": 5}
KINDS: dict[str, dict[str, Any]] = {
    "lanes": {"vectorization": "lanes"},
    "workers": {"vectorization": "lanes", "workers": 2, "lockstep": True},
    "next step": {"vectorization": "sync"},
    "same step": {"vectorization": "sync", "autoreset": AutoresetMode.SAME_STEP},
    "disabled": {"vectorization": "sync", "autoreset": AutoresetMode.DISABLED},
}


def made(kind: str) -> Envs:
    return make_envs(EnvSource(f"{ZOO}:ladder"), 3, seeds=Seeds(1, "pod-0"), clock=time.monotonic, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_all_envs_are_reset_with_options_that_are_recorded_with_these_episodes_alone(kind: str) -> None:
    with closing(made(kind)) as envs:
        assert envs.reset().resets.options is None  # type: ignore[union-attr]  # all have begun
        answer = envs.reset(LEVEL)
        assert answer.resets is not None
        assert answer.resets.options is not None
        assert answer.resets.options.tolist() == ['{"level": 5}'] * 3
        assert answer.observation[0][:, 1].tolist() == [5, 5, 5]
        later = []
        for _ in range(6):
            envs.send(answer.ready, (np.zeros(len(answer.ready), np.int64),))
            answer = envs.recv(10.0)
            later += [rows for rows in (answer.steps, answer.resets) if rows is not None]
        assert any(rows.first.any() for rows in later)
        assert all(rows.options is None for rows in later)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"level": {1}}, {"level": float("inf")}, 5])
def test_options_that_are_not_plain_json_are_refused(kind: str, options: Any) -> None:
    with closing(made(kind)) as envs, pytest.raises(EnvError, match=r"reset options .* are not plain JSON"):
        envs.reset(options)


def test_envs_are_given_what_is_recorded_each_a_dict_of_its_own() -> None:
    given: list[Any] = []

    class Greedy(Ladder):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            assert options is not None
            given.append(options.pop("pair"))
            return super().reset(seed=seed, options=options)

    options = {"pair": (1, 2)}
    with closing(Lanes.local(Greedy, 3, seeds=Seeds(1, "pod-0"))) as envs:
        answer = envs.reset(options)
    assert given == [[1, 2]] * 3
    assert answer.resets is not None
    assert answer.resets.options is not None
    assert answer.resets.options.tolist() == ['{"pair": [1, 2]}'] * 3
    assert options == {"pair": (1, 2)}


def test_an_env_that_is_down_begins_with_the_options_when_it_comes_back() -> None:
    clock = Clock()
    containment = Containment(backoff=10.0)
    lanes = Lanes.local(
        lambda index: Ladder(index, faults=True), 2, seeds=Seeds(1, "pod-0"), containment=containment, clock=clock
    )
    with closing(lanes) as envs:
        answer = envs.reset(LEVEL)
        for _ in range(2):
            envs.send(answer.ready, (np.zeros(len(answer.ready), np.int64),))
            answer = envs.recv(0.0)
        assert [abort.env for abort in answer.aborts] == [1]
        answer = envs.reset({"level": 7})
        assert answer.ready.tolist() == [0]
        clock.now += 100.0
        answer = envs.recv(0.0)
        assert answer.resets is not None
        assert answer.resets.options is not None
        assert (answer.resets.env.tolist(), answer.resets.options.tolist()) == ([1], ['{"level": 7}'])
        assert answer.resets.observation[0][:, 1].tolist() == [7]


def test_options_of_a_reset_of_all_stand_before_those_of_one_env_that_has_not_begun() -> None:
    with closing(Lanes.local(Ladder, 2, seeds=Seeds(1, "pod-0"))) as envs:
        envs.reset()
        envs.reset_env(1, {"level": 9})
        assert envs.reset(LEVEL).observation[0][:, 1].tolist() == [5, 5]
        envs.reset_env(1, {"level": 9})
        answer = envs.reset()
        assert answer.observation[0][:, 1].tolist() == [1, 1]
        assert answer.resets is not None
        assert answer.resets.options is None


def test_a_reset_mask_is_not_for_users() -> None:
    with closing(CanonicalEnv(CountingVectorEnv(2, "DISABLED"))) as envs:
        with pytest.raises(EnvError, match=r"'reset_mask' among the reset options .* leave it out"):
            envs.reset({"reset_mask": [True, False]})
        assert len(envs.reset({"other": 1}).ready) == 2


def test_envpool_refuses_options_by_name() -> None:
    pytest.importorskip("envpool")
    with closing(make_envpool("CartPole-v1", 2, kwargs={}, seed=1, infos=())) as envs:
        with pytest.raises(EnvError, match=r"'envpool:CartPole-v1': EnvPool resets take no options, so {'level': 5}"):
            envs.reset(LEVEL)
        assert len(envs.reset().ready) == 2
