"""`penstock-store compact`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock_consumers.cli.words import answer, command, positive
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import UpkeepSettings, compact
from penstock_consumers.upkeep.upkeep import MOST_COMPACT_BYTES

if TYPE_CHECKING:
    from penstock_consumers.cli.words import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = command(commands, "compact", _run, "join small segments, as the store's consumer does by and by")
    parser.add_argument(
        "--compact-bytes",
        type=_size,
        default=UpkeepSettings().compact_bytes,
        metavar="N",
        help="up to which size; where not given a consumer's default, %(default)s, whatever it is set to",
    )


def _size(word: str) -> int:
    """Read the size of a segment."""
    size = positive(word)
    if size > MOST_COMPACT_BYTES:
        raise argparse.ArgumentTypeError(f"{word}: bytes, at most {MOST_COMPACT_BYTES}")
    return size


def _run(words: argparse.Namespace) -> int:
    bucket = open_bucket(words.store)
    existing(bucket)
    apart: set[str] = set()
    made = compact(bucket, words.compact_bytes, apart)
    damaged = sorted(apart)
    told = f"{made:,} commit{'' if made == 1 else 's'} joined small segments"
    lines = [told, *(f"segment {name}: not as it was written, so not joined; restore it" for name in damaged)]
    answer(words, {"commits": made, "damaged": damaged}, "\n".join(lines))
    return 1 if damaged else 0
