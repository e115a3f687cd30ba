"""Decodes cases of a seed until they end, or until one of them brings this process down: `SEED FIRST COUNT FOLDER`.

The number of the case at hand stands in FOLDER/case. One that hangs ends the process with a traceback.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

from penstock_schemas.errors import RejectedError
from penstock_schemas.messages import decode
from tests.schemas import fuzz

# Most of what a message may be here, and what all that reading one takes may add to this process.
MAX_RAW_BYTES = 4 << 20
ROOM_BYTES = 512 << 20
HANG_SECONDS = 20.0


def case_of(seed: int, number: int) -> fuzz.Case:
    """The case that a seed and a number stand for."""
    return fuzz.make(random.Random(f"{seed}:{number}").randrange)  # noqa: S311  (no secret depends on it)


def outcome(case: fuzz.Case) -> str:
    """Decode a case; gives the reason for which it was rejected, or "valid"."""
    try:
        decode(case.record, case.spec, max_raw_bytes=MAX_RAW_BYTES)
    except RejectedError as rejected:
        # What is told of a message goes into a header of its dead letter.
        str(rejected).encode(errors="backslashreplace")
        return rejected.reason
    return "valid"


def main(seed: int, first: int, count: int, folder: Path) -> None:
    faulthandler.enable()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
    at = os.open(folder / "case", os.O_WRONLY | os.O_CREAT)
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        os.pwrite(at, b"%-20d" % number, 0)
        case = case_of(seed, number)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        outcomes[outcome(case)] += 1
    sys.stdout.write(json.dumps({"outcomes": outcomes, "pool_bytes": pa.default_memory_pool().max_memory()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), Path(sys.argv[4]))
