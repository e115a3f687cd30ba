from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from penstock_producers.envs import make_env
from penstock_schemas.errors import EnvError

ZOO = "tests.producers.env_zoo"


@pytest.mark.parametrize(
    ("env", "vectorization", "kind"),
    [
        ("CartPole-v1", "auto", CartPoleVectorEnv),
        ("CartPole", "auto", CartPoleVectorEnv),
        ("CartPole-v1", "vector_entry_point", CartPoleVectorEnv),
        ("CartPole-v1", "sync", SyncVectorEnv),
        ("CartPole-v1", "async", AsyncVectorEnv),
        ("Pendulum-v1", "auto", SyncVectorEnv),
        ("gymnasium.envs:CartPole-v1", "sync", SyncVectorEnv),
        (f"{ZOO}:penstock-test/Counting-v1", "auto", SyncVectorEnv),
        (f"{ZOO}:CountingEnv", "auto", SyncVectorEnv),
        (f"{ZOO}:CountingEnv", "async", AsyncVectorEnv),
    ],
)
def test_ids_and_factories_are_vectorized_as_asked(env: str, vectorization: Any, kind: type) -> None:
    made = make_env(env, 2, vectorization=vectorization)
    try:
        assert isinstance(made._env.unwrapped, kind)
        assert made.num_envs == 2
        assert made.autoreset_mode is AutoresetMode.NEXT_STEP
        assert made.reset(seed=0).observation.shape == (2, *(made.observation_space.shape or ()))
    finally:
        made.close()


def test_a_factory_that_takes_num_envs_makes_the_whole_vector() -> None:
    made = make_env(f"{ZOO}:CountingVectorEnv", 3, kwargs={"mode": "SAME_STEP"}, autoreset=AutoresetMode.SAME_STEP)
    assert made.autoreset_mode is AutoresetMode.SAME_STEP
    assert made.reset().observation.shape == (3, 3)


def test_an_id_without_a_version_is_the_highest() -> None:
    made = make_env(f"{ZOO}:penstock-test/Counting", 1)
    assert isinstance(made._env, SyncVectorEnv)
    spec = made._env.envs[0].spec
    assert spec is not None
    assert spec.id == "penstock-test/Counting-v2"


def test_time_limits_and_kwargs_of_an_id_hold() -> None:
    made = make_env(f"{ZOO}:penstock-test/Limited-v0", 8, vectorization="sync", kwargs={"longest": 1000})
    made.reset(seed=0)
    for _ in range(3):
        (rows,) = made.step(np.zeros(8, np.int64))
    assert rows.truncated.sum() == 8


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        ("CartPoole-v1", {}, r"'CartPoole-v1'.*no such id.*Did you mean: `CartPole`\?.*`module:factory`"),
        ("CartPole-v9", {}, r"'CartPole-v9'.*version `v9`.*doesn't exist.*`v1`"),
        ("not an id!", {}, r"'not an id!'.*no such id"),
        ("no_such_module:make", {}, r"module 'no_such_module' cannot be imported: ModuleNotFound.*PYTHONPATH"),
        (":make", {}, r"module '' cannot be imported"),
        (f"{ZOO}:missing", {}, r"has no factory 'missing', and registers no id"),
        (f"{ZOO}:penstock-test/Countin-v1", {}, r"registers no id.*Did you mean: `Counting`"),
        (f"{ZOO}:NOT_CALLABLE", {}, r"NOT_CALLABLE is a str, but a factory must be callable"),
        (f"{ZOO}:no_env", {}, r"no_env'.*the factory returned a str, no gymnasium.Env$"),
        (f"{ZOO}:hidden_vector_env", {}, r"returned a CountingVectorEnv.*let it take `num_envs`"),
        (f"{ZOO}:no_vector_env", {}, r"must return a gymnasium.vector.VectorEnv, but returned a CountingEnv"),
        (f"{ZOO}:one_too_many", {}, r"2 envs were asked for, but it has 3"),
        ("CartPole-v1", {"kwargs": {"pole": 3}}, r"kwargs \{'pole': 3\}: TypeError.*unexpected keyword.*'pole'"),
        (
            "CartPole-v1",
            {"kwargs": {"pole": 3}, "vectorization": "async"},
            r"kwargs \{'pole': 3\}: TypeError.*unexpected keyword.*'pole'",
        ),
        (f"{ZOO}:CountingEnv", {"kwargs": {"pole": 3}}, r"TypeError.*unexpected keyword argument 'pole'"),
        ("CartPole-v1", {"vectorization": "parallel"}, r"'parallel' is unknown; use one of auto, vector_entry_point"),
        ("Pendulum-v1", {"vectorization": "vector_entry_point"}, r"no vector entry point; use vectorization sync"),
        (f"{ZOO}:CountingEnv", {"vectorization": "vector_entry_point"}, r"no vector entry point"),
        (f"{ZOO}:CountingVectorEnv", {"vectorization": "sync"}, r"vector environments only.*'sync'"),
        (f"{ZOO}:penstock-test/OnlyVector-v0", {"vectorization": "async"}, r"vector environments only.*'async'"),
        (
            "CartPole-v1",
            {"autoreset": AutoresetMode.SAME_STEP},
            r"resets in mode NEXT_STEP, so SAME_STEP cannot be had.*vectorization sync or async",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(env: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message) as raised:
        make_env(env, 2, **arguments)
    assert repr(env) in str(raised.value)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_fewer_than_one_env_is_refused(num_envs: int) -> None:
    with pytest.raises(EnvError, match=rf"num_envs is {num_envs}, but must be at least 1"):
        make_env("CartPole-v1", num_envs)


def test_an_env_that_is_refused_is_closed() -> None:
    closed: list[bool] = []
    with pytest.raises(EnvError, match="cannot be had"):
        make_env(f"{ZOO}:ClosableEnv", 2, kwargs={"closed": closed}, autoreset=AutoresetMode.DISABLED)
    assert closed == [True]


def test_the_registry_is_not_changed_by_kwargs() -> None:
    make_env("CartPole-v1", 2, kwargs={"sutton_barto_reward": True})
    assert "sutton_barto_reward" not in gymnasium.spec("CartPole-v1").kwargs
