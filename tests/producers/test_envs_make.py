from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from penstock_producers.envs import CanonicalEnv, Envs, EnvSource, Lanes, Seeds, Wrapper, make_envs
from penstock_producers.envs.envpool import EnvPoolEnvs
from penstock_schemas.errors import EnvError
from tests.producers.env_zoo import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Iterator

ZOO = "tests.producers.env_zoo"
SEEDS = Seeds(11, "producer-0")
CLIP = (Wrapper("ClipReward", {"min_reward": 0.0, "max_reward": 0.5}),)


def make(env: str, num_envs: int | None = 2, *, kwargs: Any = None, wrappers: Any = (), **arguments: Any) -> Envs:
    source = EnvSource(env, kwargs or {}, wrappers, SEEDS.producer)
    return make_envs(source, num_envs, seeds=SEEDS, clock=time.monotonic, **arguments)


@pytest.fixture
def opened() -> Iterator[list[Envs]]:
    envs: list[Envs] = []
    yield envs
    for each in envs:
        each.close()


def wait_for_all(envs: Envs) -> tuple[Any, Any]:
    """Reset; the seeds and the first observations of all envs, in the order of the envs."""
    answers, seen = [envs.reset()], 0
    deadline = time.monotonic() + 60
    while seen < envs.num_envs:
        assert time.monotonic() < deadline
        seen = sum(len(answer.resets.env) for answer in answers if answer.resets is not None)
        if seen < envs.num_envs:
            answers.append(envs.recv())
    rows = [answer.resets for answer in answers if answer.resets is not None]
    order = np.argsort(np.concatenate([part.env for part in rows]))
    seeds = None if rows[0].seed is None else np.concatenate([part.seed for part in rows if part.seed is not None])
    observation = np.concatenate([part.observation[0] for part in rows])[order]
    return (None if seeds is None else seeds[order].tolist()), observation


def kind_of(envs: Envs) -> type:
    return type(envs._env.unwrapped) if isinstance(envs, CanonicalEnv) else type(envs)


@pytest.mark.parametrize(
    ("env", "arguments", "kind"),
    [
        ("CartPole-v1", {}, CartPoleVectorEnv),
        ("CartPole", {}, CartPoleVectorEnv),
        ("CartPole-v1", {"vectorization": "vector_entry_point"}, CartPoleVectorEnv),
        ("CartPole-v1", {"vectorization": "lanes"}, Lanes),
        ("CartPole-v1", {"wrappers": CLIP}, Lanes),
        ("CartPole-v1", {"workers": 2}, Lanes),
        ("CartPole-v1", {"vectorization": "lanes", "workers": 1, "lockstep": True}, Lanes),
        ("CartPole-v1", {"vectorization": "sync"}, SyncVectorEnv),
        ("CartPole-v1", {"vectorization": "sync", "wrappers": CLIP}, SyncVectorEnv),
        ("CartPole-v1", {"vectorization": "async"}, AsyncVectorEnv),
        ("Pendulum-v1", {}, Lanes),
        ("gymnasium.envs:CartPole-v1", {"vectorization": "sync"}, SyncVectorEnv),
        (f"{ZOO}:penstock-test/Counting-v1", {}, Lanes),
        (f"{ZOO}:CountingEnv", {}, Lanes),
        (f"{ZOO}:CountingEnv", {"vectorization": "async"}, AsyncVectorEnv),
        ("envpool:CartPole-v1", {}, EnvPoolEnvs),
        ("CartPole-v1", {"vectorization": "envpool"}, EnvPoolEnvs),
    ],
)
def test_ids_and_factories_become_what_is_asked(
    opened: list[Envs], env: str, arguments: dict[str, Any], kind: type
) -> None:
    if kind is EnvPoolEnvs:
        pytest.importorskip("envpool")
    made = make(env, **arguments)
    opened.append(made)
    assert kind_of(made) is kind
    assert made.num_envs == 2
    assert len(wait_for_all(made)[1]) == 2


