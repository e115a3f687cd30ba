"""`penstock-consumer`, and `python -m penstock_consumers`."""

from __future__ import annotations

import sys

from penstock_consumers.service import serve
from penstock_consumers.settings import ConsumerSettings
from penstock_schemas.service import run_service


def main() -> None:
    """Run a consumer; exits with 0 after a clean stop, 1 or 2 after an error."""
    sys.exit(run_service("consumer", ConsumerSettings, serve))


if __name__ == "__main__":
    main()
