"""What the commands share: how one is declared, and how it answers."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    # argparse has no public name for what `add_subparsers` gives.
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  (see above)
    Command: TypeAlias = "Callable[[argparse.Namespace], int]"


def command(commands: Commands, name: str, run: Command, told: str, *, answers_json: bool = True) -> Any:
    """Declare a command over a store; `run` gives its exit status."""
    parser = commands.add_parser(name, help=told, description=f"{told[0].upper()}{told[1:]}.")
    parser.set_defaults(run=run)
    parser.add_argument("store", metavar="STORE", help="a folder, or a URL that obstore opens")
    if answers_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def answer(words: argparse.Namespace, value: Any, text: str) -> None:
    """Print what a command found: `value` as JSON where that is asked for, else `text` for a person."""
    sys.stdout.write((json.dumps(_finite(value), allow_nan=False) if words.json else text) + "\n")


def _finite(value: Any) -> Any:
    """Put null where JSON has no number."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case _:
            return value


def positive(word: str) -> int:
    """Read a number of at least 1."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word}: a number, at least 1")
    return number


def seconds(word: str) -> float:
    """Read a length of time, not negative."""
    length = float(word)
    # NaN is no length either.
    if not length >= 0:
        raise argparse.ArgumentTypeError(f"{word}: seconds, at least 0")
    return length
