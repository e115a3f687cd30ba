"""Quarantine: records that are not wholly valid, set aside with their reason before the flow goes on."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING

from penstock_schemas.errors import LogUnavailableError, TooLargeError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Appended, Appender, Headers, Record

_TIMEOUT_SECONDS = 30.0


class DeadLetters:
    """Appends rejected records to the dead-letter topic, at least once each.

    The key names a record (topic id, partition, offset), so that who reads the topic can drop repetitions.
    """

    def __init__(self, appender: Appender, topic: str, source_topic_id: str) -> None:
        self._appender = appender
        self._topic = topic
        self._source = source_topic_id
        self._waiting: deque[tuple[Record, Headers, Future[Appended] | None]] = deque()

    def add(self, record: Record, rejected: RejectedError) -> None:
        """Send a record with its reason; `flush` tells when it has arrived.

        A header that is null, which no appender takes, is sent as an empty one and named in a `penstock.null` header.
        """
        told = (
            ("penstock.reason", rejected.reason.encode()),
            ("penstock.detail", str(rejected).encode()),
            ("penstock.offset", b"%d" % record.offset),
        )
        own = tuple((name, value or b"") for name, value in record.headers)
        nulls = tuple(("penstock.null", name.encode()) for name, value in record.headers if value is None)
        headers = (*told, *own, *nulls)
        self._waiting.append((record, headers, self._append(record, record.value, headers)))

    def flush(self) -> None:
        """Wait until all that was added is acknowledged.

        A payload that the log refuses for its size is replaced by its digest. Raises `LogUnavailableError` where the
        log did not take a record in time; the next call sends it again.
        """
        while self._waiting:
            record, headers, future = self._waiting[0]
            try:
                (future or self._append(record, record.value, headers)).result(_TIMEOUT_SECONDS)
            except TooLargeError:
                sha256 = hashlib.sha256(record.value or b"").hexdigest()
                kept = (*headers[:3], ("penstock.sha256", sha256.encode()), ("penstock.bytes", b"%d" % record.size))
                self._append(record, None, kept).result(_TIMEOUT_SECONDS)
            except LogUnavailableError:
                self._waiting[0] = (record, headers, None)
                raise
            except TimeoutError as error:
                raise LogUnavailableError(
                    f"dead-letter topic {self._topic!r}: no acknowledgement within {_TIMEOUT_SECONDS:g} s"
                ) from error
            self._waiting.popleft()

    def _append(self, record: Record, value: bytes | None, headers: Headers) -> Future[Appended]:
        key = f"{self._source}:{record.partition}:{record.offset}".encode()
        return self._appender.append(self._topic, 0, key=key, value=value, headers=headers)
