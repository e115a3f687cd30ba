"""`penstock-store`: what a store holds, whether that is what the log says, and what keeps it in order."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from penstock_consumers.cli import (
    compact,
    gc,
    info,
    ls,
    plot,
    quarantine,
    recompute,
    replay,
    retain,
    show,
    snapshot,
    verify,
)
from penstock_consumers.cli.verify import format_report
from penstock_schemas.errors import PenstockError
from penstock_schemas.starting import heed_sigterm

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["format_report", "main", "run"]

_COMMANDS = (info, ls, show, plot, verify, replay, recompute, snapshot, compact, retain, gc, quarantine)
_STATUSES = """exit status:
  0  done, and nothing is wrong
  1  what was checked is not as it should be, or an error ended the command: it says which
  2  wrong words; and where some of what was asked for could not be done, each with its reason
"""


def main() -> None:
    """Run a command, and exit with its status."""
    heed_sigterm()
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run a command; give the exit status."""
    words = _parser().parse_args(argv)
    try:
        status: int = words.run(words)
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-store",
        description=__doc__,
        epilog=_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    main()
