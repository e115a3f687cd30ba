"""One episode by its id, in a store of which no more is read than it takes to find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay import snapshot
from penstock_consumers.replay.episodes import named
from penstock_consumers.replay.opening import Opener
from penstock_consumers.replay.segment import KEY, parsed_id
from penstock_consumers.replay.snapshot import Snapshot
from penstock_consumers.store import commits, segments
from penstock_schemas.chunks import fixed
from penstock_schemas.errors import StoreError

if TYPE_CHECKING:
    from penstock_consumers.replay.episodes import Episode
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, SegmentEntry
    from penstock_schemas.stream import StreamSpec


def find(bucket: Bucket, name: str) -> Episode:
    """Find an episode at the newest commits by its id: producer/incarnation/env/episode.

    Raises `StoreError` where there is none, and says so where it is still open.
    """
    spec = snapshot.existing(bucket).spec
    parsed = parsed_id(name)
    if parsed is None:
        raise StoreError(f"no episode {name!r}: an id is producer/incarnation/env/episode, as `ls` lists it")
    producer, key = parsed
    found = list(commits.newest_of_each(bucket))
    for commit in found:
        for entry in commits.live_at(bucket, commit).segments:
            # No episode ends before its incarnation began.
            if commits.ranges_of(entry).closed_offset[1] < key[0] or not _may_hold(bucket, entry, spec, key):
                continue
            one = Snapshot({}, (entry,), Opener(bucket, spec))
            if (episode := named(one, spec, name)) is not None:
                return episode
    open_steps = [steps for commit in found if (steps := _open_steps(commit, producer, key)) is not None]
    if open_steps:
        raise StoreError(f"store {bucket.url}: episode {name!r} is open, with {open_steps[0]:,} steps so far")
    raise StoreError(f"store {bucket.url}: no episode {name!r} in it; `ls` lists what there is")


def _may_hold(bucket: Bucket, entry: SegmentEntry, spec: StreamSpec, key: tuple[int, ...]) -> bool:
    """Whether a segment has an episode of these numbers, of any producer."""
    for batch in segments.columns(bucket, entry, segments.episode_schema(spec), KEY):
        same = [fixed(batch, name) == number for name, number in zip(KEY, key, strict=True)]
        if np.logical_and.reduce(same).any():
            return True
    return False


def _open_steps(commit: Commit, producer: str, key: tuple[int, ...]) -> int | None:
    """How many steps an open episode has; None where it is not open."""
    incarnation, *place = key
    entry = commit.producers.get(producer)
    if entry is None or entry.incarnation != incarnation:
        return None
    envs = entry.envs
    steps = (
        step
        for env, episode, chunk, step in zip(envs.env, envs.episode, envs.chunk, envs.step, strict=True)
        if chunk and [env, episode] == place
    )
    return next(steps, None)
