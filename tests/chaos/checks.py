"""What is asked of a run when all is still."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.objects import folder_objects
from tests.chaos.audit.records import Acknowledged, kafka_records
from tests.chaos.audit.stored import follow, partitions_in
from tests.chaos.env import ENV, EPISODE, PRODUCER, START, STEP
from tests.chaos.notes import read_notes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_FEW = 20
# The last one: asked to stop before it could listen.
_CLEAN = {0, -signal.SIGTERM}
_TOLD = 1
# The errors that a schedule alone can bring about.
_CAUSED = (
    # An instance whose join the broker left unanswered joins again, and to the group that is another of its name.
    re.compile(r"error: group '[^']+' of topic '[^']+': another member has joined as instance '[^']+', .*"),
    # A producer that is to stop while the broker is away.
    re.compile(r"error: the log did not take all within \S+ s after the stop: the rest is lost"),
)


def audited(
    bootstrap_servers: str, stream: str, store: Path, ledgers: Sequence[Path], *, idle_limit_ms: int
) -> list[str]:
    """What the independent auditor finds, and how far a store is behind its log."""
    topic = f"rollouts.{stream}"
    found = audit(
        kafka_records(bootstrap_servers, topic),
        folder_objects(store),
        idle_limit_ms=idle_limit_ms,
        dead_letters=kafka_records(bootstrap_servers, f"{topic}.dead-letter").get(0, ()),
        ledger=[entry for path in ledgers for entry in acknowledged(path)],
    )
    return [] if found.ok else [f"audit: {line}" for line in found.text.splitlines()]


def acknowledged(path: Path) -> list[Acknowledged]:
    """Read a producer's ledger."""
    return [
        Acknowledged(int(partition), int(offset), bytes.fromhex(digest))
        for partition, offset, digest in read_notes(path)
    ]


def mixed_up(store: Path) -> list[str]:
    """Episodes whose observations are of another producer, start, env or episode than they say, or out of order."""
    objects, found = folder_objects(store), list[str]()
    live = (
        entry["name"]
        for partition in partitions_in(objects)
        for entry in follow(objects, partition, lambda _, told: found.append(told)).segments.values()
    )
    return [*mixed_up_in(pa.ipc.open_file(pa.BufferReader(objects[name])).read_all() for name in live), *found]


def mixed_up_in(segments: Iterable[pa.Table]) -> list[str]:
    """As `mixed_up`, of segments of whole episodes."""
    found: list[str] = []
    # No two incarnations are of one start, and no incarnation is of two.
    starts: dict[tuple[str, int], set[int]] = {}
    for segment in segments:
        _check(segment.combine_chunks(), starts, found)
    owners: dict[int, tuple[str, int]] = {}
    for incarnation, numbers in starts.items():
        if len(numbers) > 1 or owners.setdefault(min(numbers), incarnation) != incarnation:
            found.append(f"{incarnation} is of the starts {sorted(numbers)}, as {owners.get(min(numbers))}")
    return [f"identity: {told}" for told in found[:_FEW]]


def _check(table: pa.Table, starts: dict[tuple[str, int], set[int]], found: list[str]) -> None:
    seen = table.column("observation").combine_chunks()
    bounds = np.asarray(seen.offsets)
    says: NDArray[np.int64] = np.asarray(seen.values.flatten()).reshape(-1, STEP + 1)
    rows = zip(*(table.column(name).to_pylist() for name in ("producer", "incarnation", "env", "episode")), strict=True)
    for row, (producer, incarnation, env, episode) in enumerate(rows):
        own = says[bounds[row] - bounds[0] : bounds[row + 1] - bounds[0]]
        starts.setdefault((producer, incarnation), set()).update(own[:, START].tolist())
        expected = np.empty_like(own)
        expected[:, PRODUCER] = int(producer.rpartition("-")[2])
        expected[:, START] = own[0, START]
        expected[:, ENV] = env
        expected[:, EPISODE] = episode
        expected[:, STEP] = np.arange(len(own))
        if not np.array_equal(own, expected):
            step = int((own != expected).any(axis=1).argmax())
            found.append(f"{producer}/{incarnation}/{env}/{episode} holds {own[step].tolist()} as step {step}")


def bad_ends(log_file: Path, statuses: Sequence[int | None]) -> list[str]:
    """How a pod's processes ended, by their exit statuses and their log, and should not have.

    A process that ends with 1 tells why, and that must be what a schedule can cause.
    """
    name, lines = log_file.stem, _lines(log_file)
    errors = [line for line in lines if line.startswith("error: ")]
    raised = tracebacks(log_file)
    found = [f"{name}: {line}" for line in errors if not any(caused.fullmatch(line) for caused in _CAUSED)]
    if bad := [status for status in statuses if status not in {*_CLEAN, _TOLD}]:
        found.append(f"{name} ended with {bad}; see {log_file}")
    if list(statuses).count(_TOLD) > len(errors) + len(raised):
        found.append(f"{name} ended with {_TOLD}, and did not tell why each time; see {log_file}")
    return [*found, *raised]


def tracebacks(log_file: Path) -> list[str]:
    """Errors that nobody raised on purpose, by the last line of each."""
    # The first line after a traceback that is not indented names the error.
    found = []
    inside = False
    for line in _lines(log_file):
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and not line.startswith(" "):
            inside = False
            found.append(f"{log_file.name}: {line}")
    return found


def _lines(log_file: Path) -> list[str]:
    """The lines of a log; none of a pod that was never started."""
    return log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
