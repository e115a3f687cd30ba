"""From settings to what steps: the envs, the policy, and the stream that the two give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from penstock_producers.envs import Containment, EnvSource, Wrapper, make_envs
from penstock_producers.policy import make_policy
from penstock_schemas.errors import SettingsError
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from penstock_producers.envs import Envs, Seeds
    from penstock_producers.policy import Policy
    from penstock_producers.settings import ProducerSettings

_DESCRIBED = "--env-arguments, --wrappers, --policy-arguments, --behaviour or --connectors"


def env_source(settings: ProducerSettings) -> EnvSource:
    """Name the environment as the settings do; raises `EnvError` for wrappers that are not described as such."""
    wrappers = tuple(Wrapper.from_json(wrapper) for wrapper in settings.wrappers)
    return EnvSource(settings.env, settings.env_arguments, wrappers, settings.producer_id)


def containment(settings: ProducerSettings) -> Containment:
    """Contain the envs as the settings do."""
    return Containment(
        step_timeout=settings.step_timeout_seconds,
        max_rebuilds=settings.max_rebuilds,
        backoff=settings.rebuild_backoff_seconds,
        check_bounds=settings.check_bounds,
    )


def make_env(settings: ProducerSettings, seeds: Seeds, clock: Callable[[], float]) -> Envs:
    """Make the envs that the settings describe."""
    if len(set(settings.infos)) < len(settings.infos):
        raise SettingsError(f"--infos {settings.infos}: each key once")
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
        containment=containment(settings),
    )


def make_described(
    settings: ProducerSettings, env: Envs, rng: np.random.Generator, metrics: Sequence[str] = ()
) -> tuple[StreamSpec, Policy]:
    """Make the policy that the settings describe for envs, and describe the stream that the two give."""
    return describe(
        settings.stream,
        env,
        {"id": settings.env, "arguments": settings.env_arguments, "wrappers": settings.wrappers},
        policy=settings.policy,
        arguments=settings.policy_arguments,
        behaviour=settings.behaviour,
        connectors=settings.connectors,
        metrics=metrics,
        rng=rng,
        device=settings.device,
    )


def describe(
    stream: str,
    env: Envs,
    origin: Mapping[str, Any],
    *,
    policy: str,
    arguments: Mapping[str, Any] | None = None,
    behaviour: Mapping[str, Any] | None = None,
    connectors: Sequence[Mapping[str, Any]] = (),
    metrics: Sequence[str] = (),
    rng: np.random.Generator,
    device: str = "cpu",
) -> tuple[StreamSpec, Policy]:
    """Make a policy for envs, and describe the stream that the two give.

    Args:
        stream: the stream's name.
        env: the envs.
        origin: how the env is made again, in values that JSON has.
        policy: what `make_policy` knows it as; `arguments`, `behaviour`, `connectors`, `rng` and `device` are as
            there.
        arguments: of the policy.
        behaviour: of the policy.
        connectors: before the policy.
        metrics: the names of what callbacks measure of an episode.
        rng: draws the actions.
        device: where the policy computes.
    """
    made = make_policy(
        policy,
        env.observation_space,
        env.action_space,
        arguments=arguments,
        behaviour=behaviour,
        connectors=connectors,
        infos=env.infos,
        rng=rng,
        device=device,
    )
    described = {
        "name": policy,
        "arguments": dict(arguments or {}),
        "behaviour": dict(behaviour or {}),
        "connectors": [dict(connector) for connector in connectors],
        "mapping": made.mapping,
    }
    spec = spec_of(stream, env, made, origin, described, metrics)
    try:
        spec.canonical  # noqa: B018  (made here, so that what JSON cannot hold is refused here)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{_DESCRIBED}: no plain JSON: {error}") from error
    return spec, made


def spec_of(
    stream: str,
    env: Envs,
    policy: Policy,
    origin: Mapping[str, Any],
    described: Mapping[str, Any],
    metrics: Sequence[str] = (),
) -> StreamSpec:
    """Say what is recorded of envs and a policy; `origin` and `described` tell how each is made again."""
    return StreamSpec(
        stream,
        env.observation_space,
        env.action_space,
        env.reward_dtype,
        policy.extras,
        env.infos,
        policy.states,
        tuple(metrics),
        origin,
        described,
    )


def _autoreset(name: str | None) -> AutoresetMode | None:
    try:
        return None if name is None else AutoresetMode(name)
    except ValueError as error:
        known = ", ".join(mode.value for mode in AutoresetMode)
        raise SettingsError(f"--autoreset {name}: there are {known}") from error
