"""The versions of a policy that may act next: those announced, and the newest that can act."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_schemas.policies import Announcement, PolicyRecord


class Candidates:
    """From an announcement to a version at hand; thread-safe.

    A version is expected from when it is announced until it is offered, refused, or overtaken by a newer one that was
    offered. Nothing goes back to an older version than one that was offered, unless that one was withdrawn.

    Attributes:
        changed: notified whenever versions are expected, offered, refused or withdrawn.
        announced: the newest version that was announced and not refused, 0 before any.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.announced = 0
        self._expected: dict[int, Announcement] = {}
        self._offered = 0
        self._newest: deque[PolicyRecord] = deque(maxlen=1)
        self._news = threading.Event()

    @property
    def at_hand(self) -> bool:
        """Whether `take` would answer a version; never waits."""
        return bool(self._newest)

    def take(self) -> PolicyRecord | None:
        """Answer a version newer than any taken before, or None; never waits."""
        # The deque's own methods are atomic: a newer one may be put there at any moment.
        return self._newest.pop() if self._newest else None

    def wait(self, seconds: float) -> None:
        """Wait until a version was offered or refused since the last time, at most so many seconds."""
        self._news.wait(seconds)
        self._news.clear()

    def expect(self, announced: Announcement) -> bool:
        """Expect an announced version; False where it is none newer than one that was offered."""
        with self.changed:
            if announced.version <= self._offered:
                return False
            self._expected[announced.version] = announced
            self._settle()
            return True

    def expected(self, announced: Announcement) -> bool:
        """Whether this announcement still counts."""
        return self._expected.get(announced.version) is announced

    def elsewhere(self) -> Announcement | None:
        """The newest version expected whose weights are still to be fetched; with `changed` held."""
        found = [version for version, announced in self._expected.items() if announced.inline is None]
        return self._expected[max(found)] if found else None

    def refuse(self, announced: Announcement) -> None:
        """Expect a version no longer; one announced again since, under the same number, still is."""
        with self.changed:
            if self.expected(announced):
                del self._expected[announced.version]
            self._settle()
        self._news.set()

    def offer(self, found: PolicyRecord) -> None:
        """Put a version at hand, unless a newer one was before."""
        with self.changed:
            if found.version > self._offered:
                self._offered = found.version
                self._newest.append(found)
            for version in [version for version in self._expected if version <= self._offered]:
                del self._expected[version]
            self._settle()
        self._news.set()

    def withdraw(self, version: int, acting: int) -> None:
        """Count a version that was taken no longer, since it cannot act; `acting` does, and what is newer may come."""
        with self.changed:
            if self._offered == version:
                self._offered = acting
            self._settle()
        self._news.set()

    def _settle(self) -> None:
        self.announced = max(self._offered, *self._expected, 0)
        self.changed.notify_all()
