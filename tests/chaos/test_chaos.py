"""Whole runs under faults. A run that finds something says its seed, and where its files are."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.run import Load, Outcome, run, told
from tests.chaos.schedule import draw

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.whole

_SCHEDULES = 30
_FIRST_SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.randrange(1 << 32)))  # noqa: S311 - not for secrets


def killed(outcome: Outcome) -> dict[str, int]:
    return {kind: outcome.faults.get(f"SIGKILL of {kind}", 0) for kind in ("producer", "consumer", "broker")}


def test_nothing_is_lost_or_doubled_though_every_kind_of_process_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = run(draw(7, 20.0, producers=2, consumers=2, extras=0), Load(), folder)
    assert outcome.ok, told(outcome, folder)
    assert min(killed(outcome).values()) >= 1
    assert outcome.faults["SIGSTOP past the session of consumer"] >= 1
    assert {"copies of rogue", "late copies of rogue", "poison of rogue"} <= set(outcome.faults)
    assert outcome.counters["messages_quarantined"] > 0
    assert outcome.counters["messages_duplicate"] > 0
    assert outcome.steps > 0


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(_FIRST_SEED, _FIRST_SEED + _SCHEDULES))
def test_nothing_is_lost_or_doubled_under_a_random_schedule(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = run(draw(seed, 60.0), Load(), folder)
    assert outcome.ok, told(outcome, folder)
    assert min(killed(outcome).values()) >= 1


@pytest.mark.chaos
def test_nothing_is_lost_or_doubled_of_a_hundred_thousand_messages(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    load = Load(num_envs=4, fragment_steps=2, pace=0.0, messages=100_000)
    outcome = run(draw(_FIRST_SEED, 180.0, kills=3), load, folder)
    assert outcome.ok, told(outcome, folder)
    assert outcome.messages >= load.messages
    assert min(killed(outcome).values()) >= 3
