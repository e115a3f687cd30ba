"""Making a policy by name, for an environment's spaces."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_producers.policy.actor_critic import ActorCritic
from penstock_producers.policy.distributions import distribution_for
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Space

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILT_IN = "actor-critic"
# Every producer of a stream begins with the same weights: version 0 then means the same everywhere.
_INITIAL_SEED = 0


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
    of deviations for Box) and values. Raises `PolicyError` where it cannot be made or answers other shapes.
    """
    torch.manual_seed(_INITIAL_SEED)
    distribution = distribution_for(action)
    try:
        if name == BUILT_IN:
            log_std = distribution.parameters // 2 if isinstance(action, Box) else 0
            settings = {"free_log_std": log_std, **(arguments or {})}
            module: Any = ActorCritic(observation.shape, distribution.parameters, **settings)
        else:
            module = _factory(name)(observation, action, **(arguments or {}))
    except TypeError as error:
        raise PolicyError(f"policy {name!r}: it cannot be made with {dict(arguments or {})}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise PolicyError(f"policy {name!r}: the factory returned {type(module).__name__}, not a torch.nn.Module")
    policy = TorchPolicy(module, distribution, rng)
    policy.probe(np.zeros((2, *observation.shape), observation.dtype))
    return policy


def _factory(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise PolicyError(f"policy {name!r}: neither {BUILT_IN!r} nor of the form module:factory")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"policy {name!r}: it cannot be imported: {error}") from error
