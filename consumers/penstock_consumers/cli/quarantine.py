"""`penstock-store quarantine ls|show|retry`."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING, Any

from penstock_consumers.cli.connection import add_stream, connect
from penstock_consumers.cli.table import table
from penstock_consumers.cli.words import answer, command, positive
from penstock_consumers.quarantine import reading
from penstock_consumers.quarantine.letter import Place
from penstock_consumers.quarantine.retry import Source, retry
from penstock_consumers.quarantine.view import describe, summarize
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from penstock_consumers.cli.connection import Connected
    from penstock_consumers.cli.words import Commands
    from penstock_consumers.quarantine.letter import Letter
    from penstock_consumers.quarantine.reading import Quarantined
    from penstock_consumers.quarantine.retry import Outcome

_EXAMPLES = 3


def add(commands: Commands) -> None:
    """Declare the commands."""
    told = "messages that were not valid: what lies there, why, and to judge it again"
    inner = commands.add_parser("quarantine", help=told, description=f"{told[0].upper()}{told[1:]}.")
    under = inner.add_subparsers(required=True, metavar="COMMAND")
    ls = command(under, "ls", _ls, "count what was quarantined by reason, with examples")
    ls.add_argument("--reason", help="only this reason's")
    ls.add_argument(
        "--examples", type=positive, default=_EXAMPLES, metavar="N", help=f"of each reason, {_EXAMPLES} where not given"
    )
    show = command(under, "show", _show, "show one quarantined message")
    show.add_argument("place", type=_place, metavar="PARTITION:OFFSET", help="where it lies in the stream's topic")
    again = command(
        under, "retry", _retry, "have quarantined messages judged again; exit 2 where some of them cannot be"
    )
    again.add_argument("places", type=_place, nargs="*", metavar="PARTITION:OFFSET", help="these")
    again.add_argument("--reason", help="all of this reason")
    again.add_argument("--all", action="store_true", help="all there are")
    again.add_argument("--dry-run", action="store_true", help="tell what would be appended, and append nothing")
    again.set_defaults(refuse=again.error)
    for parser in (ls, show, again):
        add_stream(parser)


def format_summary(summary: dict[str, Any]) -> str:
    """Lay out what `summarize` answers as text for a person."""
    lines = table([{name: row[name] for name in ("reason", "messages", "bytes")} for row in summary["reasons"]])
    for row in summary["reasons"]:
        lines += ["", f"{row['reason']}, {len(row['examples'])} of {row['messages']:,}:"]
        lines += [
            f"  {one['place']}  {one['when']}  {one['producer'] or '-'}  {one['detail']}" for one in row["examples"]
        ]
    if summary["of_another_topic"]:
        lines += ["", f"{summary['of_another_topic']:,} more are not of this topic, which may have been recreated"]
    return "\n".join(lines) or "nothing is in quarantine"


def format_outcomes(outcomes: list[Outcome], *, dry: bool) -> str:
    """Tell what became of each message."""
    lines = []
    for outcome in outcomes:
        done = "would be appended again" if dry else f"appended again, at offset {outcome.offset}"
        lines.append(f"{outcome.letter.place}: {f'left: {outcome.refused}' if outcome.refused else done}")
    left = sum(outcome.refused is not None for outcome in outcomes)
    told = "would be judged again" if dry else "will be judged again"
    return "\n".join([*lines, f"{len(outcomes) - left:,} {told}, {left:,} left where they are"])


def _ls(words: argparse.Namespace) -> int:
    with connect(words) as at:
        summary = summarize(_read(at), words.examples, words.reason)
    answer(words, summary, format_summary(summary))
    return 0


def _show(words: argparse.Namespace) -> int:
    with connect(words) as at:
        letter = _chosen(_read(at), [words.place])[0]
        with closing(reading.Payloads(at.log, at.dead_letter_topic)) as payloads:
            described = describe(letter, payloads.of(letter), at.spec)
    lines = [f"{name.replace('_', ' '):13}{value}" for name, value in described.items() if name != "headers"]
    lines += ["headers", *(f"  {name} = {value}" for name, value in described["headers"])]
    answer(words, described, "\n".join(lines))
    return 0


def _retry(words: argparse.Namespace) -> int:
    if not (words.places or words.reason or words.all):
        words.refuse("nothing to retry: name places as partition:offset, a --reason, or --all")
    with connect(words) as at:
        found = _read(at)
        chosen = {letter.place for letter in _chosen(found, words.places)} | {
            letter.place for letter in found.letters.values() if words.all or letter.reason == words.reason
        }
        source = Source(at.log, at.rollouts_topic, at.dead_letter_topic, at.bucket, at.spec)
        outcomes: list[Outcome] = []
        try:
            outcomes.extend(retry(source, list(found.letters.values()), chosen, dry=words.dry_run))
        finally:
            # Also where the log takes no more of them: what it took until then is in it.
            told = [
                {"place": str(outcome.letter.place), "offset": outcome.offset, "refused": outcome.refused}
                for outcome in outcomes
            ]
            answer(words, told, format_outcomes(outcomes, dry=words.dry_run))
    return 2 if any(outcome.refused for outcome in outcomes) else 0


def _read(at: Connected) -> Quarantined:
    topic_id = at.log.describe(at.rollouts_topic).topic_id
    return reading.read(at.log, at.dead_letter_topic, topic_id)


def _chosen(found: Quarantined, places: list[Place]) -> list[Letter]:
    missing = [str(place) for place in places if place not in found.letters]
    if missing:
        raise SettingsError(f"not in quarantine: {', '.join(missing)}: `quarantine ls` tells what is")
    return [found.letters[place] for place in places]


def _place(word: str) -> Place:
    try:
        return Place.parse(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
