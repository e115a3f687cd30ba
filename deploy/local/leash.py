"""Child processes that die with their parent, however it goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Becomes the command, and leaves behind a shell that waits for the end of its standard input, which comes when
# the last process that holds the other end of the pipe is gone, however it went; then it kills the command.
# Unlike PR_SET_PDEATHSIG this does not depend on the thread that started it, nor on Linux.
_LEASH = 'exec 3<&0; { read -r _; kill -9 $$; } <&3 3<&- >/dev/null 2>&1 & exec "$@" </dev/null 3<&-'


def spawn(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command on a leash, what it prints going to `log`.

    It has a session of its own: Ctrl-C is for this process, which then stops its children in good order.
    """
    return subprocess.Popen(  # noqa: S603  (commands are made by the callers, from no input)
        ["/bin/sh", "-c", _LEASH, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with SIGKILL, its own children and its leash too; does nothing where they are gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
