"""From what a caller names or hands over to the envs, the policy and the stream that are collected with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from penstock_producers.envs import CanonicalEnv, EnvSource, Wrapper, make_envs
from penstock_producers.envs.vectorized import vector_seed
from penstock_producers.making import describe, spec_of
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from penstock_producers.envs import Envs, Seeds
    from penstock_producers.envs.wrapper import AnyEnv
    from penstock_producers.policy import Policy
    from penstock_schemas.stream import StreamSpec

    AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
    Collectable: TypeAlias = str | EnvSource | AnyEnv | Sequence[AnyEnv] | AnyVectorEnv | Envs

_STREAM = "collected"


class Stepped(NamedTuple):
    """Envs to collect from."""

    envs: Envs
    source: EnvSource | AnyEnv | None
    """From which an env for a video is had; None where none can be."""
    owned: bool
    """Whether they were made here, and are to be closed."""
    origin: dict[str, Any]
    """How they are described."""


def stepped(
    env: Collectable,
    num_envs: int,
    *,
    seeds: Seeds,
    clock: Callable[[], float],
    env_arguments: Mapping[str, Any] | None,
    wrappers: Sequence[Wrapper | Mapping[str, Any]],
    **settings: Any,
) -> Stepped:
    """Make envs by name or by source, or take those that exist; `settings` are those of `make_envs`.

    Raises `SettingsError` for what cannot be had of envs that exist, and what `make_envs` raises.
    """
    if isinstance(env, str):
        around = tuple(one if isinstance(one, Wrapper) else Wrapper.from_json(one) for one in wrappers)
        env = EnvSource(env, dict(env_arguments or {}), around, seeds.producer)
    elif env_arguments or wrappers:
        raise SettingsError(
            f"env_arguments {env_arguments} and wrappers {list(wrappers)} are for an environment that is named, not "
            f"for a {type(env).__name__}; give them to it yourself"
        )
    if isinstance(env, EnvSource):
        origin = {"id": env.env, "arguments": dict(env.kwargs), "wrappers": [one.to_json() for one in env.wrappers]}
        return Stepped(make_envs(env, num_envs, seeds=seeds, clock=clock, **settings), env, owned=True, origin=origin)
    existing = _existing(env, num_envs, seeds, clock, settings)
    single = env[0] if isinstance(env, Sequence) else env
    source = single if isinstance(single, gymnasium.Env) else None
    return Stepped(existing, source, owned=False, origin={"id": str(single)})


def acted(
    envs: Envs,
    policy: str | Policy,
    origin: Mapping[str, Any],
    *,
    metrics: tuple[str, ...],
    rng: np.random.Generator,
    arguments: Mapping[str, Any] | None,
    behaviour: Mapping[str, Any] | None,
    connectors: Sequence[Mapping[str, Any]],
    device: str,
) -> tuple[StreamSpec, Policy]:
    """Make a policy by name, or take one that exists, and describe what is recorded.

    Raises `SettingsError` for what cannot be had of a policy that exists, and what `make_policy` raises.
    """
    if isinstance(policy, str):
        given: dict[str, Any] = {"arguments": arguments, "behaviour": behaviour, "connectors": connectors}
        return describe(_STREAM, envs, origin, policy=policy, metrics=metrics, rng=rng, device=device, **given)
    if arguments or behaviour or connectors:
        raise SettingsError(
            f"policy_arguments, behaviour and connectors are for a policy that is named, not for a "
            f"{type(policy).__name__}; give them to it yourself"
        )
    described = {"name": type(policy).__name__, "mapping": policy.mapping}
    return spec_of(_STREAM, envs, policy, origin, described, metrics), policy


def _existing(
    env: AnyEnv | Sequence[AnyEnv] | AnyVectorEnv | Envs,
    num_envs: int,
    seeds: Seeds,
    clock: Callable[[], float],
    settings: dict[str, Any],
) -> Envs:
    if isinstance(env, VectorEnv):
        made: Envs = CanonicalEnv(env, seed=vector_seed(env, seeds), infos=settings["infos"])
    elif isinstance(env, gymnasium.Env | Sequence):
        # They are stepped in this process, all together anyway.
        return make_envs(env, seeds=seeds, clock=clock, **settings)
    else:
        made = env
    if num_envs not in {1, made.num_envs} or settings["workers"]:
        raise SettingsError(
            f"num_envs {num_envs} and workers {settings['workers']}: {made.num_envs} envs were handed over as they "
            "are; leave both out"
        )
    return made
