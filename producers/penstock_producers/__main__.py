"""`penstock-producer`, and `python -m penstock_producers`."""

from __future__ import annotations

import sys

from penstock_producers.service import serve
from penstock_producers.settings import ProducerSettings
from penstock_schemas.service import run_service


def main() -> None:
    """Run a producer; exits with 0 after a clean stop, 1 or 2 after an error."""
    sys.exit(run_service("producer", ProducerSettings, serve))


if __name__ == "__main__":
    main()
