"""Whether a process does its job (ready) and whether its main loop still turns (alive)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Health:
    """Named conditions, each held or failing with a reason, and the main loop's heartbeat; thread-safe.

    A process is ready when every one of its `conditions` holds; each fails until it is first reported. It is
    alive while its last beat is at most `beat_limit` seconds old by `clock` (monotonic, seconds). Making it
    counts as the first beat.
    """

    def __init__(self, *conditions: str, clock: Callable[[], float], beat_limit: float) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str | None] = dict.fromkeys(conditions, "not reported yet")
        self._clock = clock
        self._beat_limit = beat_limit
        self._last_beat = clock()

    def beat(self) -> None:
        """Say that the main loop has gone round once more."""
        self._last_beat = self._clock()

    def ready(self, condition: str) -> None:
        """Say that `condition` holds; raises `KeyError` unless it was named at the start."""
        self._report(condition, None)

    def unready(self, condition: str, reason: str) -> None:
        """Say why `condition` fails; raises `KeyError` unless it was named at the start."""
        self._report(condition, reason)

    def failing(self) -> dict[str, str]:
        """Return the conditions that fail, each with its reason, in the order in which they were named."""
        with self._lock:
            return {name: reason for name, reason in self._reasons.items() if reason is not None}

    def stalled(self) -> str | None:
        """Say for how long the main loop has been silent, where that is longer than the limit."""
        silence = self._clock() - self._last_beat
        if silence <= self._beat_limit:
            return None
        return f"no beat of the main loop for {silence:.1f} s, the limit is {self._beat_limit:g} s"

    def _report(self, condition: str, reason: str | None) -> None:
        with self._lock:
            if condition not in self._reasons:
                raise KeyError(f"no condition {condition!r}, there are {', '.join(self._reasons) or 'none'}")
            self._reasons[condition] = reason
