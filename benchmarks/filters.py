"""How fast a condition is where one segment in a hundred can fulfil it, beside a scan of them all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.figure import Figure, paired
from benchmarks.transitions import FIELDS
from penstock_consumers.replay import Where, snapshot
from penstock_consumers.replay.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.store.bucket import Bucket

_ROUNDS = 7
_LEAST = 20


def one_in_a_hundred(bucket: Bucket) -> Iterator[Figure]:
    """Scan the steps that one version chose, of a hundred that have a segment each, in turn with scanning them all."""
    newest = Where(versions_behind=(None, 0))
    ours, reference, ratio = paired(lambda: _speed(bucket, newest), lambda: _speed(bucket, Where()), _ROUNDS)
    name = "a scan of the one segment in a hundred that fulfils a condition (reference: a scan of all)"
    yield Figure(
        name, round(ours, 1), "scans/s", round(reference, 2), round(ratio, 1), f">= {_LEAST} x", ratio >= _LEAST
    )


def _speed(bucket: Bucket, where: Where) -> float:
    """Scan five fields of a store of which no segment is open; answer scans per second."""
    spec = snapshot.existing(bucket).spec
    at = snapshot.take(bucket, spec)
    started = time.perf_counter()
    for _ in scan(at, spec, where, columns=FIELDS):
        pass
    return 1.0 / (time.perf_counter() - started)
