"""How long it takes to open a store of 100 million steps, warm: of its commits' bytes, and no segment."""

from __future__ import annotations

import json
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from benchmarks.figure import Figure, paired
from benchmarks.stored import SPEC
from penstock_consumers.replay import Replay
from penstock_consumers.store import commits, layout, manifest
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import (
    FULL_EVERY,
    Commit,
    Envs,
    LastRecord,
    Limits,
    Live,
    ProducerEntry,
    Ranges,
    SegmentEntry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket

_PARTITIONS = 4
_SEGMENTS = 1000
_SEGMENT_STEPS = 100_000
_EPISODES = 500
_PRODUCERS, _ENVS = 4, 16
_ROUNDS = 15
_MOST_MS = 100.0


def opening(folder: Path) -> Iterator[Figure]:
    """Open two stores: one whose newest commits list what lives, and one in which each was followed by 99 others."""
    for since, told in ((0, "its newest commits list what lives"), (FULL_EVERY - 1, f"and {FULL_EVERY - 1} commits")):
        bucket = large_store(folder / str(since), since)
        ours, reference, ratio = paired(lambda at=bucket: _open(at), lambda at=bucket: _parse(at), _ROUNDS)
        name = f"opening a store of 100 million steps, {told} (reference: reading those commits as JSON)"
        target = f"<= {_MOST_MS:g} ms"
        yield Figure(name, round(ours, 1), "ms", round(reference, 1), round(ratio, 2), target, ours <= _MOST_MS)


def large_store(folder: Path, since: int) -> Bucket:
    """Make a store of 100 million steps, in segments that nobody opens: real commits, names, and no files.

    `since` is how many commits were made in each partition since the last that lists what lives; each of them brings
    a small segment, and joins it with the one before.
    """
    bucket = open_bucket(folder)
    manifest.establish(bucket, manifest.Manifest(SPEC, "topic", "cluster"))
    for partition in range(_PARTITIONS):
        number = FULL_EVERY
        entries = tuple(_entry(partition, at) for at in range(_SEGMENTS // _PARTITIONS))
        live = Live(entries)
        commits.create(bucket, _commit(partition, number), live)
        last = entries[-1]
        for at in range(number + 1, number + since + 1):
            added = replace(_entry(partition, at), steps=1, rows=1)
            removed = (last.name,) if at % 2 == 0 else ()
            commit = _commit(partition, at, added, removed)
            live, last = live.after(commit), added
            commits.create(bucket, commit, live)
    return bucket


def _entry(partition: int, number: int) -> SegmentEntry:
    first = number * _EPISODES
    return SegmentEntry(
        name=layout.segment(partition, number),
        rows=_EPISODES,
        steps=_SEGMENT_STEPS,
        bytes=3_412_090,
        crc32c=4_021_194_395,
        ranges=Ranges(
            closed_offset=(first, first + _EPISODES - 1),
            closed_ms=(1_795_000_000_000 + first, 1_795_000_000_000 + first + _EPISODES),
            length=(10, 500),
            return_=(10.0, 500.0),
            policy_version=(number, number + 3),
            ends=(1, 2, 4),
            producers=tuple(f"producer-{at:05d}" for at in range(_PRODUCERS)),
            metrics={"success": (0.0, 1.0)},
        ),
        keys=4_021_194_395_508_854_800,
    )


def _commit(partition: int, number: int, added: SegmentEntry | None = None, removed: tuple[str, ...] = ()) -> Commit:
    envs = Envs(*([at + number for at in range(_ENVS)] for _ in fields(Envs)))
    return Commit(
        partition=partition,
        number=number,
        writer="0" * 32,
        high_water=number * _EPISODES,
        topic_id="topic",
        cluster_id="cluster",
        last=LastRecord(number * _EPISODES - 1, 1_795_000_000_000, "0" * 64),
        log_clock_ms=1_795_000_000_000,
        limits=Limits(),
        producers={f"producer-{at:05d}": ProducerEntry(7, number, 0, "0" * 32, envs) for at in range(_PRODUCERS)},
        counters={"messages_read": number, "rows_read": number},
        segments_added=() if added is None else (added,),
        segments_removed=removed,
    )


def _open(bucket: Bucket) -> float:
    """Milliseconds to open a store and to know how many steps it has."""
    started = time.perf_counter()
    steps = Replay.open(bucket).steps
    elapsed = time.perf_counter() - started
    if steps < (_SEGMENTS - _PARTITIONS) * _SEGMENT_STEPS:
        raise RuntimeError(f"the store that was made has {steps:,} steps: mend the bench")
    return 1000 * elapsed


def _parse(bucket: Bucket) -> float:
    """Milliseconds to read as many of its commits as JSON as opening it reads."""
    started = time.perf_counter()
    for partition in range(_PARTITIONS):
        number = FULL_EVERY
        try:
            while True:
                json.loads(bucket.read(layout.commit(partition, number)).to_pybytes())
                number += 1
        except FileNotFoundError:
            pass
    return 1000 * (time.perf_counter() - started)
