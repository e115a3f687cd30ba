"""Batches ahead of time, on the device where they are learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock_consumers.replay.prefetch import Prefetch
from penstock_consumers.replay.torch.tensors import mapped, tensors

if TYPE_CHECKING:
    from collections.abc import Iterable


def to_device(batches: Iterable[Any], device: torch.device | str | int, *, depth: int = 2) -> Prefetch[Any]:
    """Draw batches ahead in a thread, as `Prefetch` does, and give them as tensors on a device.

    On CUDA the thread copies each batch through pinned memory on a stream of its own, beside the learner's kernels; the
    stream that is current where a batch is taken waits for its copy, the processor does not.

    Args:
        batches: of arrays, as a view gives them, or of tensors, as a `DataLoader` does.
        device: any of torch's.
        depth: how many batches are on the device and ready, at most.

    Raises:
        SettingsError: `depth` is less than 1.
    """
    place = torch.device(device)
    if place.type == "cuda":
        return _OnCuda(batches, place, depth)
    return Prefetch((mapped(lambda tensor: tensor.to(place), tensors(batch)) for batch in batches), depth)


class _OnCuda(Prefetch[Any]):
    """Batches whose copies may still be on their way, each with the event that ends them."""

    def __init__(self, batches: Iterable[Any], device: torch.device, depth: int) -> None:
        self._device = device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own has no types
        super().__init__((_copied(batch, device, stream) for batch in batches), depth)

    def __next__(self) -> Any:
        batch, copied = super().__next__()
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)

        def used(tensor: torch.Tensor) -> torch.Tensor:
            # Else its memory might be given to the next copy while kernels of this stream still read it.
            tensor.record_stream(current)
            return tensor

        return mapped(used, batch)


def _copied(batch: Any, device: torch.device, stream: torch.cuda.Stream) -> tuple[Any, torch.cuda.Event]:
    """Begin to copy a batch; torch keeps pinned memory from being used again before the copies out of it end."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(device, non_blocking=True)

    with torch.cuda.stream(stream):
        moved = mapped(copy, tensors(batch))
        return moved, stream.record_event()
