from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from penstock_producers.envs.source import EnvSource
from penstock_producers.envs.wrapper import Wrapper
from penstock_schemas.errors import EnvError
from tests.producers.source_zoo import BrokenWrapperError, ToldEnv, ToldVectorEnv

ZOO = "tests.producers.env_zoo"
SOURCES = "tests.producers.source_zoo"


@pytest.mark.parametrize(
    ("env", "has_single", "has_vector"),
    [
        ("CartPole-v1", True, True),
        ("Pendulum-v1", True, False),
        (f"{ZOO}:penstock-test/OnlyVector-v0", False, True),
        (f"{ZOO}:CountingEnv", True, False),
        (f"{ZOO}:CountingVectorEnv", False, True),
    ],
)
def test_it_knows_what_it_can_make(env: str, has_single: bool, has_vector: bool) -> None:
    assert EnvSource(env).has_single is has_single
    assert EnvSource(env).has_vector is has_vector


@pytest.mark.parametrize("asked", ["has_single", "has_vector"])
def test_what_is_not_there_is_told_before_anything_is_made(asked: str) -> None:
    with pytest.raises(EnvError, match=r"'CartPoole-v1': gymnasium has no such id"):
        getattr(EnvSource("CartPoole-v1"), asked)


def test_an_id_without_a_version_is_the_highest() -> None:
    spec = EnvSource(f"{ZOO}:penstock-test/Counting").single(0).spec
    assert spec is not None
    assert spec.id == "penstock-test/Counting-v2"


def test_a_factory_is_told_its_env_and_producer_where_it_asks() -> None:
    source = EnvSource(f"{SOURCES}:told", {"size": 5}, producer="producer-3")
    env = source.single(7)
    assert isinstance(env, ToldEnv)
    assert env.told == {"env_index": 7, "producer": "producer-3", "size": 5}
    anything = EnvSource(f"{SOURCES}:told_anything", {"size": 5}, producer="producer-3").single(7)
    assert isinstance(anything, ToldEnv)
    assert anything.told == {"size": 5}


def test_a_vector_factory_is_told_its_producer() -> None:
    vector = EnvSource(f"{SOURCES}:ToldVectorEnv", producer="producer-3").vector(2)
    assert isinstance(vector, ToldVectorEnv)
    assert vector.producer == "producer-3"


def test_what_is_changed_stands_before_the_arguments() -> None:
    source = EnvSource(f"{SOURCES}:told", {"size": 5}, producer="producer-3")
    env = source.single(1, size=6)
    assert isinstance(env, ToldEnv)
    assert env.told["size"] == 6
    assert source.kwargs == {"size": 5}
    pole = EnvSource("CartPole-v1", {"sutton_barto_reward": True}).single(0, sutton_barto_reward=False)
    pole.reset(seed=0)
    assert pole.step(0)[1] == 1.0


def test_the_arguments_of_an_id_reach_the_env_and_leave_the_registry_alone() -> None:
    env = EnvSource("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 3}).single(0)
    env.reset(seed=0)
    assert [env.step(0)[1::2] for _ in range(3)] == [(0.0, False), (0.0, False), (0.0, True)]
    assert "sutton_barto_reward" not in gymnasium.spec("CartPole-v1").kwargs


def test_the_vector_entry_point_is_the_envs_own() -> None:
    vector = EnvSource("CartPole-v1", {"sutton_barto_reward": True}).vector(3)
    assert isinstance(vector, CartPoleVectorEnv)
    assert vector.num_envs == 3


def test_wrappers_go_around_in_order() -> None:
    clip = Wrapper("ClipReward", {"min_reward": 0.0, "max_reward": 0.5})
    env = EnvSource("CartPole-v1", wrappers=(clip, Wrapper(f"{SOURCES}:mask_reward"))).single(0)
    assert isinstance(env, wrappers.TransformReward)
    assert isinstance(env.env, wrappers.ClipReward)
    env.reset(seed=0)
    assert env.step(0)[1] == 0.0
    assert env.env.step(0)[1] == 0.5


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (
            Wrapper("ClipRewards"),
            r"wrapper 'ClipRewards': gymnasium.wrappers has no such wrapper. Did you mean ClipRew",
        ),
        (Wrapper("vector"), r"wrapper 'vector': gymnasium.wrappers has no such wrapper"),
        (Wrapper("no_such_module:Clip"), r"wrapper .*module 'no_such_module' cannot be imported.*PYTHONPATH"),
        (Wrapper(f"{SOURCES}:missing"), r"wrapper .*has no wrapper 'missing'"),
        (Wrapper(f"{SOURCES}:NO_WRAPPER"), r"has no wrapper 'NO_WRAPPER'; it must be something callable"),
        (Wrapper(f"{SOURCES}:unwrap"), r"unwrap' returned a str, no gymnasium.Env"),
        (
            Wrapper("TimeLimit", {"steps": 3}),
            r"in wrapper 'TimeLimit' with arguments \{'steps': 3\}: TypeError.*unexpected keyword argument 'steps'",
        ),
    ],
)
def test_a_wrapper_that_cannot_be_is_refused_by_name(wrapper: Wrapper, message: str) -> None:
    with pytest.raises(EnvError, match=rf"'CartPole-v1'.*{message}"):
        EnvSource("CartPole-v1", wrappers=(wrapper,)).single(0)


