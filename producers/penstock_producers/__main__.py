"""`penstock-producer`, and `python -m penstock_producers`: a producer, or the command that is named first."""

from __future__ import annotations

import sys

from penstock_schemas.starting import exit_on_sigterm, heed_sigterm


def main() -> None:
    """Run a producer, a check or an evaluation.

    Exits with 0 after a clean stop, a check that found nothing or an evaluation of every seed, else with 1 or 2.
    """
    # A flag, or nothing, is the producer's.
    command = sys.argv[1] if sys.argv[1:] else "-"
    if command == "check":
        heed_sigterm()
    else:
        # What an evaluation was to find out it has not found out.
        exit_on_sigterm(1 if command == "evaluate" else 0)
    try:
        # Imported here, since a base install lacks what they need, and that is to be told in one line.
        from penstock_schemas.service import end, end_with, run_process  # noqa: PLC0415  (as said)

        if command == "check":
            from penstock_producers.check import cli  # noqa: PLC0415  (as said)

            end_with(lambda: cli.main(sys.argv[2:]))
        if command == "evaluate":
            from penstock_producers.evaluate import cli as evaluation  # noqa: PLC0415  (as said)

            end_with(lambda: evaluation.main(sys.argv[2:]))
        if not command.startswith("-"):
            sys.stderr.write(f"error: unknown command {command!r}: check or evaluate, and a producer needs none\n")
            end(2)
        from penstock_producers.service import serve  # noqa: PLC0415  (as said)
        from penstock_producers.settings import ProducerSettings  # noqa: PLC0415  (as said)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("penstock_"):
            raise
        sys.stderr.write(f"error: {error}: a producer needs more than the base: pip install 'penstock[producer]'\n")
        sys.exit(2)
    run_process("producer", ProducerSettings, serve)


if __name__ == "__main__":
    main()
