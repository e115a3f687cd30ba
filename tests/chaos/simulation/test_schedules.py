from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.chaos.simulation.__main__ import main
from tests.chaos.simulation.schedule import play

# Half of this machine's schedules each: they are bound to a core, and know nothing of each other.
PROCESSES = 2
A_FEW, MANY = 60, 5_000


def played(seeds: range) -> list[tuple[int, str]]:
    """Play schedules; give those that failed, with their traces."""
    return [(seed, outcome.text) for seed in seeds if not (outcome := play(seed)).ok]


def failures(count: int) -> str:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        found = [failed for part in pool.map(played, shares(count)) for failed in part]
    seeds = [seed for seed, _ in found]
    return "\n".join([*(text for _, text in found[:3]), f"{len(seeds)} seeds failed: {seeds}"]) if found else ""


def shares(count: int) -> list[range]:
    return [range(first, min(first + 30, count)) for first in range(0, count, 30)]


def test_random_schedules() -> None:
    told = failures(A_FEW)
    assert not told, told


@pytest.mark.chaos
def test_many_random_schedules() -> None:
    told = failures(MANY)
    assert not told, told


def test_a_seed_tells_everything() -> None:
    """In another process, where sets have another order, too."""
    traces = [play(7).trace for _ in range(2)]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 50
    hashes = {**os.environ, "PYTHONHASHSEED": "3"}
    command = [sys.executable, "-m", "tests.chaos.simulation", "7"]
    told = subprocess.run(command, env=hashes, capture_output=True, text=True, check=True).stdout  # noqa: S603  (no input)
    assert told.splitlines()[: len(traces[0])] == list(traces[0])


def test_other_seeds_are_other_schedules() -> None:
    assert play(1).trace != play(2).trace


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), ([], 2), (["seven"], 2)])
def test_only_a_seed_is_played(words: list[str], status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status
