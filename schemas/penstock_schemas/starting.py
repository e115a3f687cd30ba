"""What an entry point does before it imports what takes seconds."""

from __future__ import annotations

import os
import signal


def exit_on_sigterm(status: int) -> None:
    """Have SIGTERM end the process with a status, until `stop_on_signals` takes it over: there is nothing to lose yet.

    By itself it would end it with an error and, in a container, where it is process 1, not at all.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(status))


def heed_sigterm() -> None:
    """Have SIGTERM end process 1, as in a container, as it ends any other.

    Not by a handler there too, which would wait for an end of what a library computes.
    """
    if os.getpid() == 1:
        exit_on_sigterm(128 + signal.SIGTERM)
