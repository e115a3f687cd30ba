from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.heap import Trimmer
from tests.consumers.long_episodes import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")

MIB = 1 << 20


class Cycle:
    """Holds itself."""

    def __init__(self) -> None:
        self.held = self


PROGRAM = """
import ctypes, threading
from contextlib import suppress
from penstock_consumers.__main__ import main

with suppress(SystemExit):
    main()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
ready = threading.Barrier(9)

def allocate():
    held = bytes(1 << 16)
    ready.wait()
    ready.wait()

for _ in range(8):
    threading.Thread(target=allocate).start()
ready.wait()
ctypes.CDLL(None).malloc_stats()
ready.wait()
"""


@glibc
def test_all_threads_of_a_consumer_and_arrow_take_from_one_arena() -> None:
    """Whatever its imports have started."""
    program = [sys.executable, "-c", PROGRAM, "--help"]
    told = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  (our own program)
    arenas = [line for line in told.stderr.splitlines() if line.startswith("Arena ")]
    assert arenas == ["Arena 0:"]
    assert told.stdout.splitlines()[-1] == "system"


@pytest.fixture
def now() -> Iterator[list[float]]:
    """The time of a trimmer's clock; what that sets apart is taken back."""
    yield [0.0]
    gc.unfreeze()


def test_what_lies_in_cycles_is_freed_when_it_is_time(now: list[float]) -> None:
    trimmer = Trimmer(lambda: now[0])
    cycle = Cycle()
    freed = weakref.ref(cycle)
    # Of the oldest generation, at which Python looks by itself only once much has been added.
    gc.collect()
    del cycle
    now[0] = 1.9
    trimmer.run_once()
    assert freed() is not None
    now[0] = 2.0
    trimmer.run_once()
    assert freed() is None


def test_what_was_there_before_is_not_looked_through_again_and_again(now: list[float]) -> None:
    before = Cycle()
    Trimmer(lambda: now[0])
    assert gc.get_freeze_count() > len(gc.get_objects())
    freed = weakref.ref(before)
    del before
    gc.collect()
    assert freed() is not None
    # It would stay for good if nobody ever looked.
    Trimmer(lambda: now[0])
    assert freed() is None


@glibc
def test_free_pages_between_what_stays_are_given_back_when_it_is_time(now: list[float]) -> None:
    trimmer = Trimmer(lambda: now[0])
    pieces = [b"\1" * (16 << 10) for _ in range(64 * 64)]
    del pieces[::2], pieces[::2], pieces[::2]
    full = memory_bytes("VmRSS")
    now[0] = 1.9
    trimmer.run_once()
    assert memory_bytes("VmRSS") > full - 8 * MIB
    now[0] = 2.0
    trimmer.run_once()
    assert memory_bytes("VmRSS") < full - 32 * MIB
