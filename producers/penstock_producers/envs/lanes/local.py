"""A lane in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.lane import Lane, Order, Result


class LocalLane:
    """Runs an order when it is given. What it cannot contain is an env that hangs, or that ends the process.

    Attributes:
        lane: the envs.
        start, stop: its envs' indices are `start … stop - 1`.
        result: of the order that was run last, until it is taken.
    """

    def __init__(self, lane: Lane, start: int, stop: int) -> None:
        self.lane = lane
        self.start, self.stop = start, stop
        self.result: Result | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it takes an order."""
        return self.result is None

    def submit(self, order: Order) -> None:
        """Run an order."""
        self.result = self.lane.run(order)

    def render(self, place: int) -> NDArray[np.generic] | None:
        """Have an env draw itself."""
        return self.lane.render(place)

    def close(self) -> None:
        """Close the envs."""
        self.lane.close()
