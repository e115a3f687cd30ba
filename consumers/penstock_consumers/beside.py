"""Calls that may hang, made so that nobody has to hang with them."""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock_consumers.store.bucket import on_answer

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Call(Generic[T]):
    """A call in a thread of its own; with `beside` false it is made here and now.

    `answered` is when the store last answered it, or when it began, in seconds by `time.monotonic`.

    The thread is a daemon: a call that hangs for good does not keep the process from ending.
    """

    def __init__(self, function: Callable[[], T], *, beside: bool) -> None:
        self._answer: Future[T] = Future()
        self.answered = time.monotonic()
        if beside:
            Thread(target=self._run_beside, args=[function], name="penstock-store", daemon=True).start()
        else:
            self._run(function)

    def done(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds, or for as long as it takes, for the end of the call; tell whether it came."""
        return bool(wait([self._answer], timeout).done)

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        return self._answer.result()

    def _run_beside(self, function: Callable[[], T]) -> None:
        on_answer.set(self._note)
        self._run(function)

    def _note(self) -> None:
        self.answered = time.monotonic()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._answer.set_result(function())
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is raised where the result is asked for)
            self._answer.set_exception(error)
