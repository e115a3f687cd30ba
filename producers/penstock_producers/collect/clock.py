"""How long episodes take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.envs import Answer


class Ended(NamedTuple):
    """Episodes that the envs ended with an answer."""

    env: NDArray[np.int32]
    seconds: NDArray[np.float64]
    """From the reset of each to its last step."""


_NOBODY = Ended(np.empty(0, np.int32), np.empty(0))


class EpisodeClock:
    """When the open episode of each of N envs began."""

    def __init__(self, num_envs: int) -> None:
        self._began = np.zeros(num_envs)

    def see(self, answer: Answer, now: float) -> Ended:
        """Take note of an answer that came now; answer which episodes ended with it."""
        ended = _NOBODY
        rows = answer.steps
        if rows is not None:
            if rows.first.any():
                self._began[rows.env[rows.first]] = now
            done = rows.terminated | rows.truncated
            if done.any():
                env = rows.env[done]
                ended = Ended(env, now - self._began[env])
        if answer.resets is not None:
            self._began[answer.resets.env] = now
        return ended
