"""A process from its start to its stop: settings, logging, signals, exit status."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn, TypeVar

from penstock_schemas.errors import PenstockError, SettingsError
from penstock_schemas.service.settings import ServiceSettings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

log = logging.getLogger(__name__)

S = TypeVar("S", bound=ServiceSettings)

_SELDOM_SECONDS = 60.0


def run_service(
    component: str,
    settings_class: type[S],
    serve: Callable[[S, threading.Event], None],
    argv: Sequence[str] | None = None,
) -> int:
    """Load settings, call `serve(settings, stop)` in this thread until it returns; give the exit status.

    SIGTERM and SIGINT set `stop`. The status is 0 once `serve` has returned, 2 for a wrong setting, 1 for any
    other error that Penstock raises on purpose; these two are told on stderr as `error: …`, with a traceback
    at log level debug. Any other exception is a bug and passes through. `argv` is the command line's where
    it is not given; `--help` prints the settings and exits.
    """
    try:
        settings = load(settings_class, sys.argv[1:] if argv is None else argv)
        configure_logging(component, settings.log_level)
        with stop_on_signals() as stop:
            serve(settings, stop)
    except PenstockError as error:
        log.debug("this ends the process", exc_info=True)
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1
    return 0


def run_process(
    component: str,
    settings_class: type[S],
    serve: Callable[[S, threading.Event], None],
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Do as `run_service` does, and end the process as `end_with` does."""
    end_with(lambda: run_service(component, settings_class, serve, argv))


def end_with(run: Callable[[], int]) -> NoReturn:
    """`end` the process with the status that a function gives, or with 1 after the traceback of a bug."""
    try:
        status = run()
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001  (it is told as Python tells it)
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    end(status)


def end(status: int) -> NoReturn:
    """End the process, without tearing the interpreter down.

    What matters is closed by then. What is left are threads of libraries, which a teardown stops wherever they are;
    where one holds what a library's destructor waits for, the process never ends. It was seen of producers that had
    published everything.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A full disk, or a pipe that nobody reads any more, keeps no process.
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def configure_logging(component: str, level: str) -> None:
    """Log to stderr, one line a record: UTC time in ISO 8601, level, `component`, logger, message."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter(component))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The client warns of its own loops, and tells every connection at info, of which what matters is in metrics and
    # health; at debug its settings and requests, with the password in them.
    logging.getLogger("kafka").setLevel(logging.INFO if level == "debug" else logging.ERROR)
    if level != "debug":
        handler.addFilter(_Seldom())


class _Seldom(logging.Filter):
    """Lets one record of Kafka's client pass a minute, and a line of ours that only says the last one again.

    Of an outage the client tells many a second; what waits for its end says so every second, for hours maybe.
    """

    def __init__(self) -> None:
        super().__init__("kafka")
        self._said: object = None
        self._again = self._client = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if super().filter(record) and record.levelno < logging.CRITICAL:
            if now < self._client:
                return False
            self._client = now + _SELDOM_SECONDS
            return True
        if not record.name.startswith("penstock"):
            return True
        # Not as a line yet: what cannot be formatted must not raise here.
        said = record.levelno, record.name, record.msg, str(record.args)
        if said == self._said and now < self._again:
            return False
        self._said, self._again = said, now + _SELDOM_SECONDS
        return True


class _LineFormatter(logging.Formatter):
    def __init__(self, component: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s {component} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        # What travels may be quoted in a message: a line break in it must not pass for a record of ours.
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Set the event on the first SIGTERM or SIGINT; a second one exits at once with 128 + its number.

    To be entered in the main thread. The handlers that were there before come back at the end.
    """
    stop = threading.Event()
    # A handler runs between two bytecodes of the main thread, which may just then hold the event's or a
    # log handler's lock: setting the event there could wait for itself. SimpleQueue.put is reentrant.
    received: SimpleQueue[signal.Signals | None] = SimpleQueue()
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        received.put(signal.Signals(number))

    def watch() -> None:
        first = received.get()
        if first is not None:
            log.info("%s: stopping; a second signal exits at once", first.name)
            stop.set()

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        received.put(None)
        watcher.join()
