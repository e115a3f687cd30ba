"""A fragment: what one vector env produces between two policy refreshes, as a columnar log.

The loop appends one batch of rows per answer of the env. When the fragment closes, one stable sort by env and one
take per column turn it into chunk rows: no Python per env, step or episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import Ends, Exploration, list_column
from penstock_schemas.errors import TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs import Rows
    from penstock_schemas.stream import Column, StreamSpec

_NO_SEED = -1


@dataclass(frozen=True, slots=True)
class ActingPolicy:
    """Which weights acted in a fragment, and how actions were chosen."""

    version: int
    digest: bytes
    exploration: Exploration = Exploration.ON


@dataclass(frozen=True, slots=True)
class ClosedFragment:
    """A fragment's chunk rows, and what is worth counting of it."""

    batch: pa.RecordBatch
    steps: int
    episode_return: NDArray[np.float64]
    episode_length: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recording:
    """What is copied of every action, and how the stream's columns come of it when a fragment closes.

    What can be computed later is computed then, for a whole fragment at once: at an env's batch sizes a numpy call
    costs more than what it computes.

    Attributes:
        columns: what the policy gives for each step, the action first.
        finish: maps those columns, an item a step, to the stream's action and extras.
    """

    columns: tuple[Column, ...]
    finish: Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]]

    @classmethod
    def plain(cls, spec: StreamSpec) -> Recording:
        """The policy gives the stream's own columns."""
        return cls((spec.columns[1], *spec.extras), lambda values: values)


