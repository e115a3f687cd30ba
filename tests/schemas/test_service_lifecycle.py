from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock_schemas.service import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., subprocess.Popen[str]]

PROGRAM = """
import ctypes, logging, sys, threading
from penstock_schemas.errors import FatalError, LogUnavailableError, SettingsError
from penstock_schemas.service import ServiceSettings, run_process

def say(word):
    print(word, flush=True)

def waits(settings, stop):
    say("up")
    stop.wait()
    say("stopped")

def heeds_nothing(settings, stop):
    say("up")
    stop.wait()
    say("asked")
    threading.Event().wait()

def logs(settings, stop):
    logging.getLogger("penstock.a").info("one\\n2026-01-01T00:00:00.000Z INFO producer forged: two")
    logging.getLogger("penstock.a").debug("detail")
    logging.getLogger("kafka.conn").info("connected")
    logging.getLogger("kafka.loop").warning("slow")
    logging.getLogger("kafka.conn").error("gone")
    logging.getLogger("kafka.conn").error("gone again")
    logging.getLogger("kafka.conn").critical("refused")
    logging.getLogger("kafka.conn").debug("the password")

def waits_for_the_log(settings, stop):
    log = logging.getLogger("penstock.a")
    for reason in ("away", "away", "slow", "slow", "away"):
        log.warning("waiting for the log: %s", reason)
        logging.getLogger("boto").info("again")

def raises(error):
    def serve(settings, stop):
        raise error
    return serve

def leaves_a_destructor_that_waits(settings, stop):
    library = ctypes.CDLL(None)
    getattr(library, "__cxa_atexit")(ctypes.cast(library.pause, ctypes.c_void_p), None, None)
    logging.getLogger("penstock.a").info("done")
    sys.stdout.write("done")

serves = {
    "leaves_a_destructor_that_waits": leaves_a_destructor_that_waits,
    "waits": waits,
    "heeds_nothing": heeds_nothing,
    "logs": logs,
    "waits_for_the_log": waits_for_the_log,
    "fatal": raises(FatalError("the disk is full: make room")),
    "setting": raises(SettingsError("--env Nope-v0: there is no such environment")),
    "recoverable": raises(LogUnavailableError("no broker at 127.0.0.1:1")),
    "bug": raises(ZeroDivisionError("a bug")),
}
run_process("producer", ServiceSettings, serves[sys.argv[1]], sys.argv[2:])
"""


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(serve: str, *flags: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", PROGRAM, serve, *flags]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own program
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop_and_the_exit_is_clean(start: Start, number: signal.Signals) -> None:
    process = start("waits", "--stream=s")
    hear(process, "up")
    process.send_signal(number)
    status, out, err = finish(process)
    assert (status, out) == (0, "stopped\n")
    assert f"{number.name}: stopping; a second signal exits at once" in err


def test_what_a_library_leaves_behind_does_not_keep_the_process_from_ending(start: Start) -> None:
    status, out, err = finish(start("leaves_a_destructor_that_waits", "--stream=s"))
    assert (status, out) == (0, "done")
    assert "penstock.a: done" in err


@pytest.mark.parametrize(("second", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_exits_at_once(start: Start, second: signal.Signals, status: int) -> None:
    process = start("heeds_nothing", "--stream=s")
    hear(process, "up")
    process.send_signal(signal.SIGTERM)
    hear(process, "asked")
    process.send_signal(second)
    assert finish(process)[0] == status


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    before_threads = set(threading.enumerate())
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert set(threading.enumerate()) <= before_threads


@pytest.mark.parametrize(
    ("serve", "flags", "status", "message"),
    [
        ("waits", [], 2, "--stream is required: give the flag, PENSTOCK_STREAM, or stream in the file"),
        ("setting", ["--stream=s"], 2, "--env Nope-v0: there is no such environment"),
        ("fatal", ["--stream=s"], 1, "the disk is full: make room"),
        ("recoverable", ["--stream=s"], 1, "no broker at 127.0.0.1:1"),
    ],
)
def test_an_error_on_purpose_is_one_line(start: Start, serve: str, flags: list[str], status: int, message: str) -> None:
    assert finish(start(serve, *flags)) == (status, "", f"error: {message}\n")


def test_its_traceback_is_told_at_level_debug(start: Start) -> None:
    status, _, err = finish(start("fatal", "--stream=s", "--log-level=debug"))
    assert status == 1
    told, error = err.splitlines()
    assert "Traceback" in told
    assert "in serve" in told
    assert error == "error: the disk is full: make room"


def test_a_bug_keeps_its_traceback(start: Start) -> None:
    status, _, err = finish(start("bug", "--stream=s"))
    assert status == 1
    assert "Traceback" in err
    assert "ZeroDivisionError: a bug" in err


def test_what_cannot_be_written_is_told_and_ends_it_too() -> None:
    argv = [sys.executable, "-c", PROGRAM, "leaves_a_destructor_that_waits", "--stream=s", "--log-level=error"]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(  # noqa: S603 - our own program
            argv, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "OSError: [Errno 28] No space left on device"


def test_a_record_is_one_line_with_time_level_component_and_logger(start: Start) -> None:
    status, _, err = finish(start("logs", "--stream=s"))
    assert status == 0
    first, second, third = err.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} INFO producer penstock\.a: one\\n2026\S+ INFO producer forged: two", first)
    assert re.fullmatch(rf"{time} ERROR producer kafka\.conn: gone", second)
    assert re.fullmatch(rf"{time} CRITICAL producer kafka\.conn: refused", third)


def test_what_only_says_the_last_line_again_is_left_out_for_a_minute(start: Start) -> None:
    told = finish(start("waits_for_the_log", "--stream=s"))[2].splitlines()
    said = " ".join(line.rsplit(" ", 1)[1] for line in told)
    assert said == "away again again slow again again away again"
    assert len(finish(start("waits_for_the_log", "--stream=s", "--log-level=debug"))[2].splitlines()) == 10


def test_the_level_is_the_settings(start: Start) -> None:
    told, _ = finish(start("logs", "--stream=s", "--log-level=error"))[2].splitlines()
    assert told.endswith("ERROR producer kafka.conn: gone")
    told = finish(start("logs", "--stream=s", "--log-level=debug"))[2]
    assert "DEBUG producer penstock.a: detail" in told
    # What the client tells at debug is its settings and requests, the password in them.
    assert all(each in told for each in ("connected", "slow", "gone again"))
    assert "the password" not in told


def test_help_exits_cleanly(start: Start) -> None:
    status, out, err = finish(start("waits", "--help"))
    assert (status, err) == (0, "")
    assert "--bootstrap-servers" in out
