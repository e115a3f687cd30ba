"""Prioritized by what the learner learned from each item (Schaul et al., 2016), in proportion."""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.choosing.chooser import Sampler, count_of, share
from penstock_consumers.replay.choosing.saved import State, load, save
from penstock_consumers.replay.choosing.slots import slots_of
from penstock_consumers.replay.choosing.sums import Sums
from penstock_consumers.replay.drawn import Drawn
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    from penstock_consumers.replay.choosing.chooser import Size
    from penstock_consumers.replay.choosing.slots import Slots
    from penstock_consumers.replay.index import Index

# Above 0, and so small that it is about never drawn; nearer to 0 float32 would lose it.
_LEAST = float(np.finfo(np.float32).smallest_normal)
_MOST = np.finfo(np.float32).max
_SMALLEST = np.finfo(np.float32).smallest_subnormal
# What a float's bits are as a number, and those of the most.
_BITS: dict[np.dtype[Any], tuple[type[np.unsignedinteger[Any]], int]] = {
    np.dtype(np.float32): (np.uint32, int(_MOST.view(np.uint32))),
    np.dtype(np.float64): (np.uint64, int(np.float64(_MOST).view(np.uint64))),
}
# Updates that wait take 12 bytes each.
_MOST_WAITING = 1 << 18
# What was never updated is weighed anew, which is a pass over all items, where the largest priority grew so much: so it
# is seldom done however slowly that grows.
_GROWN = 2.0


