"""Environments by name: a gymnasium id, or a factory of one's own."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from penstock_producers.envs.canonical import CanonicalEnv
from penstock_producers.envs.closing import close_vector_env
from penstock_schemas.errors import EnvError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from gymnasium.envs.registration import EnvSpec

    from penstock_producers.envs.closing import AnyVectorEnv

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"
Vectorization: TypeAlias = Literal["auto", "vector_entry_point", "sync", "async"]


@dataclass(frozen=True, slots=True)
class _Source:
    """How an environment can be made: one at a time, as a ready-made vector environment, or either way."""

    single: Callable[[], AnyEnv] | None
    vector: Callable[[], AnyVectorEnv] | None


def make_env(
    env: str,
    num_envs: int,
    *,
    kwargs: Mapping[str, Any] | None = None,
    vectorization: Vectorization = "auto",
    autoreset: AutoresetMode | None = None,
) -> CanonicalEnv:
    """Make `num_envs` environments that are stepped together.

    Args:
        env: A gymnasium id (`CartPole-v1`, or `module:Id-v0` for one that `module` registers), or
            `module:factory`. A factory that takes `num_envs` returns a gymnasium `VectorEnv`; any other returns one
            `gymnasium.Env` and is called once per env. An id without a version means the highest one.
        num_envs: How many, at least 1.
        kwargs: What the environment or the factory is made with, besides `num_envs`.
        vectorization: `vector_entry_point` is the environment's own vector environment (or the factory's);
            `sync` and `async` are gymnasium's, in this process or with one process per env. `auto` takes the
            environment's own where it has one, else `sync`.
        autoreset: The autoreset mode of `sync` and `async`, by default NEXT_STEP. An environment's own vector
            environment has a mode of its own: another one is refused.

    Raises:
        EnvError: what cannot be made, with the reason; see also `CanonicalEnv`.
        SpaceError: see `CanonicalEnv`.
    """
    if num_envs < 1:
        raise EnvError(f"environment {env!r}: num_envs is {num_envs}, but must be at least 1")
    source = _find(env, num_envs, dict(kwargs or {}))
    build = _choose(env, num_envs, source, vectorization, autoreset)
    try:
        vector_env = build()
    except PenstockError:
        raise
    except Exception as error:
        raise EnvError(
            f"environment {env!r} cannot be made with kwargs {dict(kwargs or {})}: {type(error).__name__}: {error}"
        ) from error
    try:
        return _adapt(env, num_envs, vector_env, autoreset)
    except PenstockError:
        with suppress(Exception):  # what is wrong with it is told already
            close_vector_env(vector_env)
        raise


def _find(env: str, num_envs: int, kwargs: dict[str, Any]) -> _Source:
    module_name, colon, name = env.rpartition(":")
    if not colon:
        return _from_spec(_spec(name, env), num_envs, kwargs)
    module = _import(module_name, env)
    if name in gymnasium.registry:
        return _from_spec(gymnasium.spec(name), num_envs, kwargs)
    factory = getattr(module, name, None)
    if factory is None:
        return _from_spec(_spec(name, env, module), num_envs, kwargs)
    if not callable(factory):
        raise EnvError(f"environment {env!r}: {name} is a {type(factory).__name__}, but a factory must be callable")
    return _from_factory(factory, env, num_envs, kwargs)


def _import(module_name: str, env: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise EnvError(
            f"environment {env!r}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}; "
            "install it, or put its folder on PYTHONPATH"
        ) from error


def _spec(env_id: str, env: str, module: ModuleType | None = None) -> EnvSpec:
    try:
        namespace, name, version = parse_env_id(env_id)
        if version is None:
            version = find_highest_version(namespace, name)
        return gymnasium.spec(get_env_id(namespace, name, version))
    except gymnasium.error.Error as error:
        if module is None:
            raise EnvError(
                f"environment {env!r}: gymnasium has no such id: {error} Name a registered id, `module:Id-v0` for "
                "one that a module registers, or `module:factory`"
            ) from error
        raise EnvError(
            f"environment {env!r}: module {module.__name__!r} has no factory {env_id!r}, and registers no id of "
            f"that name: {error}"
        ) from error


def _from_spec(spec: EnvSpec, num_envs: int, kwargs: dict[str, Any]) -> _Source:
    def single() -> AnyEnv:
        return gymnasium.make(spec, **kwargs)

    def vector() -> AnyVectorEnv:
        return gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)

    return _Source(
        single=None if spec.entry_point is None else single,
        vector=None if spec.vector_entry_point is None else vector,
    )


def _from_factory(factory: Callable[..., Any], env: str, num_envs: int, kwargs: dict[str, Any]) -> _Source:
    def single() -> AnyEnv:
        made = factory(**kwargs)
        if isinstance(made, gymnasium.Env):
            return made
        hint = "; let it take `num_envs`" if isinstance(made, VectorEnv) else ""
        raise EnvError(f"environment {env!r}: the factory returned a {type(made).__name__}, no gymnasium.Env{hint}")

    def vector() -> AnyVectorEnv:
        made = factory(num_envs=num_envs, **kwargs)
        if isinstance(made, VectorEnv):
            return made
        raise EnvError(
            f"environment {env!r}: a factory that takes `num_envs` must return a gymnasium.vector.VectorEnv, but "
            f"returned a {type(made).__name__}"
        )

    if "num_envs" in inspect.signature(factory).parameters:
        return _Source(single=None, vector=vector)
    return _Source(single=single, vector=None)


def _choose(
    env: str, num_envs: int, source: _Source, vectorization: Vectorization, autoreset: AutoresetMode | None
) -> Callable[[], AnyVectorEnv]:
    if vectorization not in get_args(Vectorization):
        raise EnvError(
            f"environment {env!r}: vectorization {vectorization!r} is unknown; use one of "
            f"{', '.join(get_args(Vectorization))}"
        )
    if source.vector is not None and vectorization in {"auto", "vector_entry_point"}:
        return source.vector
    if vectorization == "vector_entry_point":
        raise EnvError(f"environment {env!r} has no vector entry point; use vectorization sync or async")
    if source.single is None:
        raise EnvError(
            f"environment {env!r} makes vector environments only, so vectorization {vectorization!r} is not for it; "
            "use vector_entry_point"
        )
    # In SAME_STEP gymnasium keeps a reference to the last observation while it resets: an env that writes its
    # observations into one buffer then gives the reset observation as `final_obs`.
    mode = autoreset or AutoresetMode.NEXT_STEP
    # The rows are copied before the next step anyway: gymnasium need not copy them too.
    if vectorization == "async":
        in_worker = partial(_make_in_worker, source.single, os.getpid())
        return partial(AsyncVectorEnv, [in_worker] * num_envs, copy=False, autoreset_mode=mode)
    return partial(SyncVectorEnv, [source.single] * num_envs, copy=False, autoreset_mode=mode)


def _make_in_worker(make: Callable[[], AnyEnv], parent: int) -> AnyEnv:
    # gymnasium makes one env in the parent too, to see its spaces.
    if os.getpid() != parent:
        # Ctrl-C reaches the whole process group, and only the parent knows how to stop in order; a handler for
        # SIGTERM that a fork took over from the parent would keep the worker from being terminated.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return make()


def _adapt(env: str, num_envs: int, vector_env: AnyVectorEnv, autoreset: AutoresetMode | None) -> CanonicalEnv:
    if vector_env.num_envs != num_envs:
        raise EnvError(f"environment {env!r}: {num_envs} envs were asked for, but it has {vector_env.num_envs}")
    canonical = CanonicalEnv(vector_env, repr(env))
    if autoreset is not None and canonical.autoreset_mode is not autoreset:
        raise EnvError(
            f"environment {env!r}: its own vector environment resets in mode {canonical.autoreset_mode.name}, so "
            f"{autoreset.name} cannot be had; leave the mode out, or use vectorization sync or async"
        )
    return canonical
