"""A client that appends what no producer has meant: copies of real records, at once or late, and garbage."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock_schemas.errors import LogUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock_schemas.log import Appender, Log, Record

_TAIL = 60
_COUNT = 12


class Rogue:
    """Appends to a topic. Not begin records: a late copy of one is a second producer of that name, which is no fault
    that the store could tell from a restart.

    While the log is away it tries again.
    """

    def __init__(self, log: Log, topic: str, partitions: int, seed: int) -> None:
        self._log = log
        self._topic = topic
        self._partitions = partitions
        self._rng = random.Random(seed)  # noqa: S311 - not for secrets

    def take(self) -> list[Record]:
        """Read some of the newest records of one partition."""
        while True:
            with suppress(LogUnavailableError):
                return self._read()

    def _read(self) -> list[Record]:
        partition = self._rng.randrange(self._partitions)
        reader = self._log.reader()
        try:
            start, end = reader.bounds(self._topic, partition)
            if end == start:
                return []
            reader.seek(self._topic, partition, max(start, end - _TAIL))
            found = [record for record in reader.poll(5.0, _TAIL) if ("kind", b"begin") not in record.headers]
        finally:
            reader.close()
        return sorted(self._rng.sample(found, min(_COUNT, len(found))), key=lambda record: record.offset)

    def give(self, records: Iterable[Record]) -> None:
        """Append copies."""
        self._append((record.partition, record.key, record.value, record.headers) for record in records)

    def poison(self, records: Iterable[Record]) -> None:
        """Append what was made of copies by breaking them."""
        self._append(self._broken(record) for record in records)

    def _broken(self, record: Record) -> tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]:
        value, headers = record.value or b"nothing", record.headers
        match self._rng.randrange(5):
            case 0:
                value, headers = self._rng.randbytes(self._rng.randrange(1, 2000)), ()
            case 1:
                value = value[: self._rng.randrange(len(value))] or b"?"
            case 2:
                at = self._rng.randrange(len(value))
                value = value[:at] + bytes([value[at] ^ 0xFF]) + value[at + 1 :]
            case 3:
                headers = headers[: self._rng.randrange(len(headers) or 1)]
            case _:
                value += value
        return record.partition, record.key, value, headers

    def _append(
        self, records: Iterable[tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]]
    ) -> None:
        appender = self._connected()
        try:
            for partition, key, value, headers in records:
                given = tuple((name, text or b"") for name, text in headers)
                # Where an acknowledgement was lost there is one copy more.
                while not self._appended(appender, partition, key=key, value=value, headers=given):
                    pass
        finally:
            appender.close()

    def _connected(self) -> Appender:
        while True:
            with suppress(LogUnavailableError):
                return self._log.appender()

    def _appended(self, appender: Appender, partition: int, **given: Any) -> bool:
        with suppress(LogUnavailableError):
            appender.append(self._topic, partition, **given).result()
            return True
        return False
