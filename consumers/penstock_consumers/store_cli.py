"""`penstock-store`: what a store holds, whether that is what the log says, and whether env and policy do it again."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from penstock_consumers.info import describe, format_info
from penstock_consumers.recompute import format_report as format_recomputed
from penstock_consumers.recompute import recompute
from penstock_consumers.replay import Replay
from penstock_consumers.replay.parts import join, parts_until
from penstock_consumers.replay.versions import Versions
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import PenstockError, SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_consumers.verify import Report


def main() -> None:
    """Run a command.

    Exits with 0; with 1 where verifying, replaying or recomputing found a difference, or an error ended it; with 2 for
    wrong words, where an episode cannot be replayed, and where nothing differs but some steps cannot be recomputed.
    """
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run a command; give the exit status."""
    words = _parser().parse_args(argv)
    try:
        status: int = words.run(words)
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return status


def format_report(report: Report) -> str:
    """Lay a report out as text for a person."""
    rows = (
        ("expected", report.episodes_expected, report.steps_expected),
        ("stored", report.episodes_stored, report.steps_stored),
        ("missing", report.episodes_missing, report.steps_missing),
        ("duplicated", report.episodes_duplicated, report.steps_duplicated),
        ("wrong", report.episodes_wrong, report.steps_wrong),
    )
    return "\n".join(
        [
            f"{'':12}{'episodes':>14}{'steps':>16}",
            *(f"{name:12}{episodes:14,}{steps:16,}" for name, episodes, steps in rows),
            f"{'unexpected':12}{report.episodes_unexpected:14,}",
            f"{report.rows_open:,} open rows with {report.steps_open:,} steps, {report.open_rows_wrong:,} rows wrong",
            f"{report.messages:,} messages judged again, {report.messages_behind:,} wait for a commit",
            *(
                f"partition {partition}: judged again from offset {offset:,} on; what ended before is taken as it is"
                for partition, offset in report.from_offsets.items()
                if offset
            ),
            f"{report.offsets_lost:,} offsets were deleted from the log before they were judged",
            f"{report.segments_damaged} segments damaged, {report.commits_wrong} counts or states wrong",
            *(f"  {finding}" for finding in report.findings),
            _verdict(report),
        ]
    )


def _verdict(report: Report) -> str:
    if report.ok:
        return "the store holds exactly what the log says"
    told = [] if report.exact else ["THE STORE IS NOT WHAT THE LOG SAYS"]
    if report.offsets_lost:
        told.append(f"{report.offsets_lost:,} OFFSETS OF THE LOG WERE LOST")
    return ", AND ".join(told)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock-store", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="show what a store holds")
    info.set_defaults(run=_info)
    verify = commands.add_parser("verify", help="compare a store with its log; exit 1 where they differ")
    verify.set_defaults(run=_verify)
    verify.add_argument("--bootstrap-servers", help="Kafka brokers; KAFKA_BOOTSTRAP_SERVERS where not given")
    verify.add_argument("--config", help="a TOML file with a service's settings, for Kafka's TLS and SASL")
    replay = commands.add_parser("replay", help="step an env again as in an episode; exit 1 where it does otherwise")
    replay.set_defaults(run=_replay)
    replay.add_argument("--episode", required=True, metavar="ID", help="producer/incarnation/env/episode")
    again = commands.add_parser(
        "recompute", help="compute again what policies recorded of their actions; exit 1 where it differs"
    )
    again.set_defaults(run=_recompute)
    again.add_argument("--episode", metavar="ID", help="only this one, and all that it continues")
    again.add_argument(
        "--tolerance", type=_tolerance, default=1e-5, help="how far a number may be off, 1e-5 where not given"
    )
    again.add_argument(
        "--device", default="cpu", help="where the policy computes, by torch's name; cpu where not given"
    )
    for command in (info, verify, replay, again):
        command.add_argument("store", help="a folder, or a URL that obstore opens")
    for command in (info, verify, again):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _info(words: argparse.Namespace) -> int:
    described = describe(open_bucket(words.store))
    sys.stdout.write((json.dumps(described) if words.json else format_info(described)) + "\n")
    return 0


def _verify(words: argparse.Namespace) -> int:
    # Reading a store must not need Kafka's client.
    from penstock_consumers.verify.kafka import verify_against_kafka  # noqa: PLC0415

    report = verify_against_kafka(words.store, words.bootstrap_servers, words.config)
    told = json.dumps({"ok": report.ok, **dataclasses.asdict(report)}) if words.json else format_report(report)
    sys.stdout.write(told + "\n")
    return 0 if report.ok else 1


def _replay(words: argparse.Namespace) -> int:
    replay = Replay.open(words.store)
    parts = parts_until(replay, words.episode)
    steps = join(parts, replay.spec)
    what = f"episode {words.episode}"
    if len(parts) > 1:
        what += f", joined with the {len(parts) - 1} parts that it continues"
    if steps.seed is None:
        sys.stdout.write(f"{what}: it has no seed, because its env cannot be seeded by episode\n")
        return 2
    try:
        # Only this command needs an environment, so a learner's install lacks what makes one.
        from penstock_producers.envs.retrace import retrace  # noqa: PLC0415
        from penstock_producers.envs.source import EnvSource  # noqa: PLC0415  (the same)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{error}: stepping an env needs more than the base: pip install 'penstock[producer]'"
        ) from error
    described, last = replay.spec.env, parts[-1]
    if "id" not in described:
        raise StoreError(f"store {words.store}: its {layout.MANIFEST} does not name the env, so none can be made again")
    source = EnvSource.from_json(
        {
            "env": described["id"],
            "kwargs": described.get("arguments", {}),
            "wrappers": described.get("wrappers", []),
            "producer": last.producer,
        }
    )
    env = source.single(last.env)
    try:
        divergence = retrace(
            env,
            seed=steps.seed,
            options=None if steps.reset_options is None else json.loads(steps.reset_options),
            observation=steps.observation,
            action=steps.action_sent,
            reward=steps.reward,
            observation_space=replay.spec.observation,
            action_space=replay.spec.action,
        )
    finally:
        env.close()
    came = divergence or f"{len(steps.reward):,} steps give the same observations and rewards"
    sys.stdout.write(f"{what}: {came}\n")
    return 1 if divergence else 0


def _recompute(words: argparse.Namespace) -> int:
    bucket = open_bucket(words.store)
    replay = Replay.open(bucket)
    spec = replay.spec
    try:
        # Only this command needs a policy, so a learner's install lacks what makes one.
        from tqdm import tqdm  # noqa: PLC0415

        from penstock_producers.policy.recompute import Recomputer  # noqa: PLC0415  (the same)
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
    # Only on a terminal.
    with tqdm(total=total, unit=" steps", unit_scale=True, disable=None) as bar:
        report = recompute(
            replay.episodes() if parts is None else parts,
            spec,
            recomputer,
            Versions(bucket),
            tolerance=words.tolerance,
            progress=bar.update,
        )
    sys.stdout.write((json.dumps(report.to_json()) if words.json else format_recomputed(report)) + "\n")
    return report.status


def _tolerance(word: str) -> float:
    tolerance = float(word)
    # NaN is no tolerance either.
    if not tolerance >= 0:
        raise argparse.ArgumentTypeError(f"{word}: a number, at least 0")
    return tolerance


if __name__ == "__main__":
    main()
