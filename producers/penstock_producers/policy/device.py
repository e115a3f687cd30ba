"""Where a module computes: arrays there, and tensors back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock_schemas.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Device(Protocol):
    """Moves what a module takes and answers."""

    def there(self, array: NDArray[Any]) -> torch.Tensor:
        """Make a tensor where the module computes; perhaps a view of the array."""
        ...

    def back(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        """Make arrays of the tensors, once they are computed; never views of what `there` was given."""
        ...

    def exact(self) -> AbstractContextManager[Any]:
        """Enter to compute float32 in float32, so that what acted can be computed again elsewhere."""
        ...


def device_of(name: str) -> tuple[torch.device, Device]:
    """Find a device by torch's name for it; raises `PolicyError` where there is none."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        told = str(error).partition("\n")[0]
        raise PolicyError(f"device {name!r}: torch cannot compute there: {told}") from error
    if device.type == "cpu":
        return device, _Host()
    return device, _Cuda(device) if device.type == "cuda" else _Remote(device)


class _Host:
    def there(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array)

    def back(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        # Copies: a module may answer a view of the observation, which is the env's to overwrite.
        return [tensor.detach().numpy().copy() for tensor in tensors]

    def exact(self) -> AbstractContextManager[Any]:
        return nullcontext()


class _Remote:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def there(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def back(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        return [tensor.detach().cpu().numpy() for tensor in tensors]

    def exact(self) -> AbstractContextManager[Any]:
        return nullcontext()


class _Cuda(_Remote):
    """Copies run beside each other from and to pinned memory; the answers are waited for once."""

    def there(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).pin_memory().to(self._device, non_blocking=True)

    def back(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        host = [tensor.detach().to("cpu", non_blocking=True) for tensor in tensors]
        torch.cuda.current_stream(self._device).synchronize()
        return [tensor.numpy() for tensor in host]

    def exact(self) -> AbstractContextManager[Any]:
        # cuDNN rounds the factors of a convolution to 10 bits else.
        exact: AbstractContextManager[Any] = torch.backends.cudnn.flags(
            enabled=True, deterministic=True, allow_tf32=False
        )
        return exact
