"""Making a policy by name, for an environment's spaces."""

from __future__ import annotations

from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from penstock_producers.policy.actor_critic import ActorCritic
from penstock_producers.policy.distributions import distribution_for
from penstock_producers.policy.inputs import examples, flat, flat_shape, tensors
from penstock_producers.policy.random_policy import RandomPolicy
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_schemas.connectors import Pipeline
from penstock_schemas.errors import PenstockError, PolicyError
from penstock_schemas.spaces import Box, Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from penstock_producers.policy.base import Policy

BUILT_IN = "actor-critic"
RANDOM = "random"
# Every producer of a stream begins with the same weights: version 0 then means the same everywhere.
_INITIAL_SEED = 0
_SEEDING = Lock()
_PROBED = 2


def make_policy(
    name: str,
    observation: Space,
    action: Space,
    *,
    arguments: Mapping[str, Any] | None = None,
    rng: np.random.Generator,
) -> Policy:
    """Make "actor-critic", "random", or what `module:factory` returns for the spaces.

    A factory is called with (observation space, action space, **arguments). It returns a `torch.nn.Module` whose
    forward takes a tensor (n, *shape), or a dict or tuple of them as the observation space is, and answers action
    parameters (logits for Discrete; means and logs of deviations for Box) and values. Raises `PolicyError` where it
    cannot be made, answers other shapes, or has weights that cannot travel.
    """
    if name == RANDOM:
        if arguments:
            raise PolicyError(f"policy {name!r}: it takes no arguments, but was given {dict(arguments)}")
        return RandomPolicy(observation, action, rng)
    distribution = distribution_for(action)
    try:
        module = _make_module(name, observation, action, distribution.parameters, arguments or {})
    except PenstockError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise PolicyError(f"policy {name!r}: it cannot be made with {dict(arguments or {})}: {told}") from error
    if not isinstance(module, torch.nn.Module):
        raise PolicyError(f"policy {name!r}: the factory returned {type(module).__name__}, not a torch.nn.Module")
    # By name: a factory may answer the built-in class with other layers in it.
    make_forward = module.numpy_forward if isinstance(module, ActorCritic) and name == BUILT_IN else None
    inputs = flat(observation) if name == BUILT_IN else tensors(observation)
    policy = TorchPolicy(module, inputs, Pipeline(observation), action, distribution, rng, make_forward=make_forward)
    policy.probe(examples(observation, _PROBED))
    return policy


def _make_module(name: str, observation: Space, action: Space, parameters: int, arguments: Mapping[str, Any]) -> Any:
    factory = None if name == BUILT_IN else _factory(name)
    # torch initializes weights from one generator for the whole process: it is lent, and given back as it was.
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIAL_SEED)
        if factory is not None:
            return factory(observation, action, **arguments)
        log_std = parameters // 2 if isinstance(action, Box) else 0
        return ActorCritic(flat_shape(observation), parameters, **{"free_log_std": log_std, **arguments})


def _factory(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise PolicyError(f"policy {name!r}: neither {BUILT_IN!r} nor {RANDOM!r} nor of the form module:factory")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise PolicyError(f"policy {name!r}: it cannot be imported: {type(error).__name__}: {error}") from error
