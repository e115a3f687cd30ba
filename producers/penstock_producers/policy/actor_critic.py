"""The built-in network: one tanh trunk, one head with the distribution's parameters and the value."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Forward: TypeAlias = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


class ActorCritic(nn.Module):
    """A multi-layer perceptron from flattened observations to action parameters and a value.

    Args:
        observation_shape: the shape of one observation.
        parameters: how many numbers describe one action's distribution.
        hidden: the widths of the hidden layers.
        free_log_std: how many of the parameters, the last ones, are the same for all observations (the logs of a
            Gaussian's deviations); learned, and 0 at first.
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        parameters: int,
        hidden: Sequence[int] = (64, 64),
        free_log_std: int = 0,
    ) -> None:
        super().__init__()
        widths = [prod(observation_shape), *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self.trunk = nn.Sequential(*layers)
        self._heads = parameters - free_log_std
        # One matrix product for both heads.
        self.head = nn.Linear(widths[-1], self._heads + 1)
        self.log_std = nn.Parameter(torch.zeros(free_log_std)) if free_log_std else None

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations (n, *shape) to action parameters (n, `parameters`) and values (n,)."""
        flat = observation.reshape(len(observation), -1).to(self.head.weight.dtype)
        out = self.head(self.trunk(flat))
        parameters, value = out[:, : self._heads], out[:, self._heads]
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.expand(len(out), -1)], dim=1)
        return parameters, value

    def numpy_forward(self) -> Forward:
        """Make the same function in numpy, of the weights as they are now.

        At an env's batch sizes a torch operation costs more to call than to compute.
        """
        linears = [layer for layer in (*self.trunk, self.head) if isinstance(layer, nn.Linear)]
        layers = [(_numpy(layer.weight.T), _numpy(layer.bias)) for layer in linears]
        (*hidden, (head, head_bias)) = layers
        log_std = None if self.log_std is None else _numpy(self.log_std)
        heads, dtype = self._heads, head.dtype

        def forward(observation: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            out = observation.reshape(len(observation), -1).astype(dtype, copy=False)
            for weight, bias in hidden:
                out = out @ weight
                out += bias
                np.tanh(out, out=out)
            out = out @ head
            out += head_bias
            parameters, value = out[:, :heads], out[:, heads]
            if log_std is not None:
                parameters = np.concatenate([parameters, np.broadcast_to(log_std, (len(out), len(log_std)))], axis=1)
            return parameters, value

        return forward


def _numpy(weight: Tensor) -> NDArray[Any]:
    # A copy of its own, laid out for the product; the module's weights may change under a view.
    return np.array(weight.detach().numpy(), order="C")
