"""Episodes, one by one, as views of their segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.segment import given_dtypes
from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_schemas.stream import StreamSpec

_FIXED = ("incarnation", "env", "episode", "length", "return", "ends", "opened_offset", "closed_offset", "closed_ms")
_OTHER = ("producer", "abort_reason", "seed", "reset_options")


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One episode of T steps; its arrays are read-only views of the store where the stored dtype is the given one.

    `opened_offset` and `closed_offset` are the records in which it began and with which it ended, `closed_ms` the
    log's time of the latter, in milliseconds since 1970. `reset_options` is JSON.
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
    opened_offset: int
    closed_offset: int
    closed_ms: int
    policy_version: NDArray[np.int64]
    """The version that chose each action, shape (T,)."""
    exploration: NDArray[np.uint8]
    """How each action was chosen, as `penstock_schemas.chunks.Exploration`, shape (T,)."""
    observation: NDArray[Any]
    """Shape (T + 1, *observation space), in the space's dtype."""
    action: NDArray[Any]
    """Shape (T, *action space), in the space's dtype."""
    reward: NDArray[Any]
    """Shape (T,)."""
    extras: dict[str, NDArray[Any]]
    """What the policy declared beside the action, by name, each of shape (T, *its own)."""
    chunk_first_step: NDArray[np.int64]
    """The step at which each of the C chunks begins in which the episode travelled, shape (C,)."""
    policy_digest: tuple[bytes, ...]
    """The digest of the weights that acted in each chunk, C items."""


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


def _episodes(segment: Segment, spec: StreamSpec, rows: NDArray[np.intp]) -> Iterator[Episode]:
    fixed = {name: segment.fixed(name).tolist() for name in _FIXED}
    other = {name: segment.batch.column(name).to_pylist() for name in _OTHER}
    dtypes = given_dtypes(spec)
    columns = {name: values.astype(dtypes[name], copy=False) for name, values in segment.columns.items()}
    chunk_steps = np.diff(segment.chunk_start, append=segment.entry.steps)
    version, exploration = (np.repeat(of, chunk_steps) for of in (segment.policy_version, segment.exploration))
    digests = segment.batch.column("policy_digest").flatten().to_pylist()
    step_offsets, chunk_offsets = segment.step_offsets.tolist(), segment.chunk_offsets.tolist()
    for row in rows.tolist():
        steps = slice(step_offsets[row], step_offsets[row + 1])
        # Each episode before has one more observation than it has steps.
        observations = slice(steps.start + row, steps.stop + row + 1)
        in_chunks = slice(chunk_offsets[row], chunk_offsets[row + 1])
        yield Episode(
            producer=other["producer"][row],
            incarnation=fixed["incarnation"][row],
            env=fixed["env"][row],
            episode=fixed["episode"][row],
            length=fixed["length"][row],
            return_=fixed["return"][row],
            ends=Ends(fixed["ends"][row]),
            abort_reason=other["abort_reason"][row],
            seed=other["seed"][row],
            reset_options=other["reset_options"][row],
            opened_offset=fixed["opened_offset"][row],
            closed_offset=fixed["closed_offset"][row],
            closed_ms=fixed["closed_ms"][row],
            policy_version=version[steps],
            exploration=exploration[steps],
            observation=columns["observation"][observations],
            action=columns["action"][steps],
            reward=columns["reward"][steps],
            extras={extra.name: columns[extra.name][steps] for extra in spec.extras},
            chunk_first_step=segment.chunk_first_step[in_chunks],
            policy_digest=tuple(digests[in_chunks]),
        )
