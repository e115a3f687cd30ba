"""One batched forward of a network, on numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from penstock_producers.policy.device import Device
    from penstock_schemas.spaces import Leaves


# Plain tuples and functions, since there is one of each a vector step: parameters (n, k), values (n,) or None where the
# network values nothing, and what it remembers from here on, an array (n, *shape) for each of its states.
Forwarded: TypeAlias = "tuple[NDArray[np.float32], NDArray[np.float32] | None, Leaves]"
# Of what `Layout.gather` made of n observations, and of the states before them; a network that remembers nothing
# answers the states that it was given, which are none.
Forward: TypeAlias = "Callable[[Leaves, Leaves], Forwarded]"


class ModuleForward:
    """Calls a torch module, without gradients.

    Args:
        module: its forward takes what `structure` makes of the tensors, and, where it is recurrent, a tuple of states;
            it answers parameters, a value or None, and, where it is recurrent, a tuple of the next states.
        structure: as in `Layout`.
        device: where the module is.
        recurrent: whether it is.
    """

    def __init__(
        self, module: torch.nn.Module, structure: Callable[[Sequence[Tensor]], Any], device: Device, *, recurrent: bool
    ) -> None:
        self._module = module
        self._structure = structure
        self._device = device
        self._recurrent = recurrent

    def answer(self, given: Leaves, state: Leaves) -> Any:
        """Call the module; gives what it answers, where it answers it."""
        there = self._device.there
        with torch.inference_mode(), self._device.exact():
            inputs = self._structure([there(leaf) for leaf in given])
            if self._recurrent:
                return self._module(inputs, tuple(there(part) for part in state))
            return self._module(inputs)

    def __call__(self, given: Leaves, state: Leaves) -> Forwarded:
        """Call the module."""
        return self.arrays(self.answer(given, state))

    def arrays(self, answer: Any) -> Forwarded:
        """Bring back what a module answered as it must."""
        parameters, value, *rest = answer
        after = rest[0] if rest else ()
        if value is None:
            parameters, *after = self._device.back([parameters, *after])
        else:
            parameters, value, *after = self._device.back([parameters, value, *after])
        return parameters, value, tuple(after)
