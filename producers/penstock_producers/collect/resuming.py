"""The components of a collector's state: described, looked at before any is loaded, and loaded."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from penstock_producers.collect.statistics import Lifetime
from penstock_producers.state import Component, describe_generator, restore_generator
from penstock_schemas.errors import PolicyError, PolicyRejectedError, SettingsError
from penstock_schemas.policies import PolicyRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from penstock_producers.policy import Policy
    from penstock_producers.state import Generator

COMPONENTS = ("counters", "policy", "generators")


class Counters(NamedTuple):
    """The figures so far, and numbers of each env, shape (N,)."""

    lifetime: Lifetime
    episodes: NDArray[np.int64]
    resets: NDArray[np.int64] | None


class Loaded(NamedTuple):
    """A version that was loaded."""

    record: PolicyRecord
    acts: bytes
    """The digest of what acts since: another one where the network wrote to its weights when it was tried."""


@contextmanager
def _reading(component: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise SettingsError(
            f"component {component!r} of the state is not what a collector saves: {error!r}; load another state"
        ) from error


def known(component: str) -> str:
    """Give a component's name back; raises `SettingsError` where it is none."""
    if component not in COMPONENTS:
        raise SettingsError(f"component {component!r} of a collector's state: there are {', '.join(COMPONENTS)}")
    return component


def counters_state(lifetime: Lifetime, episodes: NDArray[Any], resets: NDArray[Any] | None) -> Component:
    """Describe the figures so far, and the number of each env's next episode and, in lanes, of its next reset."""
    return Component(
        {
            "lifetime": lifetime.to_json(),
            "episodes": episodes.tolist(),
            "resets": None if resets is None else resets.tolist(),
        }
    )


@_reading("counters")
def counters_of(component: Component, num_envs: int) -> Counters:
    """Read the counters; raises `SettingsError` unless they are of as many envs."""
    described = component.values
    resets = described["resets"]
    return Counters(
        Lifetime.from_json(described["lifetime"]),
        _numbers(described["episodes"], num_envs),
        None if resets is None else _numbers(resets, num_envs),
    )


def policy_state(policy: Policy, loaded: Loaded | None) -> Component:
    """Describe what acts, which is the version that was loaded, or the weights that the policy began with."""
    version = policy.version
    # The number alone tells too little: others may load other weights under the same one.
    if version != 0 if loaded is None else (loaded.record.version, loaded.acts) != (version, policy.digest):
        raise PolicyError(
            f"policy version {version} was not loaded by this collector, so its weights cannot be saved; load it with "
            "Collector.load"
        )
    if loaded is None:
        return Component({"version": version, "digest": policy.digest.hex()})
    record = loaded.record
    described = {"version": version, "digest": record.digest.hex(), "settings": dict(record.settings)}
    return Component(described, record.weights)


def version_of(component: Component) -> PolicyRecord | None:
    """Read the version that is to be loaded; None for the weights that the policy begins with."""
    described = component.values
    if "settings" not in described:
        return None
    return PolicyRecord(described["version"], component.arrays, described["settings"])


@_reading("policy")
def check_policy(component: Component, policy: Policy) -> None:
    """Raise `PolicyRejectedError` for a version that it does not take, `PolicyError` for weights that it has no more.

    A state in which no version was loaded holds no weights: those with which the policy began must act.
    """
    version = version_of(component)
    if version is not None:
        policy.check(version)
        if version.digest.hex() != component.values["digest"]:
            raise PolicyRejectedError(
                "digest",
                f"policy version {version.version} of the state: its digest is not that of its weights: the state was "
                "altered; load an earlier one",
            )
    elif policy.version:
        raise PolicyError(
            f"the state is of the weights that a policy begins with, and version {policy.version} acts now: they are "
            "not kept; make a new collector"
        )
    elif policy.digest.hex() != component.values["digest"]:
        raise PolicyError(
            f"policy version {component.values['version']} of the state has other weights than this policy; make it "
            "with the same name, arguments and connectors"
        )


def generators_state(seeds: Mapping[str, Any], generators: Mapping[str, Generator]) -> Component:
    """Describe the root of the seeds, and where each generator stands."""
    return Component({**seeds, "generators": {name: describe_generator(of) for name, of in generators.items()}})


@_reading("generators")
def check_generators(component: Component, seeds: Mapping[str, Any], generators: Mapping[str, Generator]) -> None:
    """Raise `SettingsError` for other seeds, and for other generators or other kinds of them."""
    described = component.values
    saved = {name: described[name] for name in seeds}
    if saved != seeds:
        raise SettingsError(f"the state is of a collector with {saved}, this one has {seeds}: make it with the same")
    states = described["generators"]
    if states.keys() != generators.keys():
        raise SettingsError(
            f"the state has the generators {sorted(states)}, this collector {sorted(generators)}: make it with the same"
        )
    load_generators(component, {name: _another(generator) for name, generator in generators.items()})


def load_generators(component: Component, generators: Mapping[str, Generator]) -> None:
    """Take the generators to where they stood."""
    states = component.values["generators"]
    for name, generator in generators.items():
        restore_generator(generator, states[name])


def _numbers(described: Any, num_envs: int) -> NDArray[np.int64]:
    if not all(type(number) is int and number >= 0 for number in described):
        raise ValueError(f"numbers of episodes {described}")
    numbers = np.array(described, np.int64)
    if numbers.shape != (num_envs,):
        told = f"the state counts the episodes of {numbers.size} envs, but there are {num_envs}: make as many"
        raise SettingsError(told)
    return numbers


def _another(generator: Generator) -> Generator:
    """Make another of the same kind."""
    return torch.Generator(generator.device) if isinstance(generator, torch.Generator) else copy.deepcopy(generator)
