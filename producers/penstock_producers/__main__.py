"""`penstock-producer`, and `python -m penstock_producers`: a producer, or with `check` first a check of an env."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a producer or a check; exits with 0 after a clean stop or a check that found nothing, else with 1 or 2."""
    try:
        # Imported here, since a base install lacks what they need, and that is to be told in one line.
        if sys.argv[1:2] == ["check"]:
            from penstock_producers.check import cli  # noqa: PLC0415  (as said)

            sys.exit(cli.main(sys.argv[2:]))
        from penstock_producers.service import serve  # noqa: PLC0415  (as said)
        from penstock_producers.settings import ProducerSettings  # noqa: PLC0415  (as said)
        from penstock_schemas.service import run_service  # noqa: PLC0415  (as said)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("penstock_"):
            raise
        sys.stderr.write(f"error: {error}: a producer needs more than the base: pip install 'penstock[producer]'\n")
        sys.exit(2)
    sys.exit(run_service("producer", ProducerSettings, serve))


if __name__ == "__main__":
    main()
