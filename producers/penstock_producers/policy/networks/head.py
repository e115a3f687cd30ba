"""The last layer of a network that acts and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock_producers.policy.networks.mlp import numpy_affine

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Head(nn.Linear):
    """One matrix product for a distribution's parameters and the value.

    Args:
        width: how many features come in.
        parameters: how many numbers describe one action's distribution.
        free_log_std: how many of the parameters, the last ones, are the same for all observations (the logs of a
            Gaussian's deviations); learned, and 0 at first.
    """

    def __init__(self, width: int, parameters: int, free_log_std: int = 0) -> None:
        super().__init__(width, parameters - free_log_std + 1)
        self.log_std = nn.Parameter(torch.zeros(free_log_std)) if free_log_std else None

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # a layer with two answers
        """Map features (n, `width`) to action parameters (n, `parameters`) and values (n,)."""
        out = super().forward(features)
        parameters, value = out[:, :-1], out[:, -1]
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.expand(len(out), -1)], dim=1)
        return parameters, value

    def numpy_forward(self) -> Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]:
        """Make the same function in numpy, of the weights as they are now."""
        weight, bias = (of.detach().cpu().numpy() for of in (self.weight, self.bias))
        if self.log_std is not None:
            # What does not depend on the features is an output whose weights are 0: the product makes room for it.
            free = self.log_std.detach().cpu().numpy()
            weight = np.concatenate([weight[:-1], np.zeros((len(free), weight.shape[1]), weight.dtype), weight[-1:]])
            bias = np.concatenate([bias[:-1], free, bias[-1:]])
        product = numpy_affine(weight, bias)

        def forward(features: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            out = product(features)
            return out[:, :-1], out[:, -1]

        return forward
