"""Waiting for a log that is away, at the start as long as it takes; after a stop for a while only, as for an env."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from penstock_schemas.errors import LogUnavailableError
from penstock_schemas.service import end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from penstock_schemas.service import Health

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 1.0
# How long making envs and a policy, and a producer's first reset, may go on after a stop.
_MAKING_SECONDS = 5.0

_T = TypeVar("_T")


@contextmanager
def ends_unless_made(stop: threading.Event, status: int) -> Iterator[threading.Event]:
    """End the process soon after a stop that comes before the event is set: an env may hang at the start.

    From then on whoever waits heeds the stop in time, and closes what was made.
    """
    made = threading.Event()

    def watch() -> None:
        stop.wait()
        if not made.wait(_MAKING_SECONDS):
            end(status)

    threading.Thread(target=watch, name="start", daemon=True).start()
    try:
        yield made
    finally:
        made.set()


def once_the_log_answers(
    begin: Callable[[ExitStack], _T],
    opened: ExitStack,
    waiting: Callable[[str | None], None],
    health: Health,
    stop: threading.Event,
) -> _T | None:
    """Call `begin` again and again until the log answers; None where `stop` came first.

    What `begin` has entered into `opened` before it failed is left again. `waiting` is told why the log does not
    answer, and None once it does.
    """
    while True:
        try:
            begun = begin(opened)
        except LogUnavailableError as error:
            opened.close()
            _LOG.warning("waiting for the log: %s", error)
            waiting(str(error))
            health.beat()
            if stop.wait(_AGAIN_SECONDS):
                return None
        else:
            waiting(None)
            return begun


class Patience:
    """Waits for the log as long as it takes, but once a stop was asked for no longer than the grace."""

    def __init__(self, grace_seconds: float, health: Health, stop: threading.Event) -> None:
        self._grace_seconds = grace_seconds
        self._health = health
        self._stop = stop
        self._deadline: float | None = None

    def __call__(self) -> None:
        """Beat; raises `LogUnavailableError` where the grace is over."""
        self._health.beat()
        if not self._stop.is_set():
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_seconds
        if time.monotonic() > self._deadline:
            raise LogUnavailableError(
                f"the log did not take all within {self._grace_seconds:g} s after the stop: the rest is lost"
            )
