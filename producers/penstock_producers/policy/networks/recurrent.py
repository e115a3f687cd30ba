"""The network that remembers: a trunk, a gated recurrent unit, and one head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from penstock_producers.policy.networks.head import Head
from penstock_producers.policy.networks.mlp import Mlp, numpy_layers

if TYPE_CHECKING:
    from penstock_producers.policy.forward import Forward, Forwarded
    from penstock_producers.policy.networks.convolutions import Convolutions
    from penstock_schemas.spaces import Leaves


class Recurrent(nn.Module):
    """From observations and what was remembered to action parameters, a value, and what to remember.

    Args:
        trunk: from observations (n, *shape) to features (n, `trunk.width`).
        parameters: how many numbers describe one action's distribution.
        units: how many numbers it remembers of an episode.
        free_log_std: see `Head`.

    Attributes:
        state_shapes: what it remembers, by name; zeros at an episode's start.
    """

    def __init__(self, trunk: Mlp | Convolutions, parameters: int, units: int = 64, free_log_std: int = 0) -> None:
        super().__init__()
        self.trunk = trunk
        self.cell = nn.GRUCell(trunk.width, units)
        self.head = Head(units, parameters, free_log_std)
        self.state_shapes = {"hidden": (units,)}

    def forward(self, observation: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Map observations (n, *shape) and states ((n, `units`),) to parameters, values (n,) and the next states."""
        hidden = self.cell(self.trunk(observation), *state)
        parameters, value = self.head(hidden)
        return parameters, value, (hidden,)

    def numpy_forward(self) -> Forward | None:
        """Make the same function of the weights as they are now; None where torch is as fast.

        In numpy, whose calls cost less, but for the cell, which torch has as one operation.
        """
        if not isinstance(self.trunk, Mlp):
            return None
        trunk, head = numpy_layers(self.trunk), self.head.numpy_forward()
        # Copies that want no gradients: so there is nothing to be entered that says so.
        weights = [weight.detach().cpu().clone() for weight in self.cell.parameters()]

        def forward(given: Leaves, state: Leaves) -> Forwarded:
            features, before = torch.from_numpy(trunk(given[0])), torch.from_numpy(state[0])
            hidden = torch.gru_cell(features, before, *weights).numpy()
            return (*head(hidden), (hidden,))

        return forward
