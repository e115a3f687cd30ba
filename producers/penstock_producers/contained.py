"""What the code of others may raise: envs, wrappers, callbacks."""

from __future__ import annotations

# One that calls sys.exit() ends what it was called for, not the process.
CONTAINED = (Exception, SystemExit)
