"""What an environment's name stands for: an id that gymnasium knows, or a factory in a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from penstock_producers.contained import told
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

Factory: TypeAlias = "Callable[..., Any]"


def find_env(env: str) -> EnvSpec | Factory:
    """Find what `env` names: an id, `module:id` for one that the module registers, or `module:factory`.

    An id without a version means the highest one. Raises `EnvError` for what is not there.
    """
    module_name, colon, name = env.rpartition(":")
    if not colon:
        return _spec(name, env)
    module = import_module(module_name, f"environment {env!r}")
    if name in gymnasium.registry:
        return gymnasium.spec(name)
    factory = getattr(module, name, None)
    if factory is None:
        return _spec(name, env, module)
    if not callable(factory):
        raise EnvError(f"environment {env!r}: {name} is a {type(factory).__name__}, but a factory must be callable")
    return factory  # type: ignore[no-any-return]  # it is callable


def import_module(name: str, subject: str) -> ModuleType:
    """Import a module by name; `subject` is what needs it, for the `EnvError` where that fails."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise EnvError(
            f"{subject}: module {name!r} cannot be imported: {told(error)}; install it, or put its folder on PYTHONPATH"
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