def test_a_wrapper_that_lacks_a_package_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium.wrappers.array_conversion", None)
    with pytest.raises(EnvError, match=r"wrapper 'ArrayConversion' cannot be imported: ModuleNotFound.*install it"):
        EnvSource("CartPole-v1", wrappers=(Wrapper("ArrayConversion"),)).single(0)


def test_an_env_whose_wrapper_fails_is_closed() -> None:
    source = EnvSource(f"{SOURCES}:told_anything", wrappers=(Wrapper(f"{SOURCES}:break_at_once"),))
    with pytest.raises(EnvError, match="no pole to hold") as raised:
        source.single(0)
    assert isinstance(raised.value.__cause__, BrokenWrapperError)
    inner = raised.value.__cause__.env
    assert isinstance(inner, ToldEnv)
    assert inner.closed


def test_a_vector_entry_point_takes_no_wrappers() -> None:
    with pytest.raises(EnvError, match=r"'CartPole-v1': .*takes no wrappers, so 'ClipReward' cannot be had; use lanes"):
        EnvSource("CartPole-v1", wrappers=(Wrapper("ClipReward"),)).vector(2)


def test_what_it_does_not_make_is_refused() -> None:
    with pytest.raises(EnvError, match="'Pendulum-v1' has no vector entry point; use lanes"):
        EnvSource("Pendulum-v1").vector(2)
    with pytest.raises(EnvError, match="CountingVectorEnv' makes vector environments only"):
        EnvSource(f"{ZOO}:CountingVectorEnv").single(0)


def test_another_process_can_make_the_same() -> None:
    source = EnvSource(
        f"{SOURCES}:told", {"size": 5}, (Wrapper("TimeLimit", {"max_episode_steps": 2}),), producer="producer-3"
    )
    again = EnvSource.from_json(json.loads(json.dumps(source.to_json())))
    assert again == source
    env = again.single(7)
    assert isinstance(env, wrappers.TimeLimit)
    assert isinstance(env.unwrapped, ToldEnv)
    assert env.unwrapped.told == {"env_index": 7, "producer": "producer-3", "size": 5}


@pytest.mark.parametrize("value", [object(), (1, 2), {1: 2}, float("nan")])
def test_arguments_that_would_reach_another_process_changed_are_refused(value: Any) -> None:
    with pytest.raises(EnvError, match=r"'CartPole-v1': kwargs .* are not plain JSON.*or no workers"):
        EnvSource("CartPole-v1", {"pole": value}).to_json()
    with pytest.raises(EnvError, match=r"'CartPole-v1': wrappers .* are not plain JSON"):
        EnvSource("CartPole-v1", wrappers=(Wrapper("TimeLimit", {"pole": value}),)).to_json()


@pytest.mark.parametrize(
    "described",
    [{}, {"name": 3}, {"name": "TimeLimit", "arguments": [3]}, {"name": "TimeLimit", "kwargs": {}}],
)
def test_a_description_that_is_no_wrappers_is_refused(described: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match=r'wrapper \{.*describe it as \{"name": "TimeLimit"'):
        Wrapper.from_json(described)


def test_a_factory_whose_arguments_cannot_be_seen_is_refused_by_name() -> None:
    with pytest.raises(EnvError, match=r"environment 'builtins:dict': which arguments .* cannot be seen"):
        EnvSource("builtins:dict").single(0)
