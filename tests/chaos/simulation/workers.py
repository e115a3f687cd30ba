"""A real worker in a simulated world: its clocks, its threads, its limits and its cadence are the world's."""

from __future__ import annotations

import math
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from penstock_consumers import worker
from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.upkeep import Retention, Upkeep, UpkeepSettings
from penstock_consumers.worker import Cadence, Worker
from tests.chaos.simulation.stage import KilledError
from tests.consumers.messages import DEAD_LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_consumers.store.replay_store import ReplayStore
    from tests.chaos.simulation.actors import Pod
    from tests.chaos.simulation.stage import Stage
    from tests.chaos.simulation.views import StagedLog
    from tests.chaos.simulation.world import World

_T = TypeVar("_T")
GROUP = "group"
# Nobody reads it here, and to make one takes longer than a commit.
_METRICS = ConsumerMetrics(CollectorRegistry())


def worker_of(world: World, pod: Pod, log: StagedLog, store: ReplayStore) -> Worker:
    """Make the worker of a pod."""
    settings = UpkeepSettings(world.compact_bytes, world.collect_seconds, Retention(steps=world.retain_steps))
    return Worker(
        log,
        store,
        DEAD_LETTERS,
        group=GROUP,
        limits=world.director.limits(pod.number),
        cadence=Cadence(world.commit_seconds, world.commit_bytes, world.upkeep_seconds, world.revoke_seconds),
        metrics=_METRICS,
        clock=lambda: world.now + pod.skew,
        wall=lambda: world.now + pod.skew,
        instance=pod.name if world.static else None,
        upkeep=Upkeep(store.bucket, settings),
    )


@contextmanager
def staged_calls(stage: Stage, patience: Callable[[float], int]) -> Iterator[None]:
    """Have what a worker does beside its own thread be done by another actor of its process.

    `patience` tells for how many steps a wait of so many seconds goes on.
    """

    class StagedCall(Generic[_T]):
        """A `Call` on the stage, where nobody waits by the real clock."""

        answered = math.inf

        def __init__(self, function: Callable[[], _T], *, beside: bool) -> None:
            self._answer: Future[_T] = Future()
            if beside:
                stage.enter(stage.on.process, lambda: self._run(function))
            else:
                self._run(function)

        def done(self, timeout: float | None = None) -> bool:
            left = 0 if timeout is None else patience(timeout)
            while not self._answer.done() and (timeout is None or left > 0):
                stage.on.wait(1)
                left -= 1
            return self._answer.done()

        def result(self) -> _T:
            return self._answer.result()

        def _run(self, function: Callable[[], _T]) -> None:
            try:
                self._answer.set_result(function())
            except KilledError:
                raise
            except BaseException as error:  # noqa: BLE001  (it is raised where the result is asked for)
                self._answer.set_exception(error)

    with patch.object(worker, "Call", StagedCall):
        yield
