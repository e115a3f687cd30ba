"""With what the episodes began that go on from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_producers.collect.chunks import NONE

if TYPE_CHECKING:
    from penstock_producers.collect.chunks import Chunks
    from penstock_producers.collect.episodes import Laid

_COLUMNS = {"seed": (NONE, np.int64), "continues": (NONE, np.int64), "reset_options": (None, object)}


class Origins:
    """What the first chunk of each env's newest episode says; and its number, which the next one follows.

    Args:
        num_envs: N.
        first: the number of each env's first episode, shape (N,).
    """

    def __init__(self, num_envs: int, first: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self._known = {name: np.full(num_envs, none, dtype) for name, (none, dtype) in _COLUMNS.items()}
        self._first = first
        self.next_episode = first.copy()

    def number(self, chunks: Chunks) -> None:
        """Count episodes from each env's first one on, those that others continue too; take note of the newest."""
        env, continues = chunks.rows["env"], chunks.rows["continues"]
        chunks.rows["episode"] = chunks.rows["episode"] + self._first[env]
        chunks.rows["continues"] = np.where(continues == NONE, NONE, continues + self._first[env])
        np.maximum.at(self.next_episode, env, chunks.rows["episode"] + 1)

    def complete(self, laid: Laid) -> None:
        """Say of episodes that began in an earlier call with what, and remember it of those that go on."""
        rows = laid.chunks.rows
        first = laid.head[:-1] + (laid.before > 0)
        env = rows["env"][first]
        goes_on = rows["chunk"][first] > 0
        for name, known in self._known.items():
            values = rows[name] = rows[name].copy()
            values[first[goes_on]] = known[env[goes_on]]
            # By env and number: the newest of an env stands last, and is what remains.
            known[env] = values[first]
