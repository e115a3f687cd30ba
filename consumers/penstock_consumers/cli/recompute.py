"""`penstock-store recompute`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock_consumers.cli.words import answer, command
from penstock_consumers.progress import bar
from penstock_consumers.recompute import format_report, recompute
from penstock_consumers.replay import Replay
from penstock_consumers.replay.parts import parts_until
from penstock_consumers.replay.versions import Versions
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import SettingsError, StoreError

if TYPE_CHECKING:
    from penstock_consumers.cli.words import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    told = "compute again what policies recorded of their actions; exit 1 where it differs"
    parser = command(commands, "recompute", _run, told)
    parser.add_argument("--episode", metavar="ID", help="only this one, and all that it continues")
    parser.add_argument(
        "--tolerance", type=_tolerance, default=1e-5, help="how far a number may be off, 1e-5 where not given"
    )
    parser.add_argument(
        "--device", default="cpu", help="where the policy computes, by torch's name; cpu where not given"
    )


def _run(words: argparse.Namespace) -> int:
    bucket = open_bucket(words.store)
    replay = Replay.open(bucket)
    spec = replay.spec
    try:
        # Only this command needs a policy, so a learner's install lacks what makes one.
        from penstock_producers.policy.recompute import Recomputer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{error}: computing a policy's answers needs more than the base: pip install 'penstock[producer]'"
        ) from error
    if "name" not in spec.policy:
        raise StoreError(
            f"store {words.store}: its {layout.MANIFEST} does not name the policy, so none can be made again"
        )
    recomputer = Recomputer(spec.policy, spec.observation, spec.action, spec.infos, device=words.device)
    parts = None if words.episode is None else parts_until(replay, words.episode)
    total = replay.steps if parts is None else sum(part.length for part in parts)
    with bar("recompute", shown=False if words.json else None) as progress:
        progress.expect(total)
        report = recompute(
            replay.episodes() if parts is None else parts,
            spec,
            recomputer,
            Versions(bucket),
            tolerance=words.tolerance,
            progress=progress.advance,
        )
    answer(words, report.to_json(), format_report(report))
    return report.status


def _tolerance(word: str) -> float:
    tolerance = float(word)
    # NaN is no tolerance either.
    if not tolerance >= 0:
        raise argparse.ArgumentTypeError(f"{word}: a number, at least 0")
    return tolerance
