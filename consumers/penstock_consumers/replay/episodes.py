"""Episodes, one by one, as views of their segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.replay.segment import given_dtypes, masked
from penstock_schemas.chunks import Ends
from penstock_schemas.spaces import unflatten
from penstock_schemas.stream import INFO, METRIC, STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

_FIXED = ("incarnation", "env", "episode", "length", "return", "ends", "opened_offset", "closed_offset", "closed_ms")
_OTHER = ("producer", "abort_reason", "seed", "reset_options", "continues")
# What follows the producer in an episode's id.
_KEY = ("incarnation", "env", "episode")


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One episode of T steps; its arrays are read-only views of the store where the stored dtype is the given one.

    `opened_offset` and `closed_offset` are the records in which it began and with which it ended, `closed_ms` the
    log's time of the latter, in milliseconds since 1970. `reset_options` is JSON. `continues` is the number of
    the env's episode that was cut where this one begins, None where it began with a reset; one that ends with
    `Ends.CUT` has a continuation. A cut is no end of the env's own: returns add up over the parts, bootstrapping goes
    on.
    """

    producer: str
    incarnation: int
    env: int
    episode: int
    length: int
    return_: float
    ends: Ends
    abort_reason: str | None
    seed: int | None
    reset_options: str | None
    continues: int | None
    opened_offset: int
    closed_offset: int
    closed_ms: int
    policy_version: NDArray[np.int64]
    """The version that chose each action, shape (T,)."""
    exploration: NDArray[np.uint8]
    """How each action was chosen, as `penstock_schemas.chunks.Exploration`, shape (T,)."""
    observation: Any
    """In the structure of the observation space: arrays of shape (T + 1, *leaf), in dicts and tuples where it is one.

    Dtypes are the environment's; text is an object array of str.
    """
    action: Any
    """In the structure of the action space, arrays of shape (T, *leaf)."""
    reward: NDArray[Any]
    """Shape (T,)."""
    extras: dict[str, NDArray[Any]]
    """What the policy declared beside the action, by name, each of shape (T, *its own).

    A nullable one is a masked array, masked at the steps at which there was none.
    """
    infos: dict[str, np.ma.MaskedArray[Any, Any]]
    """The recorded infos by key, one with each observation, shape (T + 1, *its own); masked where there was none."""
    chunk_first_step: NDArray[np.int64]
    """The step at which each of the C chunks begins in which the episode travelled, shape (C,).

    The last chunk of an aborted episode may have no step: it begins at T then.
    """
    policy_digest: tuple[bytes, ...]
    """The digest of the weights that acted in each chunk, C items."""
    chunk_state: dict[str, NDArray[Any]]
    """The policy's recurrent state before the first step of each chunk, by name, each of shape (C, *its own).

    Zeros where a chunk has no step.
    """
    metrics: dict[str, float | None]
    """What was measured of the episode, by name; None where it was not, or where the env did not end the episode."""

    @property
    def id(self) -> str:
        """The name by which `Replay.episode` finds it: producer/incarnation/env/episode."""
        return episode_id(self.producer, self.incarnation, self.env, self.episode)


def episode_id(producer: str, incarnation: int, env: int, episode: int) -> str:
    """Name an episode."""
    return f"{producer}/{incarnation}/{env}/{episode}"


def stored_in(snapshot: Snapshot, spec: StreamSpec) -> Iterator[Episode]:
    """Give all episodes of a snapshot."""
    for segment in snapshot.segments:
        yield from _episodes(segment, spec, np.arange(segment.entry.rows))


def stored_since(before: Snapshot, snapshot: Snapshot, spec: StreamSpec) -> Iterator[Episode]:
    """Give the episodes of a snapshot that an earlier one did not hold.

    What was stored before ended below its high-water mark, in whatever segment it lies now.
    """
    known = {segment.entry.name for segment in before.segments}
    for segment in snapshot.segments:
        if segment.entry.name not in known:
            new = segment.fixed("closed_offset") >= before.high_water(segment.partition)
            yield from _episodes(segment, spec, np.flatnonzero(new))


def named(snapshot: Snapshot, spec: StreamSpec, name: str) -> Episode | None:
    """Find the episode that has this id; None where the snapshot has none."""
    producer, *numbers = name.rsplit("/", 3)
    if len(numbers) != len(_KEY) or not all(number.isdecimal() for number in numbers):
        return None
    for segment in snapshot.segments:
        found = np.ones(segment.entry.rows, np.bool_)
        for column, number in zip(_KEY, numbers, strict=True):
            found &= segment.fixed(column) == int(number)
        for row in np.flatnonzero(found):
            if segment.batch.column("producer")[int(row)].as_py() == producer:
                return next(_episodes(segment, spec, np.array([row])))
    return None


def _episodes(segment: Segment, spec: StreamSpec, rows: NDArray[np.intp]) -> Iterator[Episode]:
    fixed = {name: segment.fixed(name)[rows].tolist() for name in _FIXED}
    other = {name: segment.batch.column(name).take(pa.array(rows)).to_pylist() for name in _OTHER}
    metrics = {
        column.name.removeprefix(METRIC): segment.batch.column(column.name).take(pa.array(rows)).to_pylist()
        for column in spec.metric_columns
    }
    dtypes = given_dtypes(spec)
    chunk_steps = np.diff(segment.chunk_start, append=segment.entry.steps)
    version, exploration = (np.repeat(of, chunk_steps) for of in (segment.policy_version, segment.exploration))
    digests = segment.batch.column("policy_digest")

    def items(column: Column, at: slice) -> NDArray[Any]:
        return segment.items(column.name).view(at).astype(dtypes[column.name], copy=False)

    def nullable(column: Column, at: slice) -> np.ma.MaskedArray[Any, Any]:
        valid = segment.items(column.name).valid
        return masked(items(column, at), None if valid is None else valid[at])

    for place, row in enumerate(rows.tolist()):
        steps = slice(int(segment.step_offsets[row]), int(segment.step_offsets[row + 1]))
        # Each episode before has one more observation than it has steps.
        observations = slice(steps.start + row, steps.stop + row + 1)
        in_chunks = slice(int(segment.chunk_offsets[row]), int(segment.chunk_offsets[row + 1]))
        yield Episode(
            producer=other["producer"][place],
            incarnation=fixed["incarnation"][place],
            env=fixed["env"][place],
            episode=fixed["episode"][place],
            length=fixed["length"][place],
            return_=fixed["return"][place],
            ends=Ends(fixed["ends"][place]),
            abort_reason=other["abort_reason"][place],
            seed=other["seed"][place],
            reset_options=other["reset_options"][place],
            continues=other["continues"][place],
            opened_offset=fixed["opened_offset"][place],
            closed_offset=fixed["closed_offset"][place],
            closed_ms=fixed["closed_ms"][place],
            policy_version=version[steps],
            exploration=exploration[steps],
            observation=unflatten(
                spec.observation, [items(column, observations) for column in spec.observation_columns]
            ),
            action=unflatten(spec.action, [items(column, steps) for column in spec.action_columns]),
            reward=items(spec.reward_column, steps),
            extras={extra.name: (nullable if extra.nullable else items)(extra, steps) for extra in spec.extras},
            infos={column.name.removeprefix(INFO): nullable(column, observations) for column in spec.infos},
            chunk_first_step=segment.chunk_first_step[in_chunks],
            policy_digest=tuple(digests[row].as_py()),
            chunk_state={
                state.name.removeprefix(STATE): segment.items(state.name).view(in_chunks) for state in spec.states
            },
            metrics={name: values[place] for name, values in metrics.items()},
        )
