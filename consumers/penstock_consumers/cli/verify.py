"""`penstock-store verify`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from penstock_consumers.cli.connection import add_kafka
from penstock_consumers.cli.words import answer, command
from penstock_consumers.progress import bar
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.verify.quick import quick

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from penstock_consumers.cli.words import Commands
    from penstock_consumers.verify import Report


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = command(commands, "verify", _run, "compare a store with its log; exit 1 where they differ")
    add_kafka(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="without the log: whether the store has all that it names",
    )


def format_report(report: Report) -> str:
    """Lay out what judging the log again found as text for a person."""
    rows = (
        ("expected", report.episodes_expected, report.steps_expected),
        *_stored_rows(report),
        ("missing", report.episodes_missing, report.steps_missing),
        ("wrong", report.episodes_wrong, report.steps_wrong),
    )
    return "\n".join(
        [
            *_counts(rows),
            f"{'unexpected':12}{report.episodes_unexpected:14,}",
            f"{report.rows_open:,} open rows with {report.steps_open:,} steps, {report.open_rows_wrong:,} rows wrong",
            f"{report.messages:,} messages judged again, {report.messages_behind:,} wait for a commit",
            *(
                f"partition {partition}: judged again from offset {offset:,} on; what ended before is taken as it is"
                for partition, offset in report.from_offsets.items()
                if offset
            ),
            f"{report.episodes_opened_before:,} expected were open there: compared by name, length and end alone",
            f"{report.offsets_lost:,} offsets were deleted from the log before they were judged",
            *_damage(report),
            _verdict(report, "the store holds exactly what the log says", "THE STORE IS NOT WHAT THE LOG SAYS"),
        ]
    )


def format_quick(report: Report) -> str:
    """Lay out what a look at the store alone found as text for a person."""
    return "\n".join(
        [
            *_counts(_stored_rows(report)),
            f"{report.rows_open:,} open rows with {report.steps_open:,} steps",
            *_damage(report),
            _verdict(report, "the store has all that it names, as it was written", "THE STORE IS DAMAGED"),
        ]
    )


def _stored_rows(report: Report) -> tuple[tuple[str, int, int], ...]:
    return (
        ("stored", report.episodes_stored, report.steps_stored),
        ("retired", report.episodes_retired, report.steps_retired),
        ("duplicated", report.episodes_duplicated, report.steps_duplicated),
    )


def _counts(rows: Iterable[tuple[str, int, int]]) -> list[str]:
    head = f"{'':12}{'episodes':>14}{'steps':>16}"
    return [head, *(f"{name:12}{episodes:14,}{steps:16,}" for name, episodes, steps in rows)]


def _damage(report: Report) -> list[str]:
    damaged = f"{report.segments_damaged} segments and {report.snapshots_damaged} named snapshots damaged"
    return [f"{damaged}, {report.commits_wrong} counts or states wrong", *(f"  {one}" for one in report.findings)]


def _verdict(report: Report, well: str, not_well: str) -> str:
    if report.ok:
        return well
    told = [] if report.exact else [not_well]
    if report.offsets_lost:
        told.append(f"{report.offsets_lost:,} OFFSETS OF THE LOG WERE LOST")
    return ", AND ".join(told)


def _run(words: argparse.Namespace) -> int:
    shown = False if words.json else None
    if words.quick:
        with bar("verify", shown=shown) as progress:
            report, text = quick(open_bucket(words.store), progress), format_quick
    else:
        # Reading a store must not need Kafka's client.
        from penstock_consumers.verify.kafka import verify_against_kafka  # noqa: PLC0415

        with bar("verify", "offsets", shown=shown) as progress:
            report = verify_against_kafka(words.store, words.bootstrap_servers, words.config, progress=progress)
        text = format_report
    answer(words, {"ok": report.ok, **dataclasses.asdict(report)}, text(report))
    return 0 if report.ok else 1
