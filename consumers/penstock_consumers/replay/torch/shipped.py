"""Batches on their way from a worker's process to the learner's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from penstock_consumers.replay.torch.tensors import mapped

# Where each tensor begins: no dtype wants more, and the processor likes it.
_ALIGNED = 64
# Up to so many bytes go through a pipe, more through shared memory. Handing over a piece of shared memory costs as much
# as piping a few hundred kilobytes.
_PIPED_BYTES = 1 << 18


class Shipped(dict[str, Any]):
    """A batch of tensors that is handed over in one piece, and is a dict of tensors again where it arrives.

    By itself, torch hands over each tensor in shared memory of its own; of a batch of small ones, that costs the
    learner's process some milliseconds.
    """

    def __copy__(self) -> Shipped:
        return Shipped(self)

    def __reduce__(self) -> tuple[Any, ...]:
        laid: list[tuple[_Place, torch.Tensor]] = []
        layout = mapped(lambda tensor: _lay(tensor, laid), dict(self))
        size = laid[-1][0].end if laid else 0
        block = bytearray(size) if size <= _PIPED_BYTES else torch.empty(size, dtype=torch.uint8)
        memory = _memory(block)
        for place, tensor in laid:
            place.view(memory).copy_(tensor)
        return _arrived, (block, layout)


class _Place(NamedTuple):
    """Where a tensor lies in a block of bytes, and what it is."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def view(self, memory: Any) -> torch.Tensor:
        if self.begin == self.end:
            return torch.empty(self.shape, dtype=self.dtype)
        items = (self.end - self.begin) // self.dtype.itemsize
        flat = torch.frombuffer(memory, dtype=self.dtype, count=items, offset=self.begin)
        return flat if len(self.shape) == 1 else flat.view(self.shape)


def _lay(tensor: torch.Tensor, laid: list[tuple[_Place, torch.Tensor]]) -> _Place | torch.Tensor:
    """Find a place for a tensor behind those laid before; what is no plain array of numbers is left as it is."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
        return tensor
    begin = -(-(laid[-1][0].end if laid else 0) // _ALIGNED) * _ALIGNED
    place = _Place(begin, begin + tensor.numel() * tensor.element_size(), tensor.dtype, tuple(tensor.shape))
    laid.append((place, tensor))
    return place


def _arrived(block: bytearray | torch.Tensor, layout: Any) -> Any:
    memory = _memory(block)
    return mapped(lambda place: place.view(memory), layout, _Place)


def _memory(block: bytearray | torch.Tensor) -> Any:
    return block.numpy() if isinstance(block, torch.Tensor) else block
