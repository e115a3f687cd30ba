"""`penstock-store plot`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_consumers.cli.words import command
from penstock_consumers.plot import BY, curves
from penstock_consumers.progress import bar
from penstock_consumers.replay.snapshot import existing
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from penstock_consumers.cli.words import Commands

_BY = ("version", "time")


def add(commands: Commands) -> None:
    """Declare the command."""
    told = "draw the returns of whole episodes by policy version and over time"
    parser = command(commands, "plot", _run, told, answers_json=False)
    parser.add_argument(
        "--output", type=_png, default=Path("return.png"), metavar="PNG", help="return.png if not given"
    )
    parser.add_argument(
        "--by", action="append", choices=BY, help="along what, a panel each; repeatable; version and time if not given"
    )


def _run(words: argparse.Namespace) -> int:
    try:
        # Only this command draws, so a learner's install lacks what does.
        from penstock_consumers.plot.draw import draw  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error}: drawing needs more than the base: pip install 'penstock[plot]'") from error
    bucket = open_bucket(words.store)
    spec = existing(bucket).spec
    with bar("plot") as progress:
        drawn = curves(bucket, tuple(dict.fromkeys(words.by or _BY)), progress)
    try:
        draw(drawn, spec, words.output)
    except OSError as error:
        raise SettingsError(f"--output {words.output}: cannot be written: {error}") from error
    sys.stdout.write(f"{words.output}\n")
    return 0


def _png(word: str) -> Path:
    path = Path(word)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{word}: what is drawn is a PNG: name it so, as in return.png")
    return path
