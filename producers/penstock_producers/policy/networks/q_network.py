"""The network that values each action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from penstock_producers.policy.networks.mlp import Mlp, numpy_layers, numpy_linear

if TYPE_CHECKING:
    from penstock_producers.policy.forward import Forward, Forwarded
    from penstock_producers.policy.networks.convolutions import Convolutions
    from penstock_schemas.spaces import Leaves


class QNetwork(nn.Module):
    """From observations to what each action is worth.

    It answers no value of the observation: that is the most that an allowed action is worth, and which are allowed is
    not for a network to know.

    Args:
        trunk: from observations (n, *shape) to features (n, `trunk.width`).
        actions: how many there are.
    """

    def __init__(self, trunk: Mlp | Convolutions, actions: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(trunk.width, actions)

    def forward(self, observation: Tensor) -> tuple[Tensor, None]:
        """Map observations (n, *shape) to what the actions are worth (n, `actions`)."""
        return self.head(self.trunk(observation)), None

    def numpy_forward(self) -> Forward | None:
        """Make the same function in numpy, of the weights as they are now; None where torch is as fast."""
        if not isinstance(self.trunk, Mlp):
            return None
        trunk, head = numpy_layers(self.trunk), numpy_linear(self.head)

        def forward(given: Leaves, state: Leaves) -> Forwarded:
            return head(trunk(given[0])), None, state

        return forward
