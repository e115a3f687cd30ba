"""What a step is known by for good: through refreshes, compaction, retention and restarts.

Items are numbered anew in each snapshot. So each episode is given a range of slots when it is first seen, one a step,
and is known again by a hash of its name and length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from penstock_consumers.replay.choosing.groups import Groups
from penstock_consumers.store.segments import episode_keys
from penstock_schemas.columns import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.index import Index

    # Items, by a slice or by their numbers.
    Places: TypeAlias = "slice | NDArray[np.int64]"
    # One number, or one for each of several.
    Counts: TypeAlias = "np.int64 | NDArray[np.int64]"


# Runs of so many items are copied each by itself.
_FAR = 1024


class Layout(NamedTuple):
    """How items lie: each of `stride + overlap` steps."""

    stride: int
    """How many steps apart they begin."""
    overlap: int
    """How many steps one shares with the next."""

    def __str__(self) -> str:
        length = self.stride + self.overlap
        return "steps" if length == 1 else f"windows of {length} steps, of which the next shares {self.overlap}"


@dataclass(frozen=True)
class Slots:
    """The slots of an index's items.

    Consecutive items lie a stride of slots apart; where that is not so, a run ends and another begins.

    Attributes:
        layout: how the items lie.
        keys: the episodes that are known, ascending, shape (E,).
        bases: the slot of the first step of each, shape (E,).
        behind: the slot behind all.
        first: the item with which each run begins, and how many items there are, shape (R + 1,).
        slot: the slot of that item, shape (R,).
    """

    layout: Layout
    keys: NDArray[np.uint64]
    bases: NDArray[np.int64]
    behind: int
    first: NDArray[np.int64]
    slot: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.first[-1])

    def of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of items, of the same shape."""
        run = 0 if len(self.slot) == 1 else np.searchsorted(self.first, items, side="right") - 1
        slots: NDArray[np.int64] = (items - self.first[run]) * self.layout.stride + self.slot[run]
        return slots

    def items(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The items of slots, of the same shape; -1 where there is none any more."""
        runs = self._by_slot
        if len(runs.slot) == 1:
            # As a rule, until a store of several partitions grows: there is nothing to look for.
            return self._in(slots, runs.slot[0], runs.items[0], runs.first[0])
        # Before the first run stands the last one, whose items do not reach there.
        run = np.searchsorted(runs.slot, slots, side="right") - 1
        return self._in(slots, runs.slot.take(run), runs.items.take(run), runs.first.take(run))

    def _in(self, slots: NDArray[np.int64], slot: Counts, count: Counts, first: Counts) -> NDArray[np.int64]:
        """The items of slots in runs that begin at a slot, and have so many items from the first one on."""
        ahead: NDArray[np.int64] = slots - slot
        there = ahead >= 0
        if self.layout.stride > 1:
            ahead, off = np.divmod(ahead, self.layout.stride)
            there &= off == 0
        there &= ahead < count
        ahead += first
        return ahead if there.all() else np.where(there, ahead, -1)

    def shared(self, other: Slots) -> Iterator[tuple[Places, Places]]:
        """The items that both have, a stretch or many at a time: those of this one, and the same ones of the other."""
        stride = self.layout.stride
        ours, theirs = self._by_slot, other._by_slot
        begin = np.searchsorted(theirs.slot + theirs.items * stride, ours.slot, side="right")
        end = np.maximum(np.searchsorted(theirs.slot, ours.slot + ours.items * stride, side="left"), begin)
        one = np.repeat(np.arange(len(begin)), end - begin)
        two = np.arange(len(one)) + np.repeat(end - np.cumsum(end - begin), end - begin)
        least = np.maximum(ours.slot[one], theirs.slot[two])
        most = np.minimum((ours.slot + ours.items * stride)[one], (theirs.slot + theirs.items * stride)[two])
        alike = (ours.slot[one] - theirs.slot[two]) % stride == 0
        mine = ours.first[one] + (least - ours.slot[one]) // stride
        its = theirs.first[two] + (least - theirs.slot[two]) // stride
        mine, its, counts = (at[alike] for at in (mine, its, (most - least) // stride))
        # Steps of episodes that lie as they did are long runs, few of which there can be; windows are short ones.
        far = counts >= _FAR
        for our_first, their_first, count in zip(*(at[far].tolist() for at in (mine, its, counts)), strict=True):
            yield slice(our_first, our_first + count), slice(their_first, their_first + count)
        yield ranges(mine[~far], counts[~far]), ranges(its[~far], counts[~far])

    @cached_property
    def _by_slot(self) -> _Runs:
        order = np.argsort(self.slot)
        return _Runs(self.slot[order], self.first[:-1][order], np.diff(self.first)[order])


class _Runs(NamedTuple):
    """Runs in the order of slots, shapes (R,)."""

    slot: NDArray[np.int64]
    first: NDArray[np.int64]
    items: NDArray[np.int64]


def slots_of(index: Index, before: Slots | None = None) -> Slots:
    """Give the items of an index slots: those of the episodes that were known, and new ones; opens every segment."""
    groups = Groups(index)
    keys, lengths, offsets = [], [], []
    for at in groups.steps():
        rows = np.unique(at.row)
        keys.append(episode_keys(at.segment.batch)[rows])
        begins = at.segment.step_offsets
        lengths.append(np.diff(begins)[rows])
        offsets.append(at.step - begins[at.row])
    key, length = np.concatenate(keys), np.concatenate(lengths)
    base, behind = _bases(key, length, before)
    slot = base[groups.episode] + np.concatenate(offsets)
    layout = Layout(index.stride, index.overlap)
    new = np.flatnonzero(np.diff(slot, prepend=-1) != np.concatenate([[0], groups.items[:-1]]) * layout.stride)
    first = np.append(groups.first[new], len(index))
    order = np.argsort(key)
    return Slots(layout, key[order], base[order], behind, first, slot[new])


def _bases(key: NDArray[np.uint64], length: NDArray[np.int64], before: Slots | None) -> tuple[NDArray[np.int64], int]:
    """The slot with which each episode begins, and that behind all."""
    base, behind = np.full(len(key), -1), 0
    if before is not None:
        at = np.minimum(np.searchsorted(before.keys, key), len(before.keys) - 1)
        base = np.where(before.keys[at] == key, before.bases[at], -1)
        behind = before.behind
    new = base < 0
    base[new] = behind + np.cumsum(length[new]) - length[new]
    return base, behind + int(length[new].sum())
