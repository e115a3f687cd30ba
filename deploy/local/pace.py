"""Environments that take their time, as a simulator or a robot does, so that what learns from them has time too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock_producers.callbacks import Callbacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.envs import Rows


class Pace(Callbacks):
    """Holds a producer's environments, all together, to so many steps a second at most."""

    def __init__(
        self,
        steps_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = 1.0 / steps_per_second
        self._clock, self._sleep = clock, sleep
        self._due = clock()

    def on_step(self, steps: Rows) -> None:
        """Wait until these steps are over; time that was lost is not caught up with."""
        now = self._clock()
        self._due = max(self._due + len(steps.env) * self._seconds, now)
        if self._due > now:
            self._sleep(self._due - now)
