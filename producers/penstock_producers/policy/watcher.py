"""Watching the policies topic beside the loop, so that a look for newer weights never blocks it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from penstock_schemas.errors import PenstockError, PolicyRejectedError, TopicError
from penstock_schemas.policies import PolicyRecord, decode_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_schemas.log import Log, Reader, Record

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


class PolicyWatcher:
    """Keeps the newest version of a stream's policy that can act at hand; never goes back to an older one.

    Used as a context: entering reads what the topic holds, then a thread of its own follows it. Entering raises what
    the log raises; the thread outlives whatever goes wrong, since the last good policy acts on meanwhile.

    Args:
        log: where the topic is.
        topic: the stream's policies.
        check: raises `PolicyRejectedError` for a version that cannot act; what it refuses displaces nothing.
        rejected: told of every record that was refused, once, from the thread that read it.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        *,
        check: Callable[[PolicyRecord], None],
        rejected: Callable[[PolicyRejectedError], None],
    ) -> None:
        self._log = log
        self._topic = topic
        self._check = check
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
        try:
            self._read_all(self._reader)
        except BaseException:
            self._reader.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._reader is not None:
            self._reader.close()

    def _read_all(self, reader: Reader) -> None:
        start, end = reader.bounds(self._topic, 0)
        reader.seek(self._topic, 0, start)
        while start < end:
            records = reader.poll(_POLL_SECONDS)
            self._consider(records)
            start = records[-1].offset + 1 if records else reader.bounds(self._topic, 0)[0]

    def _follow(self) -> None:
        told, outside = "", False
        while not self._stop.is_set() and self._reader is not None:
            try:
                if outside:
                    # Recreated, or cut by its retention: what it holds now is all that there is to know.
                    self._reader.seek(self._topic, 0, self._reader.bounds(self._topic, 0)[0])
                    outside = False
                self._consider(self._reader.poll(_POLL_SECONDS))
            except Exception as error:  # noqa: BLE001 - a thread that ended would end all news of policies, unheard
                outside = outside or isinstance(error, TopicError)
                if str(error) != told:
                    told = str(error)
                    unforeseen = not isinstance(error, PenstockError)
                    _LOG.warning("no news of policies, trying again: %s", error, exc_info=unforeseen)
                self._stop.wait(_POLL_SECONDS)
            else:
                told = ""

    def _consider(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                found = decode_policy(record)
                if found.version > self._seen:
                    self._check(found)
                    self._seen = found.version
                    self._newest.append(found)
            except PolicyRejectedError as rejected:
                self._rejected(rejected)
            except Exception as error:  # noqa: BLE001 - as above: one record is not to end the news
                _LOG.exception("the policy record at offset %d of %s", record.offset, self._topic)
                self._rejected(PolicyRejectedError("error", f"the policy record at offset {record.offset}: {error!r}"))
