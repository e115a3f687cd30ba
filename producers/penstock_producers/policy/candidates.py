"""The versions of a policy that may act next: those announced, and the newest that can act."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_schemas.policies import Announcement, PolicyRecord

# The newest, and one to go back to should that not load; more would take as much memory each.
_AT_HAND = 2


class Candidates:
    """From an announcement to a version that acts; thread-safe.

    A version is expected from when it is announced until it is offered or refused, and then at hand until it is
    withdrawn. Neither counts once it or a newer one acts: nothing goes back to an older version.

    Attributes:
        changed: notified whenever versions are expected, offered, refused or withdrawn, or act.
        announced: the newest version that was announced and not refused, 0 before any.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.announced = 0
        self._acting = 0
        self._expected: dict[int, Announcement] = {}
        self._offered: dict[int, PolicyRecord] = {}
        self._news = threading.Event()

    @property
    def at_hand(self) -> bool:
        """Whether `newest` would answer a version; never waits."""
        return bool(self._offered)

    def newest(self) -> PolicyRecord | None:
        """The newest version at hand."""
        with self.changed:
            return self._offered[max(self._offered)] if self._offered else None

    def wait(self, seconds: float) -> None:
        """Wait until a version was offered or refused since the last time, at most so many seconds."""
        self._news.wait(seconds)
        self._news.clear()

    def expect(self, announced: Announcement) -> bool:
        """Expect an announced version; False where it is none newer than the one that acts."""
        with self.changed:
            if announced.version <= self._acting:
                return False
            self._expected[announced.version] = announced
            self._settle()
            return True

    def expected(self, announced: Announcement) -> bool:
        """Whether this announcement still counts."""
        return self._expected.get(announced.version) is announced

    def elsewhere(self) -> Announcement | None:
        """The newest version expected, none older than those at hand, whose weights are still to be fetched.

        Asked with `changed` held.
        """
        least = max(self._offered, default=0)
        found = [version for version, of in self._expected.items() if of.inline is None and version >= least]
        return self._expected[max(found)] if found else None

    def refuse(self, announced: Announcement) -> None:
        """Expect a version no longer; one announced again since, under the same number, still is."""
        with self.changed:
            if self.expected(announced):
                del self._expected[announced.version]
            self._settle()
        self._news.set()

    def offer(self, announced: Announcement, found: PolicyRecord) -> None:
        """Put a version at hand, where it is still expected."""
        with self.changed:
            if self.expected(announced):
                del self._expected[announced.version]
                self._offered[found.version] = found
                for version in sorted(self._offered)[:-_AT_HAND]:
                    del self._offered[version]
            self._settle()
        self._news.set()

    def withdraw(self, found: PolicyRecord) -> None:
        """Have a version at hand no longer, since it cannot act; the newest before it may."""
        with self.changed:
            if self._offered.get(found.version) is found:
                del self._offered[found.version]
            self._settle()
        self._news.set()

    def loaded(self, found: PolicyRecord) -> None:
        """Count this version as the one that acts."""
        with self.changed:
            self._acting = found.version
            self._expected = {version: of for version, of in self._expected.items() if version > found.version}
            self._offered = {version: of for version, of in self._offered.items() if version > found.version}
            self._settle()

    def _settle(self) -> None:
        self.announced = max(self._acting, *self._offered, *self._expected, 0)
        self.changed.notify_all()
