"""`penstock-consumer`, and `python -m penstock_consumers`."""

from __future__ import annotations

import sys

from penstock_consumers import heap
from penstock_schemas.starting import exit_on_sigterm


def main() -> None:
    """Run a consumer; exits with 0 after a clean stop, 1 or 2 after an error."""
    exit_on_sigterm(0)
    heap.share_arena()
    try:
        # Here, since a base install lacks what they need, and that is to be told in one line.
        from penstock_consumers.service import serve  # noqa: PLC0415
        from penstock_consumers.settings import ConsumerSettings  # noqa: PLC0415  (the same)
        from penstock_schemas.service import run_process  # noqa: PLC0415  (the same)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("penstock_"):
            raise
        sys.stderr.write(f"error: {error}: a consumer needs more than the base: pip install 'penstock[consumer]'\n")
        sys.exit(2)
    run_process("consumer", ConsumerSettings, serve)


if __name__ == "__main__":
    main()
