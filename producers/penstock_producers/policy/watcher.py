"""Watching the policies topic beside the loop, so that a look for newer weights never blocks it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from penstock_schemas.errors import PenstockError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, decode_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_schemas.log import Log, Reader, Record

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


class PolicyWatcher:
    """Keeps the newest readable version of a stream's policy at hand; never goes back to an older one.

    Used as a context: entering reads what the topic holds, then a thread of its own follows it.
    """

    def __init__(self, log: Log, topic: str, rejected: Callable[[PolicyRejectedError], None]) -> None:
        self._log = log
        self._topic = topic
        self._rejected = rejected
        self._stop = threading.Event()
        self._newest: deque[PolicyRecord] = deque(maxlen=1)
        self._seen = 0
        self._thread = threading.Thread(target=self._follow, name="policy-watcher", daemon=True)
        self._reader: Reader | None = None

    def take(self) -> PolicyRecord | None:
        """Answer a version newer than any taken before, or None; never waits."""
        # The deque's own methods are atomic: the follower may put a newer one there at any moment.
        return self._newest.pop() if self._newest else None

    def __enter__(self) -> Self:
        self._reader = self._log.reader()
        start, end = self._reader.bounds(self._topic, 0)
        self._reader.seek(self._topic, 0, start)
        while start < end:
            records = self._reader.poll(_POLL_SECONDS)
            self._consider(records)
            start = records[-1].offset + 1 if records else self._reader.bounds(self._topic, 0)[0]
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._reader is not None:
            self._reader.close()

    def _follow(self) -> None:
        while not self._stop.is_set() and self._reader is not None:
            try:
                self._consider(self._reader.poll(_POLL_SECONDS))
            except PenstockError as error:
                _LOG.warning("no news of policies: %s", error)
                self._stop.wait(_POLL_SECONDS)

    def _consider(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                found = decode_policy(record)
            except PolicyRejectedError as rejected:
                self._rejected(rejected)
                continue
            if found.version > self._seen:
                self._seen = found.version
                self._newest.append(found)
