"""The life of the worker processes: started, greeted, waited for together, ended where they are dead or late."""

from __future__ import annotations

import select
import selectors
import time
from typing import TYPE_CHECKING

from penstock_producers.envs.lanes.containment import Fault
from penstock_producers.envs.lanes.remote import State
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_producers.envs.lanes.buffers import Spaces
    from penstock_producers.envs.lanes.remote import RemoteLane

# How long workers may take to close their envs.
_CLOSE_S = 5.0


class Workers:
    """All lanes in worker processes, which may be none; their workers have been greeted.

    Args:
        lanes: each with its worker.
        clock: seconds that never go back.
        lost: called with the lane and the reason, once a worker that is dead or hung has been ended.
    """

    def __init__(
        self, lanes: Sequence[RemoteLane], clock: Callable[[], float], lost: Callable[[RemoteLane, Fault], None]
    ) -> None:
        self.lanes = lanes
        self._clock = clock
        self._lost = lost
        self._epoll = select.epoll()
        self._lane_of: dict[int, RemoteLane] = {}
        for lane in lanes:
            self._listen_to(lane)

    @property
    def busy(self) -> bool:
        """Whether any of them runs an order."""
        return any(lane.state is State.BUSY for lane in self.lanes)

    def launch(self, lane: RemoteLane) -> None:
        """Start the worker of a lane anew; raises `OSError` where there is no room for it."""
        lane.launch()
        self._listen_to(lane)

    def take_in(self, timeout: float) -> bool:
        """Take what workers have sent, waiting for it; whether there was anything. Ends workers past their deadline."""
        events = self._epoll.poll(timeout)
        for lane in dict.fromkeys(self._lane_of[fileno] for fileno, _ in events):
            try:
                lane.poll()
            except Fault as fault:
                self.lose(lane, fault)
        now = self._clock()
        for lane in self.lanes:
            if lane.deadline <= now:
                self.lose(lane, lane.hung())
        return bool(events)

    def wait(self, longest: float, due: float | None = None) -> float:
        """Wait until a worker sends something or is late, or until it is `due`; answer for how long."""
        before = self._clock()
        until = min([before + longest, *(lane.deadline for lane in self.lanes)])
        if due is not None:
            until = min(until, due)
        wait = max(0.0, until - before)
        # A clock that stands still must not keep anyone waiting for ever.
        return self._clock() - before if self.take_in(wait) else max(wait, self._clock() - before)

    def lose(self, lane: RemoteLane, fault: Fault) -> None:
        """End a worker that is dead or hung."""
        for fileno in lane.filenos:
            self._epoll.unregister(fileno)
        lane.kill()
        self._lost(lane, fault)

    def close(self) -> None:
        """End all workers, also those that no longer answer."""
        self._epoll.close()
        close(self.lanes)

    def _listen_to(self, lane: RemoteLane) -> None:
        for fileno in lane.filenos:
            self._epoll.register(fileno, select.EPOLLIN)
            self._lane_of[fileno] = lane


def greet(lanes: Sequence[RemoteLane], name: str, clock: Callable[[], float]) -> Spaces:
    """Wait until all workers have made their envs; answer what these are like.

    Raises:
        EnvError: envs that cannot be made, or that differ.
        SpaceError: a space that is not mapped.
    """
    _listen_to_all(lanes, name, clock)
    spaces = [lane.spaces for lane in lanes if lane.spaces is not None]
    for lane, its in zip(lanes, spaces, strict=True):
        if (its.observation, its.action) != (spaces[0].observation, spaces[0].action):
            raise EnvError(
                f"environment {name}: env {lane.start} has other spaces than env 0, {its.observation} and {its.action} "
                f"instead of {spaces[0].observation} and {spaces[0].action}; all envs of a stream have the same"
            )
    return spaces[0]


def _listen_to_all(lanes: Sequence[RemoteLane], name: str, clock: Callable[[], float]) -> None:
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            for fileno in lane.filenos:
                selector.register(fileno, selectors.EVENT_READ, lane)
        while selector.get_map():
            for lane in dict.fromkeys(key.data for key, _ in selector.select(1.0)):
                _listen(lane, name)
                if lane.spaces is not None:
                    for fileno in lane.filenos:
                        selector.unregister(fileno)
            for lane in lanes:
                if lane.spaces is None and lane.deadline <= clock():
                    late = lane.hung()
                    lane.kill()
                    raise EnvError(f"environment {name}: envs {lane.start} … {lane.stop - 1}: {late.detail}")


def close(lanes: Sequence[RemoteLane]) -> None:
    """Have workers close their envs and end, all at once; kill those that take too long."""
    for lane in lanes:
        lane.ask_to_close()
    deadline = time.monotonic() + _CLOSE_S
    for lane in lanes:
        lane.close(max(0.0, deadline - time.monotonic()))


def _listen(lane: RemoteLane, name: str) -> None:
    try:
        lane.poll()
    except Fault as fault:
        raise EnvError(f"environment {name}: envs {lane.start} … {lane.stop - 1}: {fault.detail}") from fault
