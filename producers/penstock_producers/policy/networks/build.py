"""The built-in networks by name, for a space of inputs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from penstock_producers.policy.inputs import flat_shape
from penstock_producers.policy.networks.actor_critic import ActorCritic
from penstock_producers.policy.networks.convolutions import Convolutions
from penstock_producers.policy.networks.mlp import Mlp, checked_widths
from penstock_producers.policy.networks.q_network import QNetwork
from penstock_producers.policy.networks.recurrent import Recurrent
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from penstock_schemas.spaces import Space

ACTOR_CRITIC, CONVOLUTIONAL, RECURRENT, Q_NETWORK = "actor-critic", "convolutional", "recurrent", "q-network"
_MLP = "mlp"
_IMAGE_RANK = 3


def build_network(
    name: str, space: Space, parameters: int, free_log_std: int, arguments: Mapping[str, Any]
) -> nn.Module:
    """Make a network that answers so many parameters for observations of a space.

    `free_log_std` says how many of them do not depend on the observation, where the arguments do not. Raises
    `PolicyError` for a space that the network does not take, and what Python raises for arguments that it has not.
    """
    free = {} if name == Q_NETWORK else {"free_log_std": free_log_std}
    return NETWORKS[name](space, parameters, **{**free, **arguments})


def _actor_critic(space: Space, parameters: int, *, free_log_std: int, **trunk: Any) -> nn.Module:
    return ActorCritic(_trunk(_MLP, space, trunk), parameters, free_log_std)


def _convolutional(space: Space, parameters: int, *, free_log_std: int, **trunk: Any) -> nn.Module:
    return ActorCritic(_trunk(CONVOLUTIONAL, space, trunk), parameters, free_log_std)


def _recurrent(
    space: Space,
    parameters: int,
    *,
    free_log_std: int,
    units: int = 64,
    trunk: str = _MLP,
    hidden: Sequence[int] = (64,),
    **more: Any,
) -> nn.Module:
    checked_widths([units])
    return Recurrent(_trunk(trunk, space, {"hidden": hidden, **more}), parameters, units, free_log_std)


def _q_network(space: Space, parameters: int, *, trunk: str | None = None, **more: Any) -> nn.Module:
    image = isinstance(space, Box) and len(space.shape) == _IMAGE_RANK
    return QNetwork(_trunk(trunk or (CONVOLUTIONAL if image else _MLP), space, more), parameters)


def _trunk(kind: str, space: Space, arguments: Mapping[str, Any]) -> Mlp | Convolutions:
    if kind == _MLP:
        return Mlp(prod(flat_shape(space)), **arguments)
    if kind == CONVOLUTIONAL:
        return Convolutions(space, **arguments)
    raise PolicyError(f"trunk {kind!r}: there are {_MLP!r} and {CONVOLUTIONAL!r}")


NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    ACTOR_CRITIC: _actor_critic,
    RECURRENT: _recurrent,
    CONVOLUTIONAL: _convolutional,
    Q_NETWORK: _q_network,
}
