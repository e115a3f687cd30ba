"""Which envs stepped in which vector step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.envs import Rows


class Times:
    """Notes the steps of N envs as they are recorded, to lay them out by time.

    Attributes:
        lockstep: whether all envs that act are answered together.
    """

    def __init__(self, num_envs: int) -> None:
        self.lockstep = True
        self._num_envs = num_envs
        self._stepped: list[tuple[NDArray[np.int32] | None, NDArray[np.bool_]]] = []

    def add(self, rows: Rows) -> None:
        """Take note of rows that come together; those of resets are no steps."""
        stepped = ~rows.first
        if stepped.any():
            self._stepped.append((None if len(stepped) == self._num_envs else rows.env.copy(), stepped))

    def mask(self) -> NDArray[np.bool_]:
        """Tell which of the steps at each time there are, shape (T, N).

        In lockstep a time is a vector step, of which some envs may have no part: one that is being reset, that is
        parked or down. Out of lockstep it is the how-manieth step of each env. Raises `SettingsError` where envs have
        different numbers of them.
        """
        mask = np.zeros((len(self._stepped), self._num_envs), np.bool_)
        for time, (env, stepped) in enumerate(self._stepped):
            mask[time, slice(None) if env is None else env] = stepped
        if self.lockstep:
            return mask
        counts = mask.sum(axis=0)
        if (counts != counts[0]).any():
            raise SettingsError(
                f"tensors of envs that are out of lockstep and stepped {counts.min()} to {counts.max()} times: they "
                "are of no common time; use the episodes, or lockstep=True"
            )
        return np.ones((int(counts[0]), self._num_envs), np.bool_)
