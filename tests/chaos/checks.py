"""What is asked of a run when all is still."""

from __future__ import annotations

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


def tracebacks(log_file: Path) -> list[str]:
    """Errors that nobody raised on purpose, by the last line of each."""
    if not log_file.exists():
        return []
    lines = log_file.read_text(errors="replace").splitlines()
    # The first line after a traceback that is not indented names the error.
    found = []
    inside = False
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and not line.startswith(" "):
            inside = False
            found.append(f"{log_file.name}: {line}")
    return found
