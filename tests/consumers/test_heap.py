from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from penstock_consumers.heap import Trimmer
from tests.consumers.long_episodes import memory_bytes

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")

MIB = 1 << 20
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


def test_all_threads_of_a_consumer_and_arrow_take_from_one_arena() -> None:
    """Whatever its imports have started."""
    program = [sys.executable, "-c", PROGRAM, "--help"]
    told = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  (our own program)
    arenas = [line for line in told.stderr.splitlines() if line.startswith("Arena ")]
    assert arenas == ["Arena 0:"]
    assert told.stdout.splitlines()[-1] == "system"


def test_free_pages_between_what_stays_are_given_back_when_it_is_time() -> None:
    now = 0.0
    trimmer = Trimmer(lambda: now)
    pieces = [b"\1" * (16 << 10) for _ in range(64 * 64)]
    del pieces[::2], pieces[::2], pieces[::2]
    full = memory_bytes("VmRSS")
    now = 1.9
    trimmer.run_once()
    assert memory_bytes("VmRSS") > full - 8 * MIB
    now = 2.0
    trimmer.run_once()
    assert memory_bytes("VmRSS") < full - 32 * MIB
