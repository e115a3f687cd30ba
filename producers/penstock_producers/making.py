"""From settings to what steps: the envs, the policy, and the stream that the two give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from penstock_producers.envs import Containment, EnvSource, Wrapper, make_envs
from penstock_producers.policy import make_policy
from penstock_schemas.errors import SettingsError
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from penstock_producers.envs import Envs, Seeds
    from penstock_producers.policy import Policy
    from penstock_producers.settings import ProducerSettings


def env_source(settings: ProducerSettings) -> EnvSource:
    """Name the environment as the settings do; raises `EnvError` for wrappers that are not described as such."""
    wrappers = tuple(Wrapper.from_json(wrapper) for wrapper in settings.wrappers)
    return EnvSource(settings.env, settings.env_arguments, wrappers, settings.producer_id)


def make_env(settings: ProducerSettings, seeds: Seeds, clock: Callable[[], float]) -> Envs:
    """Make the envs that the settings describe."""
    if len(set(settings.infos)) < len(settings.infos):
        raise SettingsError(f"--infos {settings.infos}: each key once")
    containment = Containment(
        step_timeout=settings.step_timeout_seconds,
        max_rebuilds=settings.max_rebuilds,
        backoff=settings.rebuild_backoff_seconds,
        check_bounds=settings.check_bounds,
    )
    return make_envs(
        env_source(settings),
        settings.num_envs,
        seeds=seeds,
        clock=clock,
        vectorization=settings.vectorization,
        autoreset=_autoreset(settings.autoreset),
        infos=settings.infos,
        workers=settings.workers,
        lockstep=settings.lockstep,
        containment=containment,
    )


def describe(settings: ProducerSettings, env: Envs, rng: np.random.Generator) -> tuple[StreamSpec, Policy]:
    """Make the policy for envs, and describe the stream that the two give."""
    policy = make_policy(
        settings.policy,
        env.observation_space,
        env.action_space,
        arguments=settings.policy_arguments,
        rng=rng,
    )
    spec = _spec(
        settings.stream,
        env.observation_space,
        env.action_space,
        env.reward_dtype,
        policy.extras,
        env.infos,
        env={"id": settings.env, "arguments": settings.env_arguments, "wrappers": settings.wrappers},
        policy={"name": settings.policy, "arguments": settings.policy_arguments, "mapping": policy.mapping},
    )
    return spec, policy


def _spec(*columns: Any, **described: Any) -> StreamSpec:
    spec = StreamSpec(*columns, **described)
    try:
        spec.canonical  # noqa: B018  (made here, so that what JSON cannot hold is refused here)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"--env-arguments, --wrappers or --policy-arguments: no plain JSON: {error}") from error
    return spec


def _autoreset(name: str | None) -> AutoresetMode | None:
    try:
        return None if name is None else AutoresetMode(name)
    except ValueError as error:
        known = ", ".join(mode.value for mode in AutoresetMode)
        raise SettingsError(f"--autoreset {name}: there are {known}") from error
