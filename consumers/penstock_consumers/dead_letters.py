"""Quarantine: records that are not wholly valid, set aside with their reason before the flow goes on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock_consumers.quarantine import letter
from penstock_schemas.errors import LogUnavailableError, TooLargeError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Appended, Appender, Headers, Record

_TIMEOUT_SECONDS = 30.0


class DeadLetters:
    """Appends rejected records to the dead-letter topic, at least once each.

    Nothing is sent before `flush`, which comes right before a commit: a consumer that stops between two commits leaves
    nothing behind of what nobody has judged.
    """

    def __init__(self, appender: Appender, topic: str, source_topic_id: str) -> None:
        self._appender = appender
        self._topic = topic
        self._source = source_topic_id
        self._waiting: deque[tuple[Record, RejectedError]] = deque()
        self._pending_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of the records that wait in memory for the next `flush`."""
        return self._pending_bytes

    def add(self, record: Record, rejected: RejectedError) -> None:
        """Keep a record with its reason until `flush`."""
        self._waiting.append((record, rejected))
        self._pending_bytes += record.size

    def flush(self) -> None:
        """Send all that was added, and wait until it is acknowledged.

        A payload that the log refuses for its size is replaced by its digest. Raises `LogUnavailableError` where the
        log did not take a record in time; the next call sends again what was not acknowledged.
        """
        sent = [self._append(record, record.value, letter.headers(record, why)) for record, why in self._waiting]
        for future in sent:
            record, why = self._waiting[0]
            try:
                self._wait(future)
            except TooLargeError:
                self._wait(self._append(record, None, letter.digest_headers(record, why)))
            self._waiting.popleft()
            self._pending_bytes -= record.size

    def _append(self, record: Record, value: bytes | None, headers: Headers) -> Future[Appended]:
        return self._appender.append(self._topic, 0, key=letter.key(record, self._source), value=value, headers=headers)

    def _wait(self, future: Future[Appended]) -> None:
        try:
            future.result(_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise LogUnavailableError(
                f"dead-letter topic {self._topic!r}: no acknowledgement within {_TIMEOUT_SECONDS:g} s"
            ) from error
