"""What a store holds, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay import snapshot
from penstock_consumers.store import commits, segments
from penstock_schemas.chunks import Ends, fixed
from penstock_schemas.columns import list_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Live

# How many values a byte has.
_BYTES = 256
_COLUMNS = ("ends", "continues", "return", "length", "policy_version")
# By the value of the byte, the other ways to end being no episode's.
ENDS = {
    "terminated": Ends.TERMINATED,
    "truncated": Ends.TRUNCATED,
    "terminated_and_truncated": Ends.TERMINATED | Ends.TRUNCATED,
    "aborted": Ends.ABORTED,
    "cut": Ends.CUT,
}


def describe(bucket: Bucket) -> dict[str, Any]:
    """Describe a store at its newest commits, in values that JSON has.

    `stream`, `env`, `policy`, `observation`, `action`, `reward`, `extras` and `infos` are what the stream was described
    as. `partitions` are by number; `episodes` and `steps` count everything, `ends` counts episodes by how they ended.
    `policies` has an item a version that chose the last action of whole episodes (neither aborted, nor parts of one
    that was cut), with their number, mean return and mean length. `retired` is what retention has removed, `counters`
    are the sums over the partitions. Raises `StoreError` where there is no store.
    """
    spec = snapshot.existing(bucket).spec
    found = list(commits.newest_of_each(bucket))
    partitions = [(commit, commits.live_at(bucket, commit)) for commit in found]
    ends = np.zeros(_BYTES, np.int64)
    policies: dict[int, NDArray[np.float64]] = {}
    counters: Counter[str] = Counter()
    schema = segments.episode_schema(spec)
    for commit, live in partitions:
        counters.update(commit.counters)
        for entry in live.segments:
            for batch in segments.batches(bucket, entry, schema, columns=_COLUMNS):
                ends += np.bincount(fixed(batch, "ends"), minlength=_BYTES)
                _count_policies(batch, policies)
    return {
        "store": bucket.url,
        **spec.to_json(),
        "partitions": [_partition(commit, live) for commit, live in partitions],
        "episodes": sum(entry.rows for _, live in partitions for entry in live.segments),
        "steps": sum(entry.steps for _, live in partitions for entry in live.segments),
        "ends": {name: int(ends[value]) for name, value in ENDS.items()},
        "policies": [
            {
                "policy_version": version,
                "episodes": int(count),
                "mean_return": returned / count,
                "mean_length": length / count,
            }
            for version, (count, returned, length) in sorted(policies.items())
        ],
        "retired": {
            "episodes": sum(commit.retired.episodes for commit in found),
            "steps": sum(commit.retired.steps for commit in found),
        },
        "counters": dict(sorted(counters.items())),
    }


def _partition(commit: Commit, live: Live) -> dict[str, Any]:
    return {
        "partition": commit.partition,
        "commit": commit.number,
        "high_water": commit.high_water,
        "segments": len(live.segments),
        "episodes": sum(entry.rows for entry in live.segments),
        "steps": sum(entry.steps for entry in live.segments),
        "bytes": sum(entry.bytes for entry in live.segments),
        "open_steps": sum(entry.steps for entry in live.open),
        "open_bytes": sum(entry.bytes for entry in live.open),
    }


def _count_policies(batch: pa.RecordBatch, policies: dict[int, NDArray[np.float64]]) -> None:
    """Add the number, the returns and the lengths of whole episodes to those of the versions that ended them."""
    ended = (fixed(batch, "ends") & (Ends.TERMINATED | Ends.TRUNCATED)) != 0
    whole = ended & batch.column("continues").is_null().to_numpy(zero_copy_only=False)
    chunks = batch.column("policy_version")
    last = chunks.values.to_numpy()[list_offsets(chunks)[1:] - 1][whole]
    versions, index, count = np.unique(last, return_inverse=True, return_counts=True)
    sums = [np.bincount(index, fixed(batch, name)[whole], len(versions)) for name in ("return", "length")]
    for version, added in zip(versions.tolist(), np.stack([count, *sums], axis=1), strict=True):
        policies[version] = policies.get(version, np.zeros(3)) + added