class Prioritized:
    """An item is as likely as its priority to the power of `alpha`, among all; the learner sets the priorities.

    A batch has two more arrays: `index`, int64, by which `update` knows its items, and `weight`, float32, the
    importance weight of each: `(N * P) ** -beta`, with N items there are and the probability P of this one, divided by
    the largest in the batch.

        prioritized = Prioritized(alpha=0.6, beta=0.4)
        for batch in replay.transitions(256, choose=prioritized):
            errors = learn(batch)  # of each item; its loss is multiplied by batch["weight"]
            prioritized.update(batch["index"], abs(errors) + 1e-6)

    What was never updated has the largest priority that was ever given, at least 1: that is brought up to date at each
    refresh, and whenever it has doubled. Batches are drawn many at a time, and an update counts from the next block of
    them on; `ahead` bounds how many that are.

    An item is known by its episode and step, so it keeps its priority through `Replay.refresh`, compaction and
    retention, and through a restart by `save` and `load`. So an `index` stays valid too; where its item is gone, an
    update of it changes nothing but `ignored`.

    One object is for one view, and for one iterator at a time: the newest that it was given to. Threads may draw and
    update at once.

    Args:
        alpha: how much the priority matters, from 0 (not at all) to 1.
        beta: how much of the bias that this makes `weight` takes back, from 0 (nothing) to 1 (all).
        ahead: how many items may be drawn before the first of them is given, as a share of all items, from 0 (a batch
            at a time) to 1: the fewer, the sooner updates count, and the more a batch costs.

    Raises:
        SettingsError: an argument is out of its range.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, *, ahead: float = 0.1) -> None:
        share("alpha", alpha)
        share("ahead", ahead)
        self.alpha = alpha
        self.beta = beta
        self.ahead = ahead
        self._largest = 1.0
        self._ignored = 0
        # Those that do not count yet: slots and priorities; and how many they are.
        self._updates: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        self._waiting = 0
        # What draws from the newest snapshot that was asked for.
        self._now: _Prioritized | None = None
        # Whether updates have to wait.
        self._still = False
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"Prioritized(alpha={self.alpha}, beta={self.beta}, ahead={self.ahead})"

    @property
    def beta(self) -> float:
        """How much of the bias `weight` takes back; may be set at any time, as a rule towards 1 while learning."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        share("beta", beta)
        self._beta = beta

    def over(self, index: Index) -> Sampler:
        """Draw from an index, with the priorities that its items have; opens every segment once.

        Raises `SettingsError` where the priorities are of items of another length or stride.
        """
        with self._lock:
            self._settle()
            before = self._now
            slots = slots_of(index, before.slots if before else None)
            weights = np.full(len(slots), self._weight_of(self._largest))
            fresh = np.ones(len(slots), np.bool_)
            if before:
                if slots.layout != before.slots.layout:
                    raise SettingsError(
                        f"{self}: its priorities are of {before.slots.layout}, here are {slots.layout}: "
                        "give each view a Prioritized of its own"
                    )
                for ours, theirs in slots.shared(before.slots):
                    weights[ours] = before.sums.weights[theirs]
                    fresh[ours] = before.fresh[theirs]
                weights[fresh] = self._weight_of(self._largest)
                before.superseded = True
            self._now = _Prioritized(self, slots, Sums(weights), fresh, self._largest)
            return self._now

    def update(self, index: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of items, as a rule by the sizes of their errors. With a priority of 0, none is drawn.

        Args:
            index: of a batch, shape (n,).
            priorities: not negative, and no more than a float32 holds, shape (n,); kept as such. Of an item that is
                there twice, the last counts.

        Raises:
            SettingsError: they are not that, or not of one shape, or an index was never drawn. Nothing changes then.
        """
        slots, given = np.asarray(index), np.asarray(priorities)
        if slots.shape != given.shape or slots.ndim != 1 or slots.dtype.kind not in "iu":
            raise SettingsError(
                f"update: an index of shape {slots.shape} in {slots.dtype}, priorities of shape {given.shape}: give "
                'batch["index"] and an array of as many'
            )
        if not len(slots):
            return
        # Copies, for the arrays are the caller's own.
        slots, (kept, largest) = slots.astype(np.int64), _kept(given)
        with self._lock:
            if not self._now:
                raise SettingsError(f"{self}: it was given to no view yet, so no index is of it")
            behind = self._now.slots.behind
            # What is negative is larger than all others without its sign.
            if slots.view(np.uint64).max() >= behind:
                wrong = slots[(slots < 0) | (slots >= behind)][0]
                raise SettingsError(f'update: index {wrong} was never drawn: give batch["index"]')
            self._largest = max(self._largest, largest)
            self._updates.append((slots, kept))
            self._waiting += len(slots)
            if self._waiting >= _MOST_WAITING:
                self._settle()

    @property
    def ignored(self) -> int:
        """How many updates were of what is gone."""
        with self._lock:
            self._settle()
            return self._ignored

    def save(self, path: str | Path) -> None:
        """Write the priorities to a file, whole or not at all.

        Raises `SettingsError` where nothing was drawn yet, `StoreError` where the file cannot be written.
        """
        with self._lock:
            if not self._now:
                raise SettingsError(f"{self}: it was given to no view yet, so it has no priorities to save")
            self._settle()
            of = self._now
            save(path, State(self.alpha, self.beta, self.ahead, self._largest, of.slots, of.sums.weights, of.fresh))

    @classmethod
    def load(cls, path: str | Path) -> Prioritized:
        """Read what `save` wrote, to go on with the store as it is by now; an `index` drawn before is valid.

        Raises `SettingsError` where there is no such file, or it holds something else.
        """
        state = load(path)
        found = cls(state.alpha, state.beta, ahead=state.ahead)
        found._largest = state.largest
        found._now = _Prioritized(found, state.slots, Sums(state.weights), state.fresh, state.largest)
        return found

    def _settle(self) -> None:
        """Let the updates count that wait: many at a time, which is quicker than each by itself."""
        if not self._updates or not self._now or self._still:
            return
        slots, given = map(np.concatenate, zip(*self._updates, strict=True))
        self._updates, self._waiting = [], 0
        items = self._now.slots.items(slots)
        there = items >= 0
        if not there.all():
            self._ignored += len(items) - int(np.count_nonzero(there))
            items, given = items[there], given[there]
        now = self._now
        now.sums.write(items, self._powered(given))
        now.fresh[items] = False
        if self._largest >= _GROWN * now.largest:
            now.largest = self._largest
            now.sums.fill(now.fresh, self._weight_of(now.largest))

    def _weight_of(self, priority: float) -> np.float32:
        weight: np.float32 = self._powered(np.array([priority], np.float32))[0]
        return weight

    def _powered(self, priorities: NDArray[np.float32]) -> NDArray[np.float32]:
        """What priorities weigh, shape (n,)."""
        powered: NDArray[np.float32] = priorities ** np.float32(self.alpha)
        np.maximum(powered, _LEAST, out=powered)
        powered[priorities == 0.0] = 0.0
        return powered


def _kept(priorities: NDArray[Any]) -> tuple[NDArray[np.float32], float]:
    """Copy priorities, and find the largest; raises `SettingsError` where one is none."""
    if priorities.dtype.kind not in "biuf":
        raise SettingsError(f"priorities of dtype {priorities.dtype}: numbers from 0 to {_MOST:.2g}")
    given = priorities if priorities.dtype in _BITS else priorities.astype(np.float64)
    # Their bits are in the same order; those of what is negative, infinite or NaN are larger than all others.
    as_bits, most = _BITS[given.dtype]
    bits = given.view(as_bits).max()
    if bits > most:
        wrong = np.flatnonzero(~((given >= 0.0) & (given <= _MOST)))
        if len(wrong):
            raise SettingsError(
                f"priority {priorities[wrong[0]]} (number {wrong[0]} of {len(given)}): a number from 0 to {_MOST:.2g}"
            )
        # Some are 0, and negative.
        bits = np.abs(given).view(as_bits).max()
    kept = given.astype(np.float32)
    if given.dtype != kept.dtype:
        # What is above 0 stays above it.
        kept[(kept == 0.0) & (given != 0.0)] = _SMALLEST
    return kept, float(bits.view(given.dtype))


class _Prioritized(Sampler):
    """Draws from an index until there is a newer one.

    Attributes:
        fresh: which items were never updated, shape (n,).
        largest: the priority that those have.
        superseded: whether there is.
    """

    tells = ("index", "weight")

    def __init__(self, owner: Prioritized, slots: Slots, sums: Sums, fresh: NDArray[np.bool_], largest: float) -> None:
        self.slots = slots
        self.sums = sums
        self.fresh = fresh
        self.largest = largest
        self.ahead = int(owner.ahead * len(slots))
        self.superseded = False
        self._owner = owner
        self._lock, self._settle = owner._lock, owner._settle  # noqa: SLF001  (a part of it)

    def check(self) -> None:
        if self.superseded:
            raise SettingsError(f"{self._owner}: another iterator has it since: give each one of its own")

    @contextmanager
    def still(self) -> Iterator[None]:
        with self._lock:
            self._settle()
            before, self._owner._still = self._owner._still, True  # noqa: SLF001  (a part of it)
            try:
                yield
            finally:
                self._owner._still = before  # noqa: SLF001  (a part of it)

    def draw(self, rng: np.random.Generator, size: Size) -> Drawn:
        with self._lock:
            self._settle()
            self.check()
            if not self.sums.total:
                raise SettingsError(
                    f"{self._owner}: all priorities are 0, so there is nothing to draw: add 1e-6 to each"
                )
            items, weights = self.sums.draw(rng, count_of(size))
            # While they are in order, for what is looked up in order is sooner there.
            told = self._told(items, weights)
        place = rng.permutation(len(items)).reshape(size)
        return Drawn(items, place, _normalized({name: values[place] for name, values in told.items()}))

    def probability(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        with self._lock:
            self._settle()
            probability: NDArray[np.float64] = self.sums.weights[items].astype(np.float64) / self.sums.total
            return probability

    def beside(self, items: NDArray[np.int64], probability: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        return _normalized(self._told(items, probability))

    def _told(self, items: NDArray[np.int64], likely: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Tell of items what there is to tell; `likely` is in proportion to their probabilities."""
        return {"index": self.slots.of(items), "weight": likely ** likely.dtype.type(-self._owner.beta)}


def _normalized(beside: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Divide importance weights by the largest in the batch: so neither N nor the sum of all weights matters."""
    weight = beside["weight"]
    largest = weight.max(axis=-1, keepdims=True, initial=0.0)
    return {**beside, "weight": (weight / largest).astype(np.float32, copy=False)}
