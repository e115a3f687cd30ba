"""Batches without end: many are drawn as one block, so that reading in order pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing import Chooser
    from penstock_consumers.replay.index import Index
    from penstock_consumers.replay.snapshot import Snapshot

    # Names to arrays; in a batch, to arrays in the structure of a space.
    Batch: TypeAlias = "dict[str, Any]"

# A block has this many batches, more where there are many segments (to spread the cost of visiting each), fewer where
# it would take more memory than this. One that is held keeps its whole block in memory.
_BLOCK_BATCHES = 64
_DRAWS_A_SEGMENT = 1024
_BLOCK_BYTES = 32 << 20


class View(Protocol):
    """What is given of items that were drawn.

    Attributes:
        item_bytes: of one item in a batch, at most.
    """

    item_bytes: int

    def index(self, snapshot: Snapshot) -> Index:
        """The items of a snapshot; raises `StoreError` where there are none."""
        ...

    def block(self, index: Index, items: NDArray[np.int64]) -> Callable[[slice], Batch]:
        """Read items; what is answered cuts batches out of them."""
        ...


def drawn(
    snapshot: Callable[[], Snapshot], view: View, chooser: Chooser, batch_size: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """Draw batches without end; `snapshot` is asked before each, and what was drawn of another one is dropped.

    Raises here, and not with the first batch, what `View.index` and `Chooser.over` raise.
    """
    now = snapshot()
    index = view.index(now)
    sampler = chooser.over(index)

    def batches() -> Iterator[Batch]:
        nonlocal index, sampler, now
        while True:
            if (newer := snapshot()) is not now:
                now, index = newer, view.index(newer)
                sampler = chooser.over(index)
            count = _block_batches(len(now.entries), batch_size, view.item_bytes)
            if sampler.ahead is not None:
                count = max(1, min(count, sampler.ahead // batch_size))
            items, beside = sampler.draw(rng, (count, batch_size))
            block = view.block(index, items.ravel())
            for number in range(count):
                if snapshot() is not now:
                    break
                some = slice(number * batch_size, (number + 1) * batch_size)
                yield {**block(some), **{name: values[number] for name, values in beside.items()}}

    return batches()


def _block_batches(segments: int, batch_size: int, item_bytes: int) -> int:
    wanted = max(_BLOCK_BATCHES, segments * _DRAWS_A_SEGMENT // batch_size)
    return max(1, min(wanted, _BLOCK_BYTES // (item_bytes * batch_size)))
