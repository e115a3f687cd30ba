"""`penstock-store info`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock_consumers.cli.table import table
from penstock_consumers.cli.words import answer, command
from penstock_consumers.info import describe
from penstock_consumers.progress import bar
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.spaces import Dict, Discrete, Text, Tuple, space_from_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from penstock_consumers.cli.words import Commands
    from penstock_schemas.spaces import Space

# What a person reads of a table.
_MOST_ROWS = 20
_UNITS = ("KB", "MB", "GB", "TB")
_THOUSAND = 1000


def add(commands: Commands) -> None:
    """Declare the command."""
    command(commands, "info", _run, "show what a store holds")


def format_info(info: dict[str, Any]) -> str:
    """Lay out what `describe` answers as text for a person."""
    extras, infos = (", ".join(column["name"] for column in info[name]) or "none" for name in ("extras", "infos"))
    retired = info["retired"]
    ends = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info["ends"].items() if count)
    return "\n".join(
        [
            f"store        {info['store']}",
            f"stream       {info['stream']}",
            f"env          {_inline(info['env'])}",
            f"policy       {_inline(info['policy'])}",
            f"observation  {_space(space_from_json(info['observation']))}",
            f"action       {_space(space_from_json(info['action']))}",
            f"reward       {info['reward']}",
            f"extras       {extras}",
            f"infos        {infos}",
            f"size         {_sizes(info['bytes'])}",
            f"steps        {info['steps']:,}",
            f"episodes     {info['episodes']:,}{f' ({ends})' if ends else ''}",
            *(
                [f"retired      {retired['episodes']:,} episodes, {retired['steps']:,} steps"]
                if retired["steps"]
                else []
            ),
            *_below(table(info["partitions"])),
            *_below(_evenly(info["policies"], "versions")),
            *_below(table([{"counter": name, "count": count} for name, count in info["counters"].items()])),
        ]
    )


def _run(words: argparse.Namespace) -> int:
    with bar("info", shown=False if words.json else None) as progress:
        described = describe(open_bucket(words.store), progress)
    answer(words, described, format_info(described))
    return 0


def _space(space: Space) -> str:
    match space:
        case Dict():
            return f"Dict({', '.join(f'{key}: {_space(inner)}' for key, inner in space.spaces)})"
        case Tuple():
            return f"Tuple({', '.join(map(_space, space.spaces))})"
        case Discrete():
            return f"Discrete(n={space.n}, start={space.start})"
        case Text():
            return f"Text(at most {space.max_length} characters)"
        case _:
            return f"{type(space).__name__}({', '.join(map(str, space.shape))}) {space.dtype}"


def _inline(described: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in described.items()) or "not described"


def _sizes(sizes: dict[str, Any]) -> str:
    told = [f"{_size(sizes['all'])}: {_size(sizes['segments'])} in segments, {_size(sizes['open'])} of open episodes"]
    told += [f"{sizes['per_step']:,.1f} B a step"] if sizes["per_step"] is not None else []
    return "; ".join(told)


def _size(size: float) -> str:
    """Lay out a number of bytes."""
    if size < _THOUSAND:
        return f"{size:,} B"
    power = min(int(math.log(size, _THOUSAND)), len(_UNITS))
    return f"{size / _THOUSAND**power:,.1f} {_UNITS[power - 1]}"


def _evenly(rows: Sequence[dict[str, Any]], what: str) -> list[str]:
    """Lay out the first row, the last, and some evenly between, and tell how many there are."""
    if len(rows) <= _MOST_ROWS:
        return table(rows)
    shown = [rows[round(at * (len(rows) - 1) / (_MOST_ROWS - 1))] for at in range(_MOST_ROWS)]
    return [*table(shown), f"{_MOST_ROWS} of {len(rows):,} {what}; --json has all"]


def _below(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []
