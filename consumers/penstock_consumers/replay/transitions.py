"""Transitions: steps, each with what followed it."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.arguments import number, steps
from penstock_consumers.replay.gather import Gather, given_bytes
from penstock_consumers.replay.index import Index
from penstock_consumers.replay.seen import Visible
from penstock_consumers.replay.segment import given_dtypes
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from penstock_schemas.spaces import unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from penstock_consumers.replay.blocks import Batch
    from penstock_consumers.replay.drawn import Drawn
    from penstock_consumers.replay.gather import Part
    from penstock_consumers.replay.seen import Lens
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.where import Condition, Where
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

    # The arrays of one name: several where it is a space of several leaves.
    Values = tuple[NDArray[Any], ...]

# Masks, discount, policy version, episode and step.
_OWN_BYTES = 30
# So many rewards are summed at a time: what that takes beside a block is bounded, however many steps n are.
_REWARDS_AT_A_TIME = 1 << 18


class Transitions:
    """The view of steps, `n_step` on.

    Args:
        spec: the stream's.
        where: which steps.
        n_step: how many rewards are summed, fewer where the episode ends before; at least 1.
        gamma: what each later one is discounted by, from 0 to 1.
        columns: the names of what is given; all but "id" by default.
        lens: shows observations; None to give them as they are stored.

    Raises:
        SettingsError: one of these makes no sense, or a name is none.
    """

    def __init__(
        self,
        spec: StreamSpec,
        where: Where,
        *,
        n_step: int,
        gamma: float,
        columns: Collection[str] | None,
        lens: Lens | None = None,
    ) -> None:
        n_step = steps("n_step", n_step, 1, "a transition has at least one step")
        if not 0.0 <= number("gamma", gamma) <= 1.0:
            raise SettingsError(f"gamma {gamma}: a discount is between 0 and 1")
        self._spec = spec
        self._n_step = n_step
        self._gamma = gamma
        self.names = chosen(columns, _names(spec))
        self._lens = lens if {"observation", "next_observation"} & {*self.names} else None
        self._visible = Visible(where, self._lens)
        self.item_bytes = _item_bytes(spec, self._lens)

    def index(self, snapshot: Snapshot, before: Index | None = None) -> Index:
        """All steps."""
        return Index(snapshot, self.condition(snapshot), before=before if self._visible.steady else None)

    def condition(self, snapshot: Snapshot) -> Condition:
        """Which steps there are."""
        return self._visible.at(snapshot)

    def block(self, index: Index, drawn: Drawn) -> Callable[[slice], Batch]:
        """Read steps."""
        return self.read(Gather(index, drawn, self._spec))

    def read(self, gather: Gather) -> Callable[[slice], Batch]:
        """Read what belongs to draws; what is answered cuts a batch out of it."""
        read = _Read(gather, self._spec, self._n_step, self._gamma, self._lens)
        columns = {name: read[name]() for name in self.names}
        # Its functions refer to it: so that what it read from is let go of now, and not when cycles are looked for.
        read.clear()
        return lambda at: cut(columns, self._spec, at, self._lens)


def cut(columns: Mapping[str, Values], spec: StreamSpec, at: slice, lens: Lens | None = None) -> Batch:
    """Cut a batch out of columns, observations and actions in the structure of their spaces."""
    observation = lens.space if lens else spec.observation
    spaces = {"observation": observation, "next_observation": observation, "action": spec.action}
    return {
        name: unflatten(spaces[name], [leaf[at] for leaf in values]) if name in spaces else values[0][at]
        for name, values in columns.items()
    }


def chosen(columns: Collection[str] | None, known: Mapping[str, bool]) -> tuple[str, ...]:
    """Choose names among those that there are, in their order; by default, all that are `known` as such."""
    if columns is None:
        return tuple(name for name, by_default in known.items() if by_default)
    # What is given may be of any type, whatever is declared; an iterator would be used up by looking at it.
    given: object = columns
    if isinstance(given, str) or not isinstance(given, Collection):
        told = repr([given]) if isinstance(given, str) else "[...]"
        raise SettingsError(f"columns {given!r}: a collection of names, as in columns={told}")
    if not len(columns):
        raise SettingsError(f"columns {columns!r}: a batch has at least one; there are {', '.join(known)}")
    unknown = [name for name in given if not (isinstance(name, str) and name in known)]
    if unknown:
        raise SettingsError(f"columns {unknown}: not of this view; there are {', '.join(known)}")
    return tuple(name for name in known if name in columns)


def _names(spec: StreamSpec) -> dict[str, bool]:
    """All that there is, in the order in which it is given, and whether it is without being asked for."""
    names = (
        *("observation", "action", "reward", "discount", "next_observation", "terminated", "truncated"),
        *(extra.name for extra in spec.extras),
        *(name for info in spec.infos for name in (info.name, f"next_{info.name}")),
        *("policy_version", "episode", "step"),
    )
    return {**dict.fromkeys(names, True), "id": False}


def _item_bytes(spec: StreamSpec, lens: Lens | None) -> int:
    dtypes = given_dtypes(spec)
    own = _OWN_BYTES + (2 * lens.item_bytes if lens else 0)
    return own + sum((1 + column.overlap) * given_bytes(column, dtypes[column.name]) for column in spec.columns)


class _Ahead:
    """How far transitions reach; arrays are in the order in which the draws lie."""

    def __init__(self, gather: Gather, n_step: int, gamma: float) -> None:
        step = gather.lying(lambda part: part.step)
        behind = gather.lying(lambda part: part.segment.step_offsets[part.row + 1])
        self.steps: NDArray[np.int64] = np.minimum(n_step, behind - step)
        self._last = step + self.steps == behind
        self._ends = gather.lying(lambda part: part.segment.ends[part.row])
        self._discounts = (gamma ** np.arange(self.steps.max() + 1)).astype(np.float32)

    def ended(self, end: Ends) -> NDArray[np.bool_]:
        """Whether the last step of each is the one with which its episode ended so."""
        ended: NDArray[np.bool_] = self._last & ((self._ends & end) != 0)
        return ended

    def discount(self) -> NDArray[np.float32]:
        """What the value behind that step counts."""
        discount = self._discounts[self.steps]
        discount[self.ended(Ends.TERMINATED)] = 0.0
        return discount


class _Read(dict[str, "Callable[[], Values]"]):
    """How each column of transitions is read, by name."""

    def __init__(self, gather: Gather, spec: StreamSpec, n_step: int, gamma: float, lens: Lens | None) -> None:
        super().__init__()
        self._lens = lens
        self._observations = spec.observation_columns
        self._gather = gather
        self._rewards = spec.reward_column
        self._n_step = n_step
        self._gamma = gamma
        self["observation"] = lambda: self._observed(_before)
        self["action"] = lambda: self._items(spec.action_columns, _step)
        self["reward"] = self._summed if n_step > 1 else lambda: self._items([self._rewards], _step)
        self["discount"] = lambda: (gather.as_drawn(self._ahead.discount()),)
        self["next_observation"] = lambda: self._observed(self._after)
        self["terminated"] = lambda: (gather.as_drawn(self._ahead.ended(Ends.TERMINATED)),)
        self["truncated"] = lambda: (gather.as_drawn(self._ahead.ended(Ends.TRUNCATED)),)
        self["policy_version"] = lambda: self._own(lambda part: part.segment.policy_version[part.chunk])
        self["episode"] = lambda: self._own(lambda part: part.row + part.first_episode)
        self["step"] = lambda: self._own(lambda part: part.step - part.segment.step_offsets[part.row])
        self["id"] = lambda: self._own(lambda part: part.segment.ids(part.row))
        for extra in spec.extras:
            self[extra.name] = partial(self._items, [extra], _step)
        for info in spec.infos:
            self[info.name] = partial(self._items, [info], _before)
            self[f"next_{info.name}"] = partial(self._items, [info], self._after)

    @cached_property
    def _ahead(self) -> _Ahead:
        return _Ahead(self._gather, self._n_step, self._gamma)

    def _observed(self, at: Callable[[Part], NDArray[np.int64]]) -> Values:
        return self._lens.items(self._gather, at) if self._lens else self._items(self._observations, at)

    def _items(self, columns: Iterable[Column], at: Callable[[Part], NDArray[np.int64]]) -> Values:
        return tuple(
            (self._gather.nullable if column.nullable else self._gather.items)(column, at) for column in columns
        )

    def _own(self, values: Callable[[Part], NDArray[Any]]) -> Values:
        return (self._gather.as_drawn(self._gather.lying(values)),)

    def _after(self, part: Part) -> NDArray[np.int64]:
        after: NDArray[np.int64] = part.observation + self._ahead.steps[part.at]
        return after

    def _summed(self) -> Values:
        """Sum the discounted rewards of each, in float64; floats are given in their own dtype."""
        steps = self._ahead.steps
        total = np.empty(len(steps))
        discounts = self._gamma ** np.arange(steps.max())
        for part in self._gather.parts:
            at_a_time = max(1, _REWARDS_AT_A_TIME // int(steps[part.at].max()))
            for begin in range(part.at.start, part.at.stop, at_a_time):
                some = slice(begin, min(begin + at_a_time, part.at.stop))
                here = slice(some.start - part.at.start, some.stop - part.at.start)
                total[some] = self._sums(part, part.step[here], steps[some], discounts)
        own = self._rewards.dtype
        return (self._gather.as_drawn(total.astype(own) if own.kind == "f" else total),)

    def _sums(
        self, part: Part, step: NDArray[np.int64], steps: NDArray[np.int64], discounts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Sum as many rewards as `steps` says, from each step of a segment on, shape (n,)."""
        rewards = part.segment.items(self._rewards.name)
        on = np.arange(steps.max())
        # Behind the segment's end the last one stands for those that are left out.
        at = np.minimum(step[:, np.newaxis] + on, len(rewards) - 1)
        values = np.empty(at.shape, self._rewards.dtype)
        rewards.take(at.ravel(), values.reshape(-1))
        sums: NDArray[np.float64] = np.where(on < steps[:, np.newaxis], values * discounts[: len(on)], 0.0).sum(axis=1)
        return sums


def _before(part: Part) -> NDArray[np.int64]:
    return part.observation


def _step(part: Part) -> NDArray[np.int64]:
    return part.step