def test_a_factory_that_takes_num_envs_makes_the_whole_vector() -> None:
    made = make(f"{ZOO}:CountingVectorEnv", 3, kwargs={"mode": "SAME_STEP"}, autoreset=AutoresetMode.SAME_STEP)
    assert isinstance(made, CanonicalEnv)
    assert made.autoreset_mode is AutoresetMode.SAME_STEP
    assert made.reset().observation[0].shape == (3, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_lanes_seed_each_episode_and_are_wrapped(opened: list[Envs], workers: int) -> None:
    made = make("CartPole-v1", 3, wrappers=CLIP, workers=workers, lockstep=True)
    opened.append(made)
    seeds, observation = wait_for_all(made)
    assert seeds == [SEEDS.episode(env, 0) for env in range(3)]
    for env, seed in enumerate(seeds):
        np.testing.assert_array_equal(observation[env], gymnasium.make("CartPole-v1").reset(seed=seed)[0])
    made.send(np.arange(3, dtype=np.int32), (np.zeros(3, np.int64),))
    answer = made.recv(60)
    assert answer.steps is not None
    assert answer.steps.reward.tolist() == [0.5] * 3


@pytest.mark.parametrize(("env", "kind"), [("CartPole-v1", "sync"), (f"{ZOO}:sync_cart_poles", "vector_entry_point")])
def test_gymnasiums_own_seed_each_env_with_the_next_number(opened: list[Envs], env: str, kind: Any) -> None:
    opened.append(make(env, 3, vectorization=kind))
    first = SEEDS.vector(62)  # so wide that no other producer's numbers are among them
    seeds, observation = wait_for_all(opened[0])
    assert seeds == [first, first + 1, first + 2]
    np.testing.assert_array_equal(observation[1], gymnasium.make("CartPole-v1").reset(seed=first + 1)[0])


def test_a_vector_entry_point_is_seeded_once(opened: list[Envs]) -> None:
    opened.append(make("CartPole-v1", 3))
    twin = gymnasium.make_vec("CartPole-v1", 3)
    np.testing.assert_array_equal(wait_for_all(opened[0])[1], twin.reset(seed=SEEDS.vector())[0])


@pytest.mark.parametrize("vectorization", ["lanes", "sync"])
def test_infos_are_recorded(opened: list[Envs], vectorization: Any) -> None:
    opened.append(make("Taxi-v4", vectorization=vectorization, infos=("prob", "action_mask")))
    assert [column.name for column in opened[0].infos] == ["info.prob", "info.action_mask"]


@pytest.mark.parametrize("alone", [True, False])
def test_envs_that_exist_are_stepped_in_lanes(opened: list[Envs], alone: bool) -> None:
    envs = [CountingEnv(), CountingEnv()]
    made = make_envs(envs[0] if alone else envs, seeds=SEEDS, clock=time.monotonic)
    opened.append(made)
    assert isinstance(made, Lanes)
    assert made.num_envs == (1 if alone else 2)
    made.reset()
    assert [env.counter.episode for env in envs] == [0, -1 if alone else 0]


def refusals() -> Iterator[Any]:
    lanes_only = r"only lanes have workers, so 1 cannot be had with vectorization '{}'; use 0"
    for env, arguments, message in [
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
        *(
            (
                "CartPole-v1",
                {"kwargs": {"pole": 3}, "vectorization": vectorization},
                r"kwargs \{'pole': 3\}: TypeError.*unexpected keyword.*'pole'",
            )
            for vectorization in ("lanes", "sync", "async")
        ),
        (f"{ZOO}:CountingEnv", {"kwargs": {"pole": 3}}, r"TypeError.*unexpected keyword argument 'pole'"),
        (
            "CartPole-v1",
            {"vectorization": "parallel"},
            r"'parallel' is unknown; use one of auto, vector_entry_point, lanes, sync, async, envpool",
        ),
        ("Pendulum-v1", {"vectorization": "vector_entry_point"}, r"no vector entry point; use vectorization lanes"),
        (f"{ZOO}:CountingEnv", {"vectorization": "vector_entry_point"}, r"no vector entry point"),
        (f"{ZOO}:CountingVectorEnv", {"vectorization": "sync"}, r"vector environments only.*'sync'"),
        (f"{ZOO}:CountingVectorEnv", {"vectorization": "lanes"}, r"vector environments only.*'lanes'"),
        (f"{ZOO}:penstock-test/OnlyVector-v0", {"vectorization": "async"}, r"vector environments only.*'async'"),
        (
            "CartPole-v1",
            {"autoreset": AutoresetMode.SAME_STEP},
            r"resets in mode NEXT_STEP, so SAME_STEP cannot be had.*vectorization sync or async",
        ),
        (
            "Pendulum-v1",
            {"autoreset": AutoresetMode.SAME_STEP},
            r"lanes reset each env by themselves, so SAME_STEP cannot be had.*vectorization sync or async",
        ),
        ("envpool:CartPole-v1", {"autoreset": AutoresetMode.DISABLED}, r"EnvPool has a mode of its own, so DISABLED"),
        (
            "CartPole-v1",
            {"wrappers": CLIP, "vectorization": "vector_entry_point"},
            r"takes no wrappers, so 'ClipReward' cannot be had; use lanes",
        ),
        (f"{ZOO}:CountingVectorEnv", {"wrappers": CLIP}, r"takes no wrappers, so 'ClipReward' cannot be had"),
        ("envpool:CartPole-v1", {"wrappers": CLIP}, r"EnvPool takes no wrappers, so 'ClipReward' cannot be had"),
        ("CartPole-v1", {"wrappers": (Wrapper("ClipRewards"),)}, r"no such wrapper. Did you mean ClipReward"),
        ("CartPole-v1", {"workers": 3}, r"3 workers for 2 envs; use 0 for none, or one per env at most"),
        ("Pendulum-v1", {"workers": -1}, r"-1 workers for 2 envs"),
        (f"{ZOO}:CountingVectorEnv", {"workers": 1}, lanes_only.format("vector_entry_point")),
        ("envpool:CartPole-v1", {"workers": 1}, lanes_only.format("envpool")),
        *(
            ("CartPole-v1", {"vectorization": vectorization, "workers": 1}, lanes_only.format(vectorization))
            for vectorization in ("vector_entry_point", "sync", "async", "envpool")
        ),
        ("CartPole-v1", {"kwargs": {"pole": (1,)}, "workers": 1}, r"kwargs .* are not plain JSON.*or no workers"),
        *(
            ("envpool:CartPole-v1", {"vectorization": vectorization}, r"an EnvPool task is no gymnasium environment")
            for vectorization in ("lanes", "sync", "async", "vector_entry_point")
        ),
        (
            "envpool:CartPole-v1",
            {"kwargs": {"batch_size": 1}, "lockstep": True},
            r"batch_size is 1 of 2 envs, but lockstep answers all together",
        ),
        *(("CartPole-v1", {"num_envs": n}, rf"num_envs is {n}, but must be at least 1") for n in (0, -1, None)),
    ]:
        yield pytest.param(env, arguments, message, id=f"{env}-{arguments}")


@pytest.mark.parametrize(("env", "arguments", "message"), refusals())
def test_what_cannot_be_made_is_refused_by_name(env: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message) as raised:
        make(env, **arguments)
    assert repr(env) in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 3}, "num_envs is 3, but 2 existing envs were given; leave it out"),
        ({"vectorization": "sync"}, "stepped in lanes in this process.*'sync'"),
        ({"vectorization": "parallel"}, r"<CountingEnv instance>.*'parallel' is unknown"),
        ({"workers": 1}, "and 1 workers; name the environment instead"),
        ({"autoreset": AutoresetMode.SAME_STEP}, "with autoreset .*SAME_STEP"),
    ],
)
def test_what_cannot_be_with_envs_that_exist_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_envs([CountingEnv(), CountingEnv()], seeds=SEEDS, clock=time.monotonic, **arguments)


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        ([], "num_envs is None, but 0 existing envs were given"),
        ([CountingEnv()] * 2, "env 1 is given twice; make one for each place"),
        ([CountingEnv(), "CartPole-v1"], "env 1 is a str, no gymnasium.Env"),
        ("CartPole-v1", "env 0 is a str, no gymnasium.Env; name an environment by an EnvSource"),
    ],
)
def test_what_is_no_list_of_envs_is_refused(envs: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_envs(envs, seeds=SEEDS, clock=time.monotonic)


def test_an_env_that_is_refused_is_closed() -> None:
    closed: list[bool] = []
    with pytest.raises(EnvError, match="cannot be had"):
        make(f"{ZOO}:ClosableEnv", kwargs={"closed": closed}, autoreset=AutoresetMode.DISABLED)
    assert closed == [True]


def test_envpool_answers_in_batches(opened: list[Envs]) -> None:
    pytest.importorskip("envpool")
    made = make("envpool:CartPole-v1", 4, kwargs={"batch_size": 2})
    opened.append(made)
    assert isinstance(made, EnvPoolEnvs)
    assert made.batch_size == 2


def test_time_limits_and_kwargs_of_an_id_hold(opened: list[Envs]) -> None:
    opened.append(make(f"{ZOO}:penstock-test/Limited-v0", 8, vectorization="sync", kwargs={"longest": 1000}))
    opened[0].reset()
    for _ in range(3):
        opened[0].send(np.arange(8, dtype=np.int32), (np.zeros(8, np.int64),))
        steps = opened[0].recv().steps
    assert steps is not None
    assert steps.truncated.sum() == 8
