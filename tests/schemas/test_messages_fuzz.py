"""Whatever comes is a valid message or a rejection: nothing crashes, hangs, or takes more memory than it may."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schemas import fuzz, fuzz_child

ROOT = Path(__file__).parents[2]
REASONS = {"oversized", "headers", "format", "fingerprint", "truncated", "schema", "invalid", "rows"}
# Of what Arrow allocates for one message: it at its largest, once packed and once not, and what is made of it.
MOST_POOL_BYTES = 2 * (fuzz_child.MAX_RAW_BYTES + (1 << 20))


def child(folder: Path, seed: int, count: int, *, breaking: str = "") -> subprocess.CompletedProcess[str]:
    """Decode cases in a process of their own; `breaking` is Python that changes the decoder first."""
    script = f"""
from pathlib import Path
from tests.schemas import fuzz_child
{breaking}
fuzz_child.main({seed}, 0, {count}, Path({str(folder)!r}))
"""
    command = [sys.executable, "-c", script]
    return subprocess.run(  # noqa: S603  (our own interpreter and script)
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )


def survived(folder: Path, seed: int, count: int) -> dict[str, Any]:
    """What became of cases that did not bring their process down."""
    done = child(folder, seed, count)
    case = (folder / "case").read_text().strip()
    assert done.returncode == 0, f"case {case} of seed {seed} ended the process: {done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.data())
def test_what_was_valid_once_is_valid_or_rejected(data: st.DataObject) -> None:
    case = fuzz.make(lambda below: data.draw(st.integers(0, below - 1)))
    assert fuzz_child.outcome(case) in {*REASONS, "valid"}


def check(told: dict[str, Any]) -> None:
    # Each stage of the decoder turns something down, and something comes through.
    assert set(told["outcomes"]) == {*REASONS, "valid"}
    assert told["pool_bytes"] <= MOST_POOL_BYTES


def test_no_case_brings_a_process_down(tmp_path: Path) -> None:
    check(survived(tmp_path, 1, 1500))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_no_case_brings_a_process_down_for_long(tmp_path: Path, seed: int) -> None:
    check(survived(tmp_path, seed, 60_000))


@pytest.mark.parametrize(
    ("breaking", "told"),
    [
        ("import ctypes; fuzz_child.decode = lambda *_, **__: ctypes.string_at(0)", "Segmentation fault"),
        ("fuzz_child.decode = lambda *_, **__: bytearray(1 << 30)", "MemoryError"),
        ("import time; fuzz_child.HANG_SECONDS = 0.2; fuzz_child.decode = lambda *_, **__: time.sleep(60)", "Timeout"),
        ("fuzz_child.decode = lambda *_, **__: {}['missing']", "KeyError"),
    ],
    ids=["crash", "memory", "hang", "another error"],
)
def test_a_decoder_that_fails_is_seen(tmp_path: Path, breaking: str, told: str) -> None:
    done = child(tmp_path, 1, 10, breaking=breaking)
    assert done.returncode != 0
    assert told in done.stderr
    assert (tmp_path / "case").read_text().strip() == "0"


def test_a_case_is_the_same_each_time() -> None:
    first, again = ([fuzz_child.case_of(7, number) for number in range(50)] for _ in range(2))
    assert first == again
