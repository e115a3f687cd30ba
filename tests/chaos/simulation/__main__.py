"""Plays the schedule of a seed again, and tells everything: `python -m tests.chaos.simulation SEED`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tests.chaos.simulation.schedule import play

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Play and tell; 0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.simulation", description=__doc__)
    parser.add_argument("seed", type=int, metavar="SEED", help="of the schedule")
    played = play(parser.parse_args(argv).seed)
    print(*played.trace, played.verdict, sep="\n")  # noqa: T201  (what a person reads)
    return int(not played.ok)


if __name__ == "__main__":
    sys.exit(main())
