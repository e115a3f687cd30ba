"""An open segment: its columns as arrays, and the tables that find a step's episode and chunk."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.replay.runs import Rank, Runs
from penstock_consumers.store import layout, segments
from penstock_schemas import chunks
from penstock_schemas.columns import list_offsets, list_valid, list_values
from penstock_schemas.errors import CorruptStoreError
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.store.commits import SegmentEntry
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec


# What follows the producer in an episode's id.
KEY = ("incarnation", "env", "episode")
# No number that is stored has more.
_DIGITS = 19


class Segment:
    """A segment of E episodes, S steps and C chunks in all.

    A list column has S items, or S + E where it overlaps, as observations do; a recurrent state has C. Arrays are
    read-only views of the segment's bytes, or an item an episode or a chunk.
    """

    def __init__(self, entry: SegmentEntry, batch: pa.RecordBatch, spec: StreamSpec) -> None:
        self.entry = entry
        self.batch = batch
        lists = (*spec.columns, *spec.states)
        self._columns = {column.name: Items(batch.column(column.name), column) for column in lists}
        # Where each episode's steps and chunks begin, shape (E + 1,).
        self.step_offsets: NDArray[np.int64] = list_offsets(batch.column("reward")).astype(np.int64)
        self.chunk_offsets = list_offsets(batch.column("chunk_first_step"))
        # One item a chunk, shape (C,).
        self.chunk_first_step = _items(batch, "chunk_first_step")
        self.policy_version = _items(batch, "policy_version")
        self.exploration = _items(batch, "exploration")

    @classmethod
    def open(cls, entry: SegmentEntry, data: pa.Buffer, spec: StreamSpec) -> Segment:
        """Open a segment from its bytes; raises `CorruptStoreError` where they are not as its commit names them."""
        segment = cls(entry, segments.parsed(entry, data, segments.episode_schema(spec)), spec)
        steps, observations = (len(segment.items(name)) for name in ("reward", spec.observation_columns[0].name))
        if steps != entry.steps or observations != steps + entry.rows:
            raise CorruptStoreError(
                f"segment {entry.name}: {steps} steps and {observations} observations, "
                f"its commit names {entry.steps} steps in {entry.rows} episodes: it was altered: {segments.RESTORE}"
            )
        return segment

    @property
    def partition(self) -> int:
        """The partition that it is of."""
        return layout.partition_of(self.entry.name)

    def fixed(self, name: str) -> NDArray[Any]:
        """View a column of one primitive an episode, shape (E,)."""
        return chunks.fixed(self.batch, name)

    def items(self, name: str) -> Items:
        """The items of a list column."""
        return self._columns[name]

    @cached_property
    def chunk_episode(self) -> NDArray[np.int64]:
        """The row of each chunk's episode, shape (C,)."""
        return np.repeat(np.arange(self.entry.rows), np.diff(self.chunk_offsets))

    @cached_property
    def chunk_start(self) -> NDArray[np.int64]:
        """The step of the segment at which each chunk begins, ascending, shape (C,).

        A chunk without a step, the last of an aborted episode, begins where the next episode does.
        """
        begins: NDArray[np.int64] = self.step_offsets[self.chunk_episode] + self.chunk_first_step
        return begins

    @cached_property
    def row_of(self) -> Rank:
        """Finds the episode's row of steps of the segment."""
        return Rank(self.step_offsets[:-1], self.entry.steps)

    @cached_property
    def chunk_of(self) -> Rank:
        """Finds the chunk of steps of the segment."""
        return Rank(self.chunk_start, self.entry.steps)

    @cached_property
    def ends(self) -> NDArray[np.uint8]:
        """How each episode ends, as the values of `Ends`, shape (E,)."""
        return self.fixed("ends")

    def ids(self, rows: NDArray[np.int64]) -> NDArray[np.object_]:
        """Give the `Episode.id` of each of `rows`, an object array of str, shape (n,)."""
        which, back = np.unique(rows, return_inverse=True)
        producers = self.batch.column("producer").take(pa.array(which)).to_pylist()
        numbers = (self.fixed(name)[which].tolist() for name in ("incarnation", "env", "episode"))
        return np.array(list(map(episode_id, producers, *numbers)), np.object_)[back]

    def by_chunk(self, runs: Runs) -> Runs:
        """Cut runs where chunks begin."""
        starts = self.chunk_start[self.chunk_start < self.entry.steps]
        begin = np.unique(np.concatenate([runs.begin, starts]))
        run = np.searchsorted(runs.begin, begin, side="right") - 1
        inside = (run >= 0) & (begin < runs.end[run])
        begin, run = begin[inside], run[inside]
        end = np.minimum(runs.end[run], np.append(begin[1:], self.entry.steps))
        return Runs(runs.row[run], begin, end)


class Items:
    """The items of one list column, end to end; strings become objects only where they are read."""

    def __init__(self, array: pa.ListArray, column: Column) -> None:
        self.column = column
        self._array = array
        self._texts: Any = array.flatten() if column.is_text else None
        self._values = None if column.is_text else list_values(array, column)

    def __len__(self) -> int:
        return len(self._texts) if self._values is None else len(self._values)

    @cached_property
    def valid(self) -> NDArray[np.bool_] | None:
        """Which items are there, shape (n,); None where all are."""
        return list_valid(self._array) if self.column.nullable else None

    def view(self, at: slice) -> NDArray[Any]:
        """View the items from `at.start` to `at.stop`, in the dtype in which they are stored."""
        if self._values is not None:
            return self._values[at]
        return _objects(self._texts[at])

    def take(self, index: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy the items of `index`, all of which are there, to `out`, shape (len(index), *column shape)."""
        if self._values is not None:
            # In mode "raise" numpy would go through a buffer.
            np.take(self._values, index, axis=0, out=out, mode="clip")
        else:
            out[:] = _objects(self._texts.take(pa.array(index)))


def episode_id(producer: str, incarnation: int, env: int, episode: int) -> str:
    """Name an episode."""
    return f"{producer}/{incarnation}/{env}/{episode}"


def parsed_id(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Read the producer and the numbers of `KEY` from what `episode_id` named; None where that is another text."""
    producer, *words = name.rsplit("/", len(KEY))
    if len(words) != len(KEY) or not all(word.isdecimal() and len(word) <= _DIGITS for word in words):
        return None
    return producer, tuple(map(int, words))


def given_dtypes(spec: StreamSpec) -> dict[str, np.dtype[Any]]:
    """The dtype in which each list column is given to a learner: that of the environment, not of the wire."""
    spaces = (*leaves(spec.observation), *leaves(spec.action))
    columns = (*spec.observation_columns, *spec.action_columns)
    given = {column.name: leaf.space.dtype for leaf, column in zip(spaces, columns, strict=True)}
    return {column.name: column.dtype for column in spec.columns} | given


def masked(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> np.ma.MaskedArray[Any, Any]:
    """Mask the items of `values`, shape (n, *item shape), that are not `valid`, shape (n,); None where all are.

    The mask may be written to where the values may.
    """
    mask = np.zeros(values.shape, np.bool_)
    if valid is not None:
        mask[~valid] = True
    mask.flags.writeable = values.flags.writeable
    return np.ma.MaskedArray(values, mask=mask)


def _items(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    values: NDArray[Any] = batch.column(name).flatten().to_numpy(zero_copy_only=True)
    return values


def _objects(texts: pa.StringArray) -> NDArray[Any]:
    objects: NDArray[Any] = texts.to_numpy(zero_copy_only=False)
    return objects
