"""The episodes that are open at a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.store.commits import ProducerEntry

# What names an episode, after its producer.
EPISODE = ("incarnation", "env", "episode")


def open_episodes(producers: Mapping[str, ProducerEntry]) -> pa.RecordBatch:
    """Name the episodes that are open where producers stand so, each with its chunks, steps and bytes so far."""
    rows = [
        (name, entry.incarnation, env, episode, chunk, step, size)
        for name, entry in producers.items()
        for env, episode, chunk, step, size in zip(
            entry.envs.env, entry.envs.episode, entry.envs.chunk, entry.envs.step, entry.envs.bytes, strict=True
        )
        if chunk
    ]
    columns = ("producer", *EPISODE, "chunk", "step", "bytes")
    names = [row[0] for row in rows]
    numbers = np.array([row[1:] for row in rows], np.int64).reshape(-1, len(columns) - 1)
    arrays: list[Any] = [pa.array(names, pa.string()), *map(pa.array, numbers.T)]
    return pa.RecordBatch.from_arrays(arrays, names=columns)
