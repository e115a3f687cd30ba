"""What the code of others may raise: envs, wrappers, callbacks, policies."""

from __future__ import annotations

from asyncio import CancelledError

# One that calls sys.exit(), or has a task of its own cancelled, ends what it was called for, not the process.
CONTAINED = (Exception, SystemExit, CancelledError)


def told(error: BaseException) -> str:
    """Say what was raised, and what that says; it may raise itself when it is asked."""
    try:
        return f"{type(error).__name__}: {error}"
    except CONTAINED:
        return f"{type(error).__name__}, which cannot be printed"
