"""`penstock-store gc`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from penstock_consumers.cli.words import answer, command, seconds
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import UpkeepSettings, gc

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands
    from penstock_consumers.store.bucket import Bucket


class Noted:
    """A bucket that notes what is deleted, and leaves it there where `dry`."""

    def __init__(self, bucket: Bucket, *, dry: bool) -> None:
        self.deleted: list[str] = []
        self._bucket = bucket
        self._dry = dry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def delete(self, name: str) -> None:
        """Note an object, and delete it unless this is dry."""
        self.deleted.append(name)
        if not self._dry:
            self._bucket.delete(name)


def add(commands: Commands) -> None:
    """Declare the command."""
    told = "delete what no commit, no reader and no named snapshot can need, as the store's consumer does by and by"
    parser = command(commands, "gc", _run, told)
    parser.add_argument(
        "--collect-seconds",
        type=seconds,
        default=UpkeepSettings().collect_seconds,
        metavar="S",
        help="how long it must have been so; where not given a consumer's default, %(default)s, whatever it is set to",
    )
    parser.add_argument("--dry-run", action="store_true", help="name what would be deleted, and delete nothing")


def _run(words: argparse.Namespace) -> int:
    bucket = open_bucket(words.store)
    existing(bucket)
    noted = Noted(bucket, dry=words.dry_run)
    gc(cast("Bucket", noted), words.collect_seconds)
    told = f"{len(noted.deleted):,} objects {'would be' if words.dry_run else 'were'} deleted"
    lines = [*noted.deleted, told] if words.dry_run else [told]
    answer(words, {"deleted": noted.deleted, "dry_run": words.dry_run}, "\n".join(lines))
    return 0
