"""`penstock-producer`, and `python -m penstock_producers`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a producer; exits with 0 after a clean stop, 1 or 2 after an error."""
    try:
        # Here, since a base install lacks what they need, and that is to be told in one line.
        from penstock_producers.service import serve  # noqa: PLC0415
        from penstock_producers.settings import ProducerSettings  # noqa: PLC0415  (the same)
        from penstock_schemas.service import run_service  # noqa: PLC0415  (the same)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("penstock_"):
            raise
        sys.stderr.write(f"error: {error}: a producer needs more than the base: pip install 'penstock[producer]'\n")
        sys.exit(2)
    sys.exit(run_service("producer", ProducerSettings, serve))


if __name__ == "__main__":
    main()
