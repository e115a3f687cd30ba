"""Sequences: windows of consecutive steps of one episode, for networks that remember."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_consumers.replay.arguments import steps
from penstock_consumers.replay.burn_in import BurnIn
from penstock_consumers.replay.gather import Gather, given_bytes
from penstock_consumers.replay.lookback import Wanted
from penstock_consumers.replay.seen import Visible
from penstock_consumers.replay.segment import given_dtypes
from penstock_consumers.replay.transitions import chosen
from penstock_consumers.replay.windows import Windows
from penstock_consumers.store.commits import ranges_of
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from penstock_schemas.spaces import unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.blocks import Batch
    from penstock_consumers.replay.drawn import Drawn
    from penstock_consumers.replay.gather import Part
    from penstock_consumers.replay.index import Index
    from penstock_consumers.replay.seen import Lens
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.where import Where
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Space
    from penstock_schemas.stream import StreamSpec

# Of each step: masks, ends and policy version. Of each sequence: episode, step and lengths.
_STEP_BYTES = 12
_OWN_BYTES = 32


class Sequences:
    """The view of windows of up to `length` steps, with up to `burn_in` steps before them.

    Args:
        spec: the stream's.
        where: which steps.
        length: steps to learn from, at least 1.
        burn_in: steps before them, at most.
        overlap: how many steps a window has in common with the next, less than `length`.
        packed: whether windows are given end to end, without padding.
        columns: the names of what is given; all but "id" by default. Where a state is among them, windows begin where
            one is stored.
        lens: shows observations; None to give them as they are stored.

    Raises:
        SettingsError: one of these makes no sense, or a name is none.
    """

    def __init__(
        self,
        spec: StreamSpec,
        where: Where,
        *,
        length: int,
        burn_in: int,
        overlap: int,
        packed: bool,
        columns: Collection[str] | None,
        lens: Lens | None = None,
    ) -> None:
        length = steps("length", length, 1, "a sequence has at least one step to learn from")
        shared = f"it is at least 0 and less than the length, {length}"
        overlap = steps("overlap", overlap, 0, shared)
        if overlap >= length:
            raise SettingsError(f"overlap {overlap}: {shared}")
        burn_in = steps("burn_in", burn_in, 0, "it is at least 0 steps")
        self._spec = spec
        self._most = burn_in + length
        self._extent = None if packed else self._most
        self.names = chosen(columns, _names(spec, packed=packed))
        self._lens = lens if "observation" in self.names else None
        self._visible = Visible(where, self._lens)
        from_state = any(state.name in self.names for state in spec.states)
        self._burn_in = BurnIn(length, overlap, burn_in, from_state)
        self.item_bytes = self._bytes_of(self._most)

    def index(self, snapshot: Snapshot, before: Index | None = None) -> Index:
        """All windows; raises `SettingsError` where one would have no state near enough."""
        index = self._burn_in.index(snapshot, self._visible.at(snapshot), before if self._visible.steady else None)
        if self._extent is None:
            # What is not padded is no longer than its episode.
            longest = max(ranges_of(entry).length[1] for entry in snapshot.entries)
            self.item_bytes = self._bytes_of(min(self._most, longest))
        return index

    def block(self, index: Index, drawn: Drawn) -> Callable[[slice], Batch]:
        """Read windows."""
        return self.read(Gather(index, drawn, self._spec))

    def read(self, gather: Gather) -> Callable[[slice], Batch]:
        """Read what belongs to draws; what is answered cuts a batch out of it."""
        read = _Read(gather, self._spec, self._burn_in, self._extent, self._lens)
        columns = {name: read[name]() for name in self.names}
        # Its functions refer to it: so that what it read from is let go of now, and not when cycles are looked for.
        read.clear()
        return lambda at: {name: column.cut(at) for name, column in columns.items()}

    def _bytes_of(self, steps: int) -> int:
        """What a window of so many steps takes in a block, at most."""
        dtypes = given_dtypes(self._spec)
        observed = "" if self._lens else "observation"
        roots = {column.name: observed for column in self._spec.observation_columns}
        roots |= {column.name: "action" for column in self._spec.action_columns}
        items = sum(
            (steps + column.overlap) * given_bytes(column, dtypes[column.name])
            for column in self._spec.columns
            if roots.get(column.name, column.name) in self.names
        )
        shown = (steps + 1) * self._lens.item_bytes if self._lens else 0
        states = sum(state.item_bytes for state in self._spec.states if state.name in self.names)
        return _OWN_BYTES + steps * _STEP_BYTES + items + shown + states


def _names(spec: StreamSpec, *, packed: bool) -> dict[str, bool]:
    """All that there is, in the order in which it is given, and whether it is without being asked for."""
    names = (
        *("observation", "action", "reward", "terminated", "truncated"),
        *(column.name for column in (*spec.extras, *spec.infos, *spec.states)),
        *(("lengths", "burn_in", "mask") if packed else ("mask", "valid")),
        *("policy_version", "episode", "step"),
    )
    return {**dict.fromkeys(names, True), "id": False}


class _Column(NamedTuple):
    """What there is of one name."""

    values: Sequence[NDArray[Any]]
    """Arrays: several where it is of a space of several leaves."""
    bounds: NDArray[np.int64]
    """(n + 1,) where those of each sequence begin along the first axis, and where the last end."""
    space: Space | None = None

    def cut(self, at: slice) -> Any:
        """Cut some sequences out, in the structure of the space."""
        cut = [values[self.bounds[at.start] : self.bounds[at.stop]] for values in self.values]
        return cut[0] if self.space is None else unflatten(self.space, cut)


class _Read(dict[str, "Callable[[], _Column]"]):
    """How each column of sequences is read, by name; what is of each window is in the order in which they lie."""

    def __init__(
        self, gather: Gather, spec: StreamSpec, burn_in: BurnIn, extent: int | None, lens: Lens | None
    ) -> None:
        super().__init__()
        self._gather = gather
        self._dtypes = given_dtypes(spec)
        step, row = gather.lying(lambda part: part.step), gather.lying(lambda part: part.row)
        first = gather.lying(burn_in.first)
        self._end = np.minimum(step + burn_in.length, gather.lying(lambda part: part.bounds[1]))
        self._windows = Windows(gather, first, self._end - first, extent)
        # Each episode before has one more observation than it has steps.
        self._observed = Windows(gather, first + row, self._end - first + 1, extent and extent + 1)
        self["observation"] = (
            partial(self._shown, lens, first)
            if lens
            else lambda: self._items(*spec.observation_columns)._replace(space=spec.observation)
        )
        self["action"] = lambda: self._items(*spec.action_columns)._replace(space=spec.action)
        for column in (spec.reward_column, *spec.extras, *spec.infos):
            self[column.name] = partial(self._items, column)
        for state in spec.states:
            self[state.name] = partial(self._states, state, first)
        self["terminated"] = lambda: self._steps(self._windows.at_last(self._ended(Ends.TERMINATED)))
        self["truncated"] = lambda: self._steps(self._windows.at_last(self._ended(Ends.TRUNCATED)))
        self["mask"] = lambda: self._steps(self._windows.from_place(step - first))
        self["valid"] = lambda: self._steps(self._windows.from_place(np.zeros_like(step)))
        self["policy_version"] = lambda: self._steps(self._windows.lay(self._windows.lying(_policy_version)))
        self["lengths"] = lambda: self._own(self._end - first)
        self["burn_in"] = lambda: self._own(step - first)
        self["episode"] = lambda: self._own(gather.lying(lambda part: part.row + part.first_episode))
        self["step"] = lambda: self._own(first - gather.lying(lambda part: part.segment.step_offsets[part.row]))
        self["id"] = lambda: self._own(gather.lying(lambda part: part.segment.ids(part.row)))

    def _items(self, *columns: Column) -> _Column:
        """Read list columns: all of steps, or all of observations."""
        windows = self._observed if columns[0].overlap else self._windows
        values = tuple(
            (windows.nullable if column.nullable else windows.items)(column, self._dtypes[column.name])
            for column in columns
        )
        return _Column(values, windows.bounds)

    def _shown(self, lens: Lens, first: NDArray[np.int64]) -> _Column:
        """Read the observations as a lens shows them."""
        observations = self._end - first + 1
        wanted = [
            Wanted(part.number, part.row, first[part.at] + part.row, observations[part.at])
            for part in self._gather.parts
        ]
        values = [self._observed.lay(leaf) for leaf in lens.show(self._gather.snapshot, wanted)]
        return _Column(values, self._observed.bounds, lens.space)

    def _steps(self, values: NDArray[Any]) -> _Column:
        return _Column((values,), self._windows.bounds)

    def _own(self, lying: NDArray[Any]) -> _Column:
        """Lay what a sequence has one of."""
        return _Column((self._gather.as_drawn(lying),), np.arange(len(lying) + 1))

    def _states(self, state: Column, first: NDArray[np.int64]) -> _Column:
        """Read the state before the step with which each window begins."""
        lying = np.empty((len(first), *state.shape), state.dtype)
        for part in self._gather.parts:
            chunk = part.segment.chunk_of(first[part.at])
            part.segment.items(state.name).take(chunk, lying[part.at])
        return self._own(lying)

    def _ended(self, end: Ends) -> NDArray[np.bool_]:
        """Whether the last step of each window is the one with which its episode ended so."""
        last = self._end == self._gather.lying(lambda part: part.segment.step_offsets[part.row + 1])
        ended: NDArray[np.bool_] = last & ((self._gather.lying(lambda part: part.segment.ends[part.row]) & end) != 0)
        return ended


def _policy_version(part: Part, steps: NDArray[np.int64]) -> NDArray[np.int64]:
    versions: NDArray[np.int64] = part.segment.policy_version[part.segment.chunk_of(steps)]
    return versions
