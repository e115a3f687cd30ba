"""`penstock-store ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.cli.listing import Wanted, newest
from penstock_consumers.cli.table import table
from penstock_consumers.cli.words import answer, command, positive
from penstock_consumers.info import ENDS
from penstock_consumers.replay import snapshot
from penstock_consumers.store.bucket import open_bucket

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands

_LIMIT = 50


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = command(commands, "ls", _run, "list episodes, those that ended last first")
    parser.add_argument("--producer", metavar="NAME", help="only this producer's")
    parser.add_argument("--end", action="append", choices=ENDS, default=[], help="only those that ended so; repeatable")
    parser.add_argument("--min-return", type=float, metavar="R", help="only those with at least this return")
    parser.add_argument("--max-return", type=float, metavar="R", help="only those with at most this return")
    parser.add_argument(
        "--limit", type=positive, default=_LIMIT, metavar="N", help=f"how many at most, {_LIMIT} where not given"
    )


def _run(words: argparse.Namespace) -> int:
    bucket = open_bucket(words.store)
    wanted = Wanted(words.producer, tuple(words.end), words.min_return, words.max_return)
    found = newest(bucket, snapshot.existing(bucket).spec, wanted, words.limit)
    answer(words, found, "\n".join(table(found)) or "no such episode")
    return 0
