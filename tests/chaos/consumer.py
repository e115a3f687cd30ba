"""A consumer whose store and clock go wrong: `python -m tests.chaos.consumer CONTROL SECONDS [--flags]`.

It is the ordinary service; only its bucket is wrapped, and its wall clock is SECONDS ahead. The storage's clock is not.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from pathlib import Path
from unittest.mock import patch

from penstock_consumers import service
from penstock_consumers.settings import ConsumerSettings
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.service import run_process
from tests.chaos.bucket import TroubledBucket


def main() -> None:
    """Run a consumer."""
    control, ahead, *flags = sys.argv[1:]
    # Where its threads are, for whoever wonders why it stands still.
    faulthandler.register(signal.SIGUSR1)
    wall = time.time

    def open_troubled(url: str | Path) -> TroubledBucket:
        return TroubledBucket(open_bucket(url), Path(control))

    with (
        patch.object(service, "open_bucket", open_troubled),
        patch.object(time, "time", lambda: wall() + float(ahead)),
    ):
        run_process("consumer", ConsumerSettings, service.serve, flags)


if __name__ == "__main__":
    main()
