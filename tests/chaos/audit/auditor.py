"""The independent auditor: log and store recounted with plain pyarrow and json, and none of our own reading code."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from tests.chaos.audit.recount import Recount
from tests.chaos.audit.report import Audit, Finding
from tests.chaos.audit.stored import partitions_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tests.chaos.audit.records import Acknowledged, LogRecord


def audit(
    records: Mapping[int, Sequence[LogRecord]],
    objects: Mapping[str, bytes],
    *,
    idle_limit_ms: int | Collection[int],
    dead_letters: Sequence[LogRecord] = (),
    ledger: Sequence[Acknowledged] = (),
    first_offsets: Mapping[int, int] | None = None,
) -> Audit:
    """Recount a log and a store.

    `records` are all records that anyone may have judged: where a scenario trims the log, those that it kept before;
    `first_offsets` says where the trimmed log begins, by partition, the highest it ever was. `idle_limit_ms` names
    the limit, or the limits, that consumers were given; each commit's records are judged by the one that it names.
    Whatever lies in the log but for ticks is expected to have been judged.
    """
    limits = {idle_limit_ms} if isinstance(idle_limit_ms, int) else set(idle_limit_ms)
    done = Audit()
    manifest = _manifest(objects, done)
    letters = _letters(dead_letters)
    for partition in sorted({*records, *partitions_in(objects)}):
        first = (first_offsets or {}).get(partition, 0)
        own = sorted(records.get(partition, ()), key=lambda record: record.offset)
        Recount(partition, own, objects, manifest, limits, first, done).audit(letters)
        _check_ledger(partition, own, [entry for entry in ledger if entry.partition == partition], first, done)
    return done


def _manifest(objects: Mapping[str, bytes], done: Audit) -> dict[str, Any]:
    if "store.json" not in objects:
        return {}
    manifest: dict[str, Any] = json.loads(objects["store.json"])
    canonical = json.dumps(manifest["spec"], sort_keys=True, separators=(",", ":")).encode()
    if hashlib.sha256(canonical).hexdigest() != manifest["fingerprint"]:
        done.findings.append(Finding(-1, "manifest", "store.json's fingerprint is not that of its description"))
    return manifest


def _letters(dead_letters: Sequence[LogRecord]) -> dict[bytes, list[LogRecord]]:
    letters: dict[bytes, list[LogRecord]] = {}
    for letter in dead_letters:
        letters.setdefault(letter.key or b"", []).append(letter)
    return letters


def _check_ledger(
    partition: int, records: Sequence[LogRecord], ledger: Sequence[Acknowledged], first: int, done: Audit
) -> None:
    """Every record that the log acknowledged is in the log, as it was sent."""
    lies = {record.offset: hashlib.sha256(record.value or b"").digest() for record in records}
    for entry in ledger:
        done.counts["acknowledged"] += 1
        if entry.offset not in lies:
            if entry.offset >= first:
                done.findings.append(Finding(partition, "ledger", f"offset {entry.offset} is not in the log"))
        elif lies[entry.offset] != entry.sha256:
            done.findings.append(Finding(partition, "ledger", f"offset {entry.offset} holds another value"))
