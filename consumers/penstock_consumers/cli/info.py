"""`penstock-store info`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.cli.words import answer, command
from penstock_consumers.info import describe, format_info
from penstock_consumers.store.bucket import open_bucket

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    command(commands, "info", _run, "show what a store holds")


def _run(words: argparse.Namespace) -> int:
    described = describe(open_bucket(words.store))
    answer(words, described, format_info(described))
    return 0
