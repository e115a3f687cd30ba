"""Wrappers by name, as settings give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
from gymnasium import wrappers

from penstock_producers.contained import told
from penstock_producers.envs.names import import_module
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"

_KEYS = {"name", "arguments"}
_KNOWN = [name for name in wrappers.__all__ if name != "vector"]  # a package of wrappers for vector environments


@dataclass(frozen=True)
class Wrapper:
    """One wrapper around each single env.

    Attributes:
        name: A name in `gymnasium.wrappers`, or `module:wrapper` for anything that takes an env and returns one.
        arguments: What it is made with, besides the env.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Wrapper:
        """Read `{"name": …, "arguments": {…}}`, the arguments may be left out; raises `EnvError` for anything else."""
        name, arguments = described.get("name"), described.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict) or not described.keys() <= _KEYS:
            raise EnvError(
                f"wrapper {dict(described)}: describe it as "
                '{"name": "TimeLimit", "arguments": {"max_episode_steps": 100}}, or with "module:wrapper" as the name'
            )
        return cls(name, arguments)

    def to_json(self) -> dict[str, Any]:
        """Describe the wrapper; `from_json` reads it back."""
        return {"name": self.name, "arguments": dict(self.arguments)}

    def find(self, env: str) -> Callable[..., Any]:
        """Find what the name stands for; `env` is the environment that is to be wrapped, for the `EnvError`."""
        subject = f"environment {env!r}: wrapper {self.name!r}"
        module_name, colon, name = self.name.rpartition(":")
        if not colon:
            return _gymnasiums(name, subject)
        module = import_module(module_name, subject)
        wrapper = getattr(module, name, None)
        if not callable(wrapper):
            raise EnvError(f"{subject}: module {module_name!r} has no wrapper {name!r}; it must be something callable")
        return wrapper  # type: ignore[no-any-return]  # it is callable

    def wrap(self, inner: AnyEnv, env: str) -> AnyEnv:
        """Put the wrapper around `inner`; raises `EnvError`, or whatever the wrapper does."""
        made = self.find(env)(inner, **self.arguments)
        if isinstance(made, gymnasium.Env):
            return made
        raise EnvError(f"environment {env!r}: wrapper {self.name!r} returned a {type(made).__name__}, no gymnasium.Env")


def _gymnasiums(name: str, subject: str) -> Callable[..., Any]:
    if name not in _KNOWN:
        near = get_close_matches(name, _KNOWN, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise EnvError(f"{subject}: gymnasium.wrappers has no such wrapper.{hint} Use `module:wrapper` for another")
    try:
        return getattr(wrappers, name)  # type: ignore[no-any-return]  # a class
    except Exception as error:  # imported only now, with what it alone needs
        raise EnvError(f"{subject} cannot be imported: {told(error)}; install it") from error
