"""What a store holds, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.outcomes import Outcome, batches
from penstock_consumers.progress import Progress
from penstock_consumers.replay import snapshot
from penstock_consumers.store import commits
from penstock_consumers.summary import Summary
from penstock_schemas.chunks import Ends, fixed

if TYPE_CHECKING:
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit, Live

# How many values a byte has.
_BYTES = 256
# By the value of the byte, the other ways to end being no episode's.
ENDS = {
    "terminated": Ends.TERMINATED,
    "truncated": Ends.TRUNCATED,
    "terminated_and_truncated": Ends.TERMINATED | Ends.TRUNCATED,
    "aborted": Ends.ABORTED,
    "cut": Ends.CUT,
}


def describe(bucket: Bucket, progress: Progress | None = None) -> dict[str, Any]:
    """Describe a store at its newest commits, in values that JSON has; told from a few columns, read batch by batch.

    `stream`, `env`, `policy`, `observation`, `action`, `reward`, `extras` and `infos` are what the stream was described
    as. `partitions` are by number; `episodes` and `steps` count everything, a part of an episode that was cut as one;
    `ends` counts them by how they ended. `bytes` are those of the segments that live, `open` of what is open and
    `segments` of all else; what waits for collection, commits and weights come on top. `policies` has an item a version
    that chose the last action of whole episodes, of which aborted ones are none, and the parts of one that was cut are
    one if all are there: the number of these, the mean, standard deviation, least and most of their returns, and their
    mean length. `retired` is what retention has removed, `counters` are the sums over the partitions. `progress` is
    told of steps. Raises `StoreError` where there is no store.
    """
    progress = progress or Progress()
    spec = snapshot.existing(bucket).spec
    found = list(commits.newest_of_each(bucket))
    partitions = [(commit, commits.live_at(bucket, commit)) for commit in found]
    described = [_partition(commit, live) for commit, live in partitions]
    entries = [entry for _, live in partitions for entry in live.segments]
    sums = {name: sum(one[name] for one in described) for name in ("episodes", "steps", "bytes", "open_bytes")}
    progress.expect(sums["steps"])
    counters: Counter[str] = Counter()
    for commit in found:
        counters.update(commit.counters)
    ends, policies, outcome = np.zeros(_BYTES, np.int64), Summary(), Outcome()
    for batch in batches(bucket, spec, entries, progress):
        ends += np.bincount(fixed(batch, "ends"), minlength=_BYTES)
        version, return_, length, _ = outcome.of(batch)
        policies.add(version, return_, length)
    version, return_, length, _ = outcome.joined()
    policies.add(version, return_, length)
    return {
        "store": bucket.url,
        **spec.to_json(),
        "partitions": described,
        "episodes": sums["episodes"],
        "steps": sums["steps"],
        "bytes": {
            "segments": sums["bytes"],
            "open": sums["open_bytes"],
            "all": sums["bytes"] + sums["open_bytes"],
            "per_step": sums["bytes"] / sums["steps"] if sums["steps"] else None,
        },
        "ends": {name: int(ends[value]) for name, value in ENDS.items()},
        "policies": _policies(policies),
        "retired": {
            "episodes": sum(commit.retired.episodes for commit in found),
            "steps": sum(commit.retired.steps for commit in found),
        },
        "counters": dict(sorted(counters.items())),
    }


def _policies(summary: Summary) -> list[dict[str, Any]]:
    columns = {
        "policy_version": summary.group,
        "episodes": summary.episodes,
        "mean_return": summary.mean,
        "std_return": summary.std,
        "min_return": summary.least,
        "max_return": summary.most,
        "mean_length": summary.mean_length,
    }
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


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
