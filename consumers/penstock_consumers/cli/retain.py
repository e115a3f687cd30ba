"""`penstock-store retain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.cli.words import answer, command, positive, seconds
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import Retention, retain

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = command(commands, "retain", _run, "let the oldest segments go, by the limits that a consumer has")
    parser.add_argument("--retain-steps", type=positive, metavar="N", help="how many steps to keep, at least")
    parser.add_argument("--retain-bytes", type=positive, metavar="N", help="how many bytes to keep, at most")
    parser.add_argument(
        "--retain-seconds", type=seconds, metavar="S", help="how old, in the log's time, an episode's end may be"
    )
    parser.add_argument("--retain-versions", type=positive, metavar="N", help="how many policy versions to keep")
    parser.set_defaults(refuse=parser.error)


def _run(words: argparse.Namespace) -> int:
    limits = Retention(words.retain_steps, words.retain_bytes, words.retain_seconds, words.retain_versions)
    if limits == Retention():
        words.refuse("no limit: name at least one --retain-…; --help lists them")
    bucket = open_bucket(words.store)
    existing(bucket)
    gone = retain(bucket, limits)
    answer(
        words,
        {"episodes": gone.episodes, "steps": gone.steps},
        f"{gone.episodes:,} episodes with {gone.steps:,} steps are retired",
    )
    return 0
