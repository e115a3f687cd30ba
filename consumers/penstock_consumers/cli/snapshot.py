"""`penstock-store snapshot create|ls|rm`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from penstock_consumers.cli.table import table
from penstock_consumers.cli.words import answer, command
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store import layout, snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import CorruptStoreError, StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.cli.words import Commands
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.snapshots import Held


def add(commands: Commands) -> None:
    """Declare the commands."""
    told = "named snapshots: what they hold stays readable until their name is removed"
    inner = commands.add_parser("snapshot", help=told, description=f"{told[0].upper()}{told[1:]}.")
    under = inner.add_subparsers(required=True, metavar="COMMAND")
    create = command(under, "create", _create, "name what the store holds now")
    command(under, "ls", _ls, "list the named snapshots")
    remove = command(under, "rm", _remove, "remove a name; what it alone held is collected in time", answers_json=False)
    for parser in (create, remove):
        parser.add_argument("name", type=_name, metavar="NAME", help="letters, digits, dots, dashes and underscores")


def _name(word: str) -> str:
    """Read a snapshot's name."""
    if layout.snapshot(word) is None:
        raise argparse.ArgumentTypeError(
            f"{word!r}: up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit"
        )
    return word


def _create(words: argparse.Namespace) -> int:
    made = _described(words.name, snapshots.create(_open(words), words.name))
    answer(words, made, f"snapshot {made['name']}: {made['episodes']:,} episodes, {made['steps']:,} steps")
    return 0


def _ls(words: argparse.Namespace) -> int:
    bucket = _open(words)
    found, faults = [], []
    for name in snapshots.names(bucket):
        try:
            found.append(_described(name, snapshots.load(bucket, name)))
        except (CorruptStoreError, StoreFormatError) as error:
            # Its name is all that is known of it.
            found.append({**dict.fromkeys(_described(name, {})), "name": name})
            faults.append(f"error: {error}\n")
    shown = [{name: value for name, value in row.items() if name != "commits"} for row in found]
    answer(words, found, "\n".join(table(shown)) or "no named snapshot")
    sys.stderr.writelines(faults)
    return 1 if faults else 0


def _remove(words: argparse.Namespace) -> int:
    snapshots.remove(_open(words), words.name)
    sys.stdout.write(f"snapshot {words.name} is removed\n")
    return 0


def _open(words: argparse.Namespace) -> Bucket:
    bucket = open_bucket(words.store)
    existing(bucket)
    return bucket


def _described(name: str, held: Mapping[int, Held]) -> dict[str, Any]:
    entries = [entry for of in held.values() for entry in of.live.segments]
    return {
        "name": name,
        "episodes": sum(entry.rows for entry in entries),
        "steps": sum(entry.steps for entry in entries),
        "bytes": sum(entry.bytes for entry in entries),
        "commits": {str(number): of.commit for number, of in held.items()},
    }
