"""Where environments come from: a name and its arguments, from which any process makes them."""

from __future__ import annotations

import inspect
import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.names import find_env
from penstock_producers.envs.wrapper import Wrapper
from penstock_schemas.errors import EnvError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock_producers.envs.closing import AnyVectorEnv
    from penstock_producers.envs.names import Factory
    from penstock_producers.envs.wrapper import AnyEnv


@dataclass(frozen=True)
class EnvSource:
    """How an environment is made, one at a time or as a ready-made vector environment.

    The name is looked up when something is first asked of it, and `EnvError` tells what cannot be found or made.

    Attributes:
        env: A gymnasium id (`CartPole-v1`, or `module:Id-v0` for one that `module` registers), or `module:factory`.
            A factory that takes `num_envs` returns a gymnasium `VectorEnv`; any other returns one `gymnasium.Env`
            and is called for each env. An id without a version means the highest one.
        kwargs: What the environment or the factory is made with. A factory that has a parameter `env_index` is given
            the env's index in its vector, one that has a parameter `producer` the producer's name.
        wrappers: Around each single env, the first one innermost.
        producer: The producer's name.
    """

    env: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()
    producer: str = ""

    @property
    def has_single(self) -> bool:
        """Whether single envs can be made."""
        found = self._found
        return found.entry_point is not None if isinstance(found, EnvSpec) else "num_envs" not in self._parameters

    @property
    def has_vector(self) -> bool:
        """Whether it has a vector environment of its own."""
        found = self._found
        return found.vector_entry_point is not None if isinstance(found, EnvSpec) else "num_envs" in self._parameters

    def single(self, index: int, **changed: Any) -> AnyEnv:
        """Make the env of this index, in its wrappers; `changed` stands before `kwargs`.

        Raises `EnvError` where the environment makes vectors only, or where it or a wrapper cannot be made.
        """
        if not self.has_single:
            raise EnvError(f"environment {self.env!r} makes vector environments only, so no single one can be had")
        for wrapper in self.wrappers:
            wrapper.find(self.env)  # what is not there is told before anything is made
        kwargs = {**self.kwargs, **changed}
        with self._explained(f"with kwargs {kwargs}"):
            made = self._single(index, kwargs)
        try:
            for wrapper in self.wrappers:
                with self._explained(f"in wrapper {wrapper.name!r} with arguments {dict(wrapper.arguments)}"):
                    made = wrapper.wrap(made, self.env)
        except EnvError:
            with suppress(Exception):  # what is wrong is told already
                made.close()
            raise
        return made

    def vector(self, num_envs: int) -> AnyVectorEnv:
        """Make its own vector environment; raises `EnvError` where it has none, or where wrappers are to go around."""
        if not self.has_vector:
            raise EnvError(f"environment {self.env!r} has no vector entry point; use lanes")
        if self.wrappers:
            names = ", ".join(repr(wrapper.name) for wrapper in self.wrappers)
            raise EnvError(
                f"environment {self.env!r}: a vector entry point takes no wrappers, so {names} cannot be had; use lanes"
            )
        with self._explained(f"with kwargs {dict(self.kwargs)}"):
            return self._vector(num_envs)

    def to_json(self) -> dict[str, Any]:
        """Describe the source, for another process; raises `EnvError` for arguments that are not plain JSON."""
        described = {
            "env": self.env,
            "kwargs": dict(self.kwargs),
            "wrappers": [wrapper.to_json() for wrapper in self.wrappers],
            "producer": self.producer,
        }
        for name, part in described.items():
            try:
                same = json.loads(json.dumps(part)) == part
            except (TypeError, ValueError):
                same = False
            if not same:
                raise EnvError(
                    f"environment {self.env!r}: {name} {part!r} are not plain JSON, so no other process can be given "
                    "them; use numbers, strings, lists and dicts with string keys, or no workers"
                )
        return described

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> EnvSource:
        """Read what `to_json` described."""
        wrappers = tuple(Wrapper.from_json(wrapper) for wrapper in described["wrappers"])
        return cls(described["env"], described["kwargs"], wrappers, described["producer"])

    @cached_property
    def _found(self) -> EnvSpec | Factory:
        return find_env(self.env)

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self._found).parameters  # type: ignore[arg-type]  # asked of factories only
        except ValueError as error:
            raise EnvError(
                f"environment {self.env!r}: which arguments the factory takes cannot be seen ({error}); have a Python "
                "function call it"
            ) from error

    def _single(self, index: int, kwargs: Mapping[str, Any]) -> AnyEnv:
        found = self._found
        if isinstance(found, EnvSpec):
            # What gymnasium's checker asks of a first step is asked of every step where the rows are made, and nothing
            # here steps an env that was not reset.
            unguarded = replace(found, order_enforce=False)
            return gymnasium.make(unguarded, **{"disable_env_checker": True, **kwargs})
        made = found(**{**self._asked(env_index=index, producer=self.producer), **kwargs})
        if isinstance(made, gymnasium.Env):
            return made
        hint = "; let it take `num_envs`" if isinstance(made, VectorEnv) else ""
        raise EnvError(
            f"environment {self.env!r}: the factory returned a {type(made).__name__}, no gymnasium.Env{hint}"
        )

    def _vector(self, num_envs: int) -> AnyVectorEnv:
        found = self._found
        if isinstance(found, EnvSpec):
            return gymnasium.make_vec(found, num_envs, vectorization_mode="vector_entry_point", **self.kwargs)
        made = found(**{**self._asked(producer=self.producer), **self.kwargs}, num_envs=num_envs)
        if isinstance(made, VectorEnv):
            return made
        raise EnvError(
            f"environment {self.env!r}: a factory that takes `num_envs` must return a gymnasium.vector.VectorEnv, but "
            f"returned a {type(made).__name__}"
        )

    def _asked(self, **offered: Any) -> dict[str, Any]:
        return {name: value for name, value in offered.items() if name in self._parameters}

    @contextmanager
    def _explained(self, how: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except CONTAINED as error:
            raise EnvError(f"environment {self.env!r} cannot be made {how}: {told(error)}") from error
