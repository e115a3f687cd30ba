"""Plays the schedule of a seed again, and tells everything: `python -m tests.chaos.simulation SEED`."""

from __future__ import annotations

import sys

from tests.chaos.simulation.schedule import play

if __name__ == "__main__":
    played = play(sys.argv[1])
    print(*played.trace, played.verdict, sep="\n")  # noqa: T201  (what a person reads)
    sys.exit(not played.ok)