class Fragment:
    """The rows of the running fragment, and where each env's episode stands.

    `capacity` is the number of answers with a row for each of the `num_envs` envs; reset rows that come beside
    them have room as well. No row of `close` holds more steps than fit into `row_bytes`.
    """

    def __init__(
        self, spec: StreamSpec, num_envs: int, capacity: int, row_bytes: int, recording: Recording | None = None
    ) -> None:
        self._spec = spec
        self._recording = recording or Recording.plain(spec)
        self._longest = _longest_chunk(spec, row_bytes)
        rows = num_envs * (2 * capacity + 1)
        self._env = np.empty(rows, np.int32)
        self._first = np.empty(rows, np.bool_)
        self._terminated = np.empty(rows, np.bool_)
        self._truncated = np.empty(rows, np.bool_)
        self._seed = np.full(rows, _NO_SEED, np.int64)
        observation, _, reward, *_ = spec.columns
        self._observation = np.empty((rows, *observation.shape), observation.dtype)
        self._reward = np.empty(rows, reward.dtype)
        self._drawn = [np.empty((rows, *column.shape), column.dtype) for column in self._recording.columns]
        self._count = 0
        # Where each env's open episode stands.
        self._episode = np.zeros(num_envs, np.int64)
        self._chunk = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._return = np.zeros(num_envs, np.float64)

    @property
    def rows(self) -> int:
        """The number of rows at hand, those carried over from the fragment before included."""
        return self._count

    def append(self, rows: Rows, drawn: Sequence[NDArray[Any]] | None) -> None:
        """Copy an answer of the env.

        `drawn` is what the policy gave for the rows' envs, in the order of the recording's columns; None for rows
        that are all resets.
        """
        start = self._count
        self._count = stop = start + len(rows.env)
        self._env[start:stop] = rows.env
        self._first[start:stop] = rows.first
        self._terminated[start:stop] = rows.terminated
        self._truncated[start:stop] = rows.truncated
        self._observation[start:stop] = rows.observation
        self._reward[start:stop] = rows.reward
        if drawn is not None:
            for column, values in zip(self._drawn, drawn, strict=True):
                column[start:stop] = values
        if rows.seed is not None:
            self._seed[start:stop] = rows.seed

    def close(self, policy: ActingPolicy) -> ClosedFragment:
        """Turn the rows into chunk rows, and begin the next fragment with the episodes that are open."""
        count = self._count
        env = self._env[:count]
        order = np.argsort(env.astype(np.int16) if len(self._episode) <= np.iinfo(np.int16).max else env, kind="stable")
        env, first = env[order], self._first[:count][order]
        # Every env's rows begin with one that is no step: a reset's, or the observation carried over.
        head = np.flatnonzero(first)
        length = np.diff(np.append(head, count)) - 1
        tail = order[head + length]
        chunks = self._number(env[head], length, self._seed[order[head]])
        chunks["ends"] = (self._terminated[tail] + 2 * self._truncated[tail]).astype(np.uint8)
        chunks["head"] = head
        ended, returns = self._add_returns(chunks, order)
        closed = self._to_batch({name: values[length > 0] for name, values in chunks.items()}, order, policy)
        lengths = (chunks["first_step"] + length)[ended]
        self._carry(chunks, tail)
        return ClosedFragment(closed, int(length.sum()), returns, lengths)

    def _number(self, env: NDArray[Any], length: NDArray[Any], seed: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Tell each chunk's place: an env's first goes on where its episode stood, each later one begins anew."""
        starts = np.flatnonzero(np.append(True, env[1:] != env[:-1]))
        rank = np.arange(len(env)) - np.repeat(starts, np.diff(np.append(starts, len(env))))
        goes_on = rank == 0
        return {
            "env": env,
            "episode": self._episode[env] + rank,
            "chunk": np.where(goes_on, self._chunk[env], 0).astype(np.int32),
            "first_step": np.where(goes_on, self._step[env], 0),
            "length": length,
            "seed": seed,
        }

    def _add_returns(
        self, chunks: dict[str, NDArray[Any]], order: NDArray[Any]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Add up each env's return; answer which chunks ended an episode, and the returns of those."""
        rewards = self._reward[order].astype(np.float64)
        rewards[chunks["head"]] = 0.0
        returns = np.add.reduceat(rewards, chunks["head"])
        env = chunks["env"]
        went_on = chunks["first_step"] > 0
        returns[went_on] += self._return[env[went_on]]
        last = _is_last(env)
        ended = chunks["ends"] != Ends.OPEN
        self._return[env[last]] = returns[last]
        return ended, returns[ended]

    def _carry(self, chunks: dict[str, NDArray[Any]], tail: NDArray[Any]) -> None:
        env = chunks["env"]
        last = np.flatnonzero(_is_last(env))
        at, length = env[last], chunks["length"][last]
        is_open = chunks["ends"][last] == Ends.OPEN
        self._episode[at] = chunks["episode"][last] + ~is_open
        pieces = -(-length // self._longest)
        self._chunk[at] = np.where(is_open, chunks["chunk"][last] + pieces, 0)
        self._step[at] = np.where(is_open, chunks["first_step"][last] + length, 0)
        carried = at[is_open]
        # A reset row that has had no step keeps its seed for the chunk that it will begin.
        seeds = np.where(length == 0, chunks["seed"][last], _NO_SEED)[is_open]
        observations = self._observation[tail[last][is_open]]
        self._seed[: self._count] = _NO_SEED
        self._count = len(carried)
        now = slice(0, self._count)
        self._env[now], self._observation[now], self._seed[now] = carried, observations, seeds
        self._first[now], self._terminated[now], self._truncated[now] = True, False, False

    def _to_batch(self, chunks: dict[str, NDArray[Any]], order: NDArray[Any], policy: ActingPolicy) -> pa.RecordBatch:
        if len(chunks["length"]) and chunks["length"].max() > self._longest:
            chunks = _cut(chunks, self._longest)
        rows = len(chunks["env"])
        columns = {
            **{name: pa.array(chunks[name]) for name in ("env", "episode", "chunk", "first_step", "ends")},
            "abort_reason": pa.nulls(rows, pa.string()),
            "seed": pa.array(chunks["seed"], mask=chunks["seed"] == _NO_SEED),
            "reset_options": pa.nulls(rows, pa.string()),
            "policy_version": pa.array(np.full(rows, policy.version, np.int64)),
            "policy_digest": pa.repeat(pa.scalar(policy.digest, pa.binary(32)), rows),
            "exploration": pa.array(np.full(rows, policy.exploration, np.uint8)),
        }
        head, length = chunks["head"], chunks["length"]
        observation, action, reward, *extras = self._spec.columns
        index, offsets = _ranges(head, length + 1)
        columns["observation"] = list_column(observation, np.take(self._observation, order[index], axis=0), offsets)
        index, offsets = _ranges(head + 1, length)
        index = order[index]
        columns["reward"] = list_column(reward, self._reward[index], offsets)
        drawn = self._recording.finish([np.take(values, index, axis=0) for values in self._drawn])
        for column, values in zip((action, *extras), drawn, strict=True):
            columns[column.name] = list_column(column, values, offsets)
        schema = self._spec.schema
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def split(batch: pa.RecordBatch, spec: StreamSpec, limit: int) -> list[pa.RecordBatch]:
    """Part chunk rows into batches whose lists and fixed columns take at most `limit` bytes each.

    Raises `TooLargeError` where a single row takes more.
    """
    if not batch.num_rows:
        return []
    lengths = np.diff(batch.column("reward").offsets.to_numpy())
    ends = np.cumsum(_bytes(spec, lengths.astype(np.int64)))
    parts: list[pa.RecordBatch] = []
    start, taken = 0, 0
    while start < batch.num_rows:
        stop = int(np.searchsorted(ends, taken + limit, side="right"))
        if stop == start:
            raise TooLargeError(
                f"a chunk of the stream {spec.stream!r} takes {ends[start] - taken} bytes, a message holds {limit}: "
                "record shorter chunks, or raise --max-message-bytes"
            )
        parts.append(batch.slice(start, stop - start))
        start, taken = stop, int(ends[stop - 1])
    return parts


def _is_last(env: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the last of each env's items; there may be none at all."""
    last = np.ones(len(env), np.bool_)
    last[:-1] = env[1:] != env[:-1]
    return last


def _ranges(start: NDArray[Any], length: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Lay the ranges `start[i]:start[i] + length[i]` end to end; answer them, and the offset of each."""
    ends = np.cumsum(length)
    index = np.repeat(start - (ends - length), length) + np.arange(ends[-1] if len(ends) else 0)
    return index, np.append(0, ends).astype(np.int32)


def _cut(chunks: dict[str, NDArray[Any]], longest: int) -> dict[str, NDArray[Any]]:
    """Cut chunks that are too long for a message into several, which follow each other in the same order."""
    pieces = -(-chunks["length"] // longest)
    piece = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut = {name: np.repeat(values, pieces) for name, values in chunks.items()}
    is_last = piece == np.repeat(pieces, pieces) - 1
    cut["head"] += piece * longest
    cut["first_step"] += piece * longest
    cut["chunk"] = (cut["chunk"] + piece).astype(np.int32)
    cut["length"] = np.where(is_last, cut["length"] - piece * longest, longest)
    cut["ends"] = np.where(is_last, cut["ends"], Ends.OPEN).astype(np.uint8)
    cut["seed"] = np.where(piece == 0, cut["seed"], _NO_SEED)
    return cut


def _bytes(spec: StreamSpec, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return spec.row_bytes + lengths * spec.step_bytes


def _longest_chunk(spec: StreamSpec, row_bytes: int) -> int:
    one = int(_bytes(spec, np.ones(1, np.int64))[0])
    if one > row_bytes:
        raise TooLargeError(
            f"one step of the stream {spec.stream!r} takes {one} bytes, a message holds {row_bytes}: "
            "raise --max-message-bytes, and the topic's max.message.bytes with it"
        )
    return 1 + (row_bytes - one) // spec.step_bytes
