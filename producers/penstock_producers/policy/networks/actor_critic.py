"""The network that acts and values: a trunk, and one head for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from penstock_producers.policy.networks.head import Head
from penstock_producers.policy.networks.mlp import Mlp, numpy_layers

if TYPE_CHECKING:
    from penstock_producers.policy.forward import Forward, Forwarded
    from penstock_producers.policy.networks.convolutions import Convolutions
    from penstock_schemas.spaces import Leaves


class ActorCritic(nn.Module):
    """From observations to action parameters and a value.

    Args:
        trunk: from observations (n, *shape) to features (n, `trunk.width`).
        parameters: how many numbers describe one action's distribution.
        free_log_std: see `Head`.
    """

    def __init__(self, trunk: Mlp | Convolutions, parameters: int, free_log_std: int = 0) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = Head(trunk.width, parameters, free_log_std)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations (n, *shape) to action parameters (n, `parameters`) and values (n,)."""
        answer: tuple[Tensor, Tensor] = self.head(self.trunk(observation))
        return answer

    def numpy_forward(self) -> Forward | None:
        """Make the same function in numpy, of the weights as they are now; None where torch is as fast."""
        if not isinstance(self.trunk, Mlp):
            return None
        trunk, head = numpy_layers(self.trunk), self.head.numpy_forward()

        def forward(given: Leaves, state: Leaves) -> Forwarded:
            return (*head(trunk(given[0])), state)

        return forward
