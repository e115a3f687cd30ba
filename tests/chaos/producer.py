"""A producer that notes what the log has acknowledged: `python -m tests.chaos.producer LEDGER [--flags]`.

It is the ordinary service; only its log is wrapped. A line of the ledger is: partition, offset, SHA-256 of the value.
"""

from __future__ import annotations

import faulthandler
import hashlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from penstock_producers import service
from penstock_producers.settings import ProducerSettings
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.service import run_process
from tests.chaos.notes import Notes

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock_schemas.log import Appended, Appender, Headers, Log


class NotingAppender:
    """An appender that notes every acknowledgement."""

    def __init__(self, inner: Appender, ledger: Notes) -> None:
        self._inner = inner
        self._ledger = ledger

    def append(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
    ) -> Future[Appended]:
        """Append; once it is acknowledged, note it."""
        digest = hashlib.sha256(value or b"").hexdigest()

        def note(done: Future[Appended]) -> None:
            if done.exception() is None:
                self._ledger.note(done.result().partition, done.result().offset, digest)

        future = self._inner.append(topic, partition, key=key, value=value, headers=headers)
        future.add_done_callback(note)
        return future

    def close(self, timeout: float = 10.0) -> None:
        """Close the one behind it."""
        self._inner.close(timeout)


class NotingLog:
    """A log whose appenders note every acknowledgement."""

    def __init__(self, inner: Log, ledger: Notes) -> None:
        self._inner = inner
        self._ledger = ledger

    def appender(self) -> NotingAppender:
        """Make an appender that notes."""
        return NotingAppender(self._inner.appender(), self._ledger)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


def main() -> None:
    """Run a producer."""
    path, *flags = sys.argv[1:]
    # Where its threads are, for whoever wonders why it stands still.
    faulthandler.register(signal.SIGUSR1)
    ledger = Notes(Path(path))

    def connect(*words: Any, **named: Any) -> NotingLog:
        return NotingLog(KafkaLog(*words, **named), ledger)

    with patch.object(service, "KafkaLog", connect):
        run_process("producer", ProducerSettings, service.serve, flags)


if __name__ == "__main__":
    main()
