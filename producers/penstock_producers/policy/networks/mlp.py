"""Fully connected layers: as a torch module, and as the same function in numpy."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


# Of so many numbers, 128 rows of 64, an exponential and four passes more take less time than numpy's tanh.
_MANY = 1 << 13
# From here on a tanh is of the size of 1.
_LARGE = 0.5


class Mlp(nn.Sequential):
    """Linear layers over flattened observations, each followed by a tanh.

    Args:
        inputs: how many numbers one observation has.
        hidden: the widths of the layers; none passes the flattened observations on.

    Attributes:
        width: how many numbers come out.
    """

    def __init__(self, inputs: int, hidden: Sequence[int] = (64, 64)) -> None:
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *checked_widths(hidden))):
            layers += [nn.Linear(before, after), nn.Tanh()]
        super().__init__(*layers)
        self.width = (inputs, *hidden)[-1]

    def forward(self, observation: Tensor) -> Tensor:
        """Map observations (n, *shape) to (n, `width`)."""
        flat = observation.reshape(len(observation), -1).float()
        features: Tensor = super().forward(flat)  # type: ignore[no-untyped-call]  # torch's
        return features


def checked_widths(hidden: Sequence[Any]) -> Sequence[int]:
    """Give the widths of layers back; raises `ValueError` where one is no positive whole number."""
    if not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(f"hidden layers of the widths {list(hidden)}: each is a whole number above 0")
    return hidden


def numpy_layers(mlp: Mlp) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Make the same function as `mlp(observation)` in numpy, of the weights as they are now.

    At an env's batch sizes a torch operation costs more to call than to compute. What it answers may be a view of the
    observation where there are no layers.
    """
    layers = [numpy_linear(layer) for layer in mlp if isinstance(layer, nn.Linear)]

    def forward(observation: NDArray[Any]) -> NDArray[Any]:
        out: NDArray[Any] = observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        for layer in layers:
            out = layer(out)
            _tanh(out)
        return out

    return forward


def _tanh(values: NDArray[np.float32]) -> None:
    """Put in place of values their tanh, to some 2e-7 of the largest."""
    # Where all are small, what the exponential is off would be much of them.
    if values.size < _MANY or max(values.max(), -values.min()) < _LARGE:
        np.tanh(values, out=values)
        return
    # 1 - 2 / (exp(2 x) + 1), which is right where the exponential is infinite too.
    with np.errstate(over="ignore"):
        values += values
        np.exp(values, out=values)
    values += 1
    np.divide(-2, values, out=values)
    values += 1


def numpy_linear(layer: nn.Linear) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Make the same function as a linear layer in numpy, of the weights as they are now."""
    return numpy_affine(*(of.detach().cpu().numpy() for of in (layer.weight, layer.bias)))


def numpy_affine(weight: NDArray[Any], bias: NDArray[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Make the function from values (n, k) to `values @ weight.T + bias`, of these weights (m, k) as they are now."""
    # Copies, laid out for the product; a module's weights may change under a view.
    weight, bias = np.array(weight.T, order="C"), bias.copy()
    # The bias once for each row, of as many rows as there ever were: numpy is slow where it adds row by row.
    biases = bias[np.newaxis]

    def forward(values: NDArray[Any]) -> NDArray[Any]:
        nonlocal biases
        n = len(values)
        if len(biases) < n:
            biases = np.tile(bias, (n, 1))
        # To the bit what `@` gives, which takes longer to call.
        out: NDArray[Any] = values.dot(weight)
        out += biases[:n]
        return out

    return forward
