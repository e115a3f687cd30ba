"""Whether a store holds a message's rows already, under whichever name they were judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock_consumers.store import segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.quarantine.claim import Claim
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Live
    from penstock_schemas.chunks import ChunkRows
    from penstock_schemas.stream import StreamSpec

_COLUMNS = ("producer", "incarnation", "env", "episode", "length")
# The length of each episode that is known of an incarnation, by env and number.
_Lengths = dict[tuple[str, int], dict[tuple[int, int], int]]
# Env, episode and first step of each row of a message.
Steps = list[tuple[int, int, int]]


def first_steps(rows: ChunkRows) -> Steps:
    """What tells a message's rows in a store; one without a step, which ends an aborted episode, leaves no trace."""
    some = rows.steps > 0
    return list(zip(*(column[some].tolist() for column in (rows.env, rows.episode, rows.first_step)), strict=True))


def held(
    bucket: Bucket, spec: StreamSpec, commit: Commit, live: Live, asked: Mapping[Claim, Steps], since: int
) -> set[Claim]:
    """Tell which messages have a row in a partition of a store; none of their records lies below the offset `since`.

    A row is there where the episode that it belongs to goes beyond the step with which the row begins.
    """
    lengths: _Lengths = {(name, at.incarnation): {} for at in asked for name in (at.producer, at.retried)}
    _read_open(commit, lengths)
    _read_closed(bucket, spec, live, lengths, since)
    return {
        claim
        for claim, steps in asked.items()
        for known in (lengths[name, claim.incarnation] for name in (claim.producer, claim.retried))
        if any(known.get((env, episode), 0) > step for env, episode, step in steps)
    }


def _read_open(commit: Commit, lengths: _Lengths) -> None:
    for name, entry in commit.producers.items():
        known = lengths.get((name, entry.incarnation))
        if known is None:
            continue
        envs = entry.envs
        # Of an episode that has ended the step is 0.
        known |= zip(zip(envs.env, envs.episode, strict=True), envs.step, strict=True)


def _read_closed(bucket: Bucket, spec: StreamSpec, live: Live, lengths: _Lengths, since: int) -> None:
    incarnations = np.array(sorted({incarnation for _, incarnation in lengths}), np.int64)
    for entry in live.segments:
        # An episode ends in no earlier record than any of its rows.
        if entry.ranges is not None and entry.ranges.closed_offset[1] < since:
            continue
        for batch in segments.columns(bucket, entry, segments.episode_schema(spec), _COLUMNS):
            among = pa.array(np.isin(batch.column("incarnation").to_numpy(), incarnations))
            for row in batch.select(_COLUMNS).filter(among).to_pylist():
                known = lengths.get((row["producer"], row["incarnation"]))
                if known is not None:
                    known[row["env"], row["episode"]] = row["length"]
