"""Making a policy by name, for an environment's spaces."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import torch

from penstock_producers.contained import told
from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.distributions import distribution_for
from penstock_producers.policy.inputs import flat, structured
from penstock_producers.policy.networks import NETWORKS, Q_NETWORK, build_network
from penstock_producers.policy.random_policy import RandomPolicy
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_schemas.connectors import make_pipeline
from penstock_schemas.errors import PenstockError, PolicyError
from penstock_schemas.spaces import Box, Discrete, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from penstock_producers.policy.base import Policy
    from penstock_schemas.columns import Column
    from penstock_schemas.connectors import Pipeline

RANDOM = "random"
# What a q-network explores by where neither its behaviour nor a version says.
EPSILON = 0.1
# Every producer of a stream begins with the same weights: version 0 then means the same everywhere.
_INITIAL_SEED = 0
_SEEDING = Lock()
# What the protocol `Policy` names.
_POLICY = (
    *("act", "check", "load", "log_prob", "recompute", "value"),
    *("absent", "digest", "exploration", "extras", "mapping", "pipeline", "recording", "states", "version"),
)


@dataclass(frozen=True)
class _Setting:
    """What a policy is made for and with; those fields that a factory names as keyword-only parameters it is given."""

    pipeline: Pipeline
    behaviour: Behaviour
    infos: Sequence[Column]
    rng: np.random.Generator
    device: str


def make_policy(
    name: str,
    observation: Space,
    action: Space,
    *,
    arguments: Mapping[str, Any] | None = None,
    behaviour: Mapping[str, Any] | None = None,
    connectors: Sequence[Mapping[str, Any]] = (),
    infos: Sequence[Column] = (),
    rng: np.random.Generator,
    device: str = "cpu",
) -> Policy:
    """Make a policy, equal wherever it is made again of the same.

    A factory is called as `factory(observation, action, **arguments)`, with the space that leaves the connectors. It
    returns a `torch.nn.Module` as `TorchPolicy` takes one, whose inputs are a tensor (n, *shape), or a dict or tuple
    of them as the observation space is; or an object that is a `Policy` already.

    Args:
        name: "actor-critic", "recurrent", "convolutional", "q-network", "random", or `module:factory`.
        observation: the envs' observation space.
        action: the envs' action space.
        arguments: of the network or the factory.
        behaviour: as `Behaviour.from_json` reads it.
        connectors: before the policy, in order: {"name", "arguments"} each.
        infos: the columns of the envs' recorded infos, among them the behaviour's mask.
        rng: draws the actions.
        device: where a module computes, by torch's name.

    Raises:
        PolicyError: it cannot be made of these, answers what no policy can use, or has weights that cannot travel.
        SpaceError: a connector does not take what comes in.
    """
    pipeline = make_pipeline(connectors, observation, action)
    setting = _Setting(pipeline, Behaviour.from_json(behaviour or {}), infos, rng, device)
    given = dict(arguments or {})
    if name == RANDOM:
        if given:
            raise PolicyError(f"policy {name!r}: it takes no arguments, but was given {given}")
        return RandomPolicy(pipeline, action, behaviour=setting.behaviour, rng=rng, infos=infos)
    if name in NETWORKS:
        return _built_in(name, action, given, setting)
    factory = _factory(name)
    offered = _offered(factory, given, setting)
    made = _seeded(name, given, lambda: factory(pipeline.space, action, **given, **offered))
    missing = [attribute for attribute in _POLICY if not hasattr(made, attribute)]
    if not missing:
        return _own_policy(name, made, offered, setting)
    if not isinstance(made, torch.nn.Module):
        raise PolicyError(
            f"policy {name!r}: the factory returned {type(made).__name__}: no torch.nn.Module, nor a policy, which "
            f"has {', '.join(missing)} too"
        )
    distribution = distribution_for(action, setting.behaviour)
    return TorchPolicy(
        made,
        structured(pipeline.space),
        pipeline,
        action,
        distribution,
        behaviour=setting.behaviour,
        rng=rng,
        infos=infos,
        device=device,
    )


def _built_in(name: str, action: Space, arguments: Mapping[str, Any], setting: _Setting) -> Policy:
    behaviour, space = setting.behaviour, setting.pipeline.space
    valuing = name == Q_NETWORK
    if valuing:
        if not isinstance(action, Discrete):
            raise PolicyError(f"policy {name!r}: it values the actions of a Discrete space, not of {action!r}")
        behaviour = replace(behaviour, epsilon=EPSILON) if behaviour.epsilon is None else behaviour
    distribution = distribution_for(action, behaviour)
    layout = flat(space)
    free_log_std = distribution.parameters // 2 if isinstance(action, Box) else 0
    module = _seeded(
        name, arguments, lambda: build_network(name, space, distribution.parameters, free_log_std, arguments)
    )
    in_numpy = getattr(module, "numpy_forward", None)
    return TorchPolicy(
        module,
        layout,
        setting.pipeline,
        action,
        distribution,
        behaviour=behaviour,
        rng=setting.rng,
        infos=setting.infos,
        device=setting.device,
        action_values=valuing,
        # Some of them act by torch: those that have layers for which numpy is slower.
        numpy_forward=None if in_numpy is None or in_numpy() is None else in_numpy,
    )


def _seeded(name: str, arguments: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """Make a module, its weights drawn from the fixed seed."""
    try:
        # torch initializes weights from one generator for the whole process: it is lent, and given back as it was.
        with _SEEDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(_INITIAL_SEED)
            return make()
    except PolicyError as error:
        raise PolicyError(f"policy {name!r}: {error}") from error
    except PenstockError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {name!r}: it cannot be made with {dict(arguments)}: {told(error)}") from error


def _factory(name: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if not colon:
        built_in = ", ".join(map(repr, (*NETWORKS, RANDOM)))
        raise PolicyError(f"policy {name!r}: there are {built_in}, and a user's own of the form module:factory")
    try:
        factory: Callable[..., Any] = getattr(import_module(module), attribute)
    except Exception as error:
        raise PolicyError(f"policy {name!r}: it cannot be imported: {told(error)}") from error
    return factory


def _offered(factory: Callable[..., Any], arguments: Mapping[str, Any], setting: _Setting) -> dict[str, Any]:
    """What of the setting a factory names, which the user's own arguments do not set."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    return {key: value for key, value in vars(setting).items() if key in named and key not in arguments}


def _own_policy(name: str, made: Any, offered: Mapping[str, Any], setting: _Setting) -> Policy:
    if setting.pipeline and made.pipeline is not setting.pipeline:
        raise PolicyError(
            f"policy {name!r}: it acts without the connectors that are set: have the factory take `pipeline` as a "
            "keyword-only parameter, and the policy keep it as its own"
        )
    if setting.behaviour != Behaviour() and "behaviour" not in offered:
        raise PolicyError(
            f"policy {name!r}: it acts without the behaviour that is set: have the factory take `behaviour` as a "
            "keyword-only parameter, or leave it out"
        )
    return cast("Policy", made)
