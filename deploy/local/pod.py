"""A producer, a consumer or a learner on this machine: what Kubernetes would run as a pod."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import leash

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from prometheus_client.samples import Sample

_SCRAPE_SECONDS = 1.0


class Pod:
    """One process, which can be killed and started again under its name; it dies with this one.

    Args:
        name: its name, and its log's.
        module: `penstock_producers`, `penstock_consumers`, or another that Python runs.
        flags: its settings.
        logs: the folder for its log.
        serves: whether it serves metrics.
    """

    def __init__(self, name: str, module: str, flags: Sequence[str], logs: Path, *, serves: bool = True) -> None:
        self.name = name
        self.log_file = logs / f"{name}.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        served = ["--metrics-port", str(self._port)] if serves else []
        self._command = [sys.executable, "-m", module, *flags, *served]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process; its log goes on where it was."""
        with self.log_file.open("ab") as log:
            self._process = leash.spawn(self._command, log)
        return self

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            leash.kill(self._process)

    def signal(self, number: signal.Signals) -> None:
        """Send the process itself a signal; nothing where it does not run. One that is stopped can still be killed."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def pid(self) -> int | None:
        """The process's id; None where it does not run."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def status(self) -> int | None:
        """The exit status of a process that has ended; None of one that runs, and before the first start."""
        return None if self._process is None else self._process.poll()

    def stop(self, timeout: float) -> int | None:
        """Ask it to stop with SIGTERM; give its exit status, None where it had to be killed."""
        if self._process is None:
            return None
        self._process.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float) -> int | None:
        """Wait for its end; give its exit status, None where it had to be killed after `timeout` seconds."""
        if self._process is None:
            return None
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(timeout)
        self.kill()
        return status

    def last_lines(self, count: int = 8) -> str:
        """The end of its log."""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-count:])

    def samples(self) -> Iterator[Sample]:
        """Scrape its metrics; nothing where it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=_SCRAPE_SECONDS) as answer:
                text = answer.read().decode()
        except (URLError, OSError):
            return
        for family in text_string_to_metric_families(text):
            yield from family.samples

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()
