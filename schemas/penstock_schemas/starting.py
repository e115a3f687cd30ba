"""What a service does before it imports what takes seconds."""

from __future__ import annotations

import os
import signal


def exit_on_sigterm() -> None:
    """Have SIGTERM end the process with status 0, until `stop_on_signals` takes it over: there is nothing to lose yet.

    By itself it would end it with an error and, in a container, where it is process 1, not at all.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
