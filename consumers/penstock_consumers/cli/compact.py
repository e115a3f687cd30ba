"""`penstock-store compact`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.cli.words import answer, command, positive
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import UpkeepSettings, compact

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = command(commands, "compact", _run, "join small segments, as the store's consumer does by and by")
    parser.add_argument(
        "--compact-bytes", type=positive, metavar="N", help="up to which size; as the consumer's where not given"
    )


def _run(words: argparse.Namespace) -> int:
    bucket = open_bucket(words.store)
    existing(bucket)
    most = UpkeepSettings().compact_bytes if words.compact_bytes is None else words.compact_bytes
    made = compact(bucket, UpkeepSettings(compact_bytes=most).compact_bytes)
    answer(words, {"commits": made}, f"{made:,} commits, each of which joined some segments")
    return 0
