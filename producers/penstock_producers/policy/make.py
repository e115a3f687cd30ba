"""Making a policy by name, for an environment's spaces."""

from __future__ import annotations

from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_producers.policy.actor_critic import ActorCritic
from penstock_producers.policy.distributions import distribution_for
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_schemas.errors import PenstockError, PolicyError
from penstock_schemas.spaces import Box, Discrete, Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

BUILT_IN = "actor-critic"
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
) -> TorchPolicy:
    """Make "actor-critic", or what `module:factory` returns for (observation space, action space, **arguments).

    A factory returns a `torch.nn.Module` whose forward answers action parameters (logits for Discrete; means and logs
    of deviations for Box) and values. Raises `PolicyError` where it cannot be made, answers other shapes, or has
    weights that cannot travel.
    """
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
    policy = TorchPolicy(module, action, distribution, rng, make_forward=make_forward)
    policy.probe(_observations(observation))
    return policy


def _observations(space: Space) -> NDArray[Any]:
    """Draw a few observations that a space holds, the same ones each time."""
    rng = np.random.default_rng(0)
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, _PROBED).astype(space.dtype)
    drawn = rng.standard_normal((_PROBED, *space.shape))
    if isinstance(space, Box):
        low, high = (np.broadcast_to(bounds, drawn[0].size).reshape(space.shape) for bounds in (space.low, space.high))
        drawn = np.clip(drawn, low, high)
    return drawn.astype(space.dtype)


def _make_module(name: str, observation: Space, action: Space, parameters: int, arguments: Mapping[str, Any]) -> Any:
    factory = None if name == BUILT_IN else _factory(name)
    # torch initializes weights from one generator for the whole process: it is lent, and given back as it was.
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIAL_SEED)
        if factory is not None:
            return factory(observation, action, **arguments)
        log_std = parameters // 2 if isinstance(action, Box) else 0
        return ActorCritic(observation.shape, parameters, **{"free_log_std": log_std, **arguments})


def _factory(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise PolicyError(f"policy {name!r}: neither {BUILT_IN!r} nor of the form module:factory")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise PolicyError(f"policy {name!r}: it cannot be imported: {type(error).__name__}: {error}") from error
