"""`penstock-store replay`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from penstock_consumers.cli.words import command
from penstock_consumers.replay import Replay
from penstock_consumers.replay.parts import join, parts_until
from penstock_consumers.store import layout
from penstock_schemas.errors import SettingsError, StoreError

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands


def add(commands: Commands) -> None:
    """Declare the command."""
    told = "step an env again as in an episode; exit 1 where it does otherwise"
    parser = command(commands, "replay", _run, told, answers_json=False)
    parser.add_argument("--episode", required=True, metavar="ID", help="producer/incarnation/env/episode")


def _run(words: argparse.Namespace) -> int:
    replay = Replay.open(words.store)
    parts = parts_until(replay, words.episode)
    steps = join(parts, replay.spec)
    what = f"episode {words.episode}"
    if len(parts) > 1:
        what += f", joined with the {len(parts) - 1} parts that it continues"
    if steps.seed is None:
        why = "because its env cannot be seeded by episode; with --vectorization lanes each has one"
        sys.stdout.write(f"{what}: it has no seed, {why}\n")
        return 2
    try:
        # Only this command needs an environment, so a learner's install lacks what makes one.
        from penstock_producers.envs.lanes.lane import close_envs  # noqa: PLC0415
        from penstock_producers.envs.retrace import retrace  # noqa: PLC0415  (the same)
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
        close_envs([env])
    came = divergence or f"{len(steps.reward):,} steps give the same observations and rewards"
    sys.stdout.write(f"{what}: {came}\n")
    return 1 if divergence else 0
