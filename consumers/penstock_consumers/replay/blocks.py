"""Batches without end: many are drawn as one block, so that reading in order pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing import Chooser, Sampler
    from penstock_consumers.replay.drawn import Drawn
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

    def index(self, snapshot: Snapshot, before: Index | None = None) -> Index:
        """The items of a snapshot; raises `StoreError` where there are none. Of `before`, it takes what still holds."""
        ...

    def block(self, index: Index, drawn: Drawn) -> Callable[[slice], Batch]:
        """Read what was drawn; what is answered cuts batches out of them."""
        ...


class Batches:
    """Batches that are drawn without end.

    `snapshot` is asked before each, and what was drawn of one with other segments is dropped. An error ends nothing:
    the next batch is drawn anew.

    Raises at once, and not with the first batch, what `View.index` and `Chooser.over` raise.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        view: View,
        chooser: Chooser,
        batch_size: int,
        rng: np.random.Generator,
    ) -> None:
        self._snapshot = snapshot
        self._view = view
        self._chooser = chooser
        self._batch_size = batch_size
        self._rng = rng
        self._now = snapshot()
        self._index = view.index(self._now)
        self._sampler: Sampler | None = chooser.over(self._index)
        self._block = _Block()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        sampler = self._refreshed()
        if self._block.given == self._block.count:
            # Not held while the next one is read.
            self._block = _Block()
            self._block = self._drawn(sampler)
        return self._block.next(self._batch_size)

    def _refreshed(self) -> Sampler:
        """What draws from the newest snapshot."""
        if self._sampler is not None:
            self._sampler.check()
        newer = self._snapshot()
        if newer is not self._now or self._sampler is None:
            if newer.entries != self._now.entries or self._sampler is None:
                index = self._view.index(newer, self._index)
                # Where this raises, the one before is none any more.
                self._sampler, self._block = None, _Block()
                self._sampler = self._chooser.over(index)
                self._index = index
            self._now = newer
        return self._sampler

    def _drawn(self, sampler: Sampler) -> _Block:
        size = self._batch_size
        count = _block_batches(len(self._now.entries), size, self._view.item_bytes)
        if sampler.ahead is not None:
            count = max(1, min(count, sampler.ahead // size))
        drawn = sampler.draw(self._rng, (count, size))
        return _Block(count, self._view.block(self._index, drawn), drawn.beside)


class _Block:
    """Batches that were read, and how many of them were given."""

    def __init__(
        self,
        count: int = 0,
        cut: Callable[[slice], Batch] | None = None,
        beside: dict[str, NDArray[Any]] | None = None,
    ) -> None:
        self.count = count
        self.given = 0
        self._cut = cut or (lambda _: {})
        self._beside = beside or {}

    def next(self, batch_size: int) -> Batch:
        number, self.given = self.given, self.given + 1
        some = slice(number * batch_size, (number + 1) * batch_size)
        return {**self._cut(some), **{name: values[number] for name, values in self._beside.items()}}


def _block_batches(segments: int, batch_size: int, item_bytes: int) -> int:
    wanted = max(_BLOCK_BATCHES, segments * _DRAWS_A_SEGMENT // batch_size)
    return max(1, min(wanted, _BLOCK_BYTES // (item_bytes * batch_size)))
