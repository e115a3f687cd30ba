"""A program of `deploy/local/` in a process of its own, and all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
MARK = "WHOLE_RUN_TEST"
PODS = ("penstock_", "examples.")


class Started:
    """A run in a process of its own; whatever it starts inherits a mark in its environment, and is found by it."""

    def __init__(self, bootstrap_servers: str, folder: Path, module: str, *words: str) -> None:
        self.folder = folder / "run"
        self._output = folder / "output"
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", module, *words, "--folder", str(self.folder)],
                cwd=ROOT,
                env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers, name: value},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def living(self) -> dict[int, str]:
        """The processes that carry the mark, and their command lines; what has ended has no environment any more."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
        return found

    def pods(self) -> int:
        """How many producers, consumers and learners live."""
        commands = self.living().values()
        return sum(command.startswith(tuple(f"{sys.executable} -m {pod}" for pod in PODS)) for command in commands)

    def await_words(self, words: str, seconds: float) -> None:
        def told() -> bool:
            assert self.process.poll() is None, self.said
            return words in self.said

        wait_until(told, seconds, lambda: f"{words!r} in: {self.said}")

    def await_nobody(self, seconds: float) -> None:
        wait_until(lambda: not self.living(), seconds, lambda: f"the end of {self.living()}")


def wait_until(holds: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what()}"
        time.sleep(0.05)


@contextmanager
def started(bootstrap_servers: str, folder: Path, module: str, *words: str) -> Iterator[Started]:
    run = Started(bootstrap_servers, folder, module, *words)
    try:
        yield run
    finally:
        for pid in run.living():
            os.kill(pid, signal.SIGKILL)
        run.process.wait()
