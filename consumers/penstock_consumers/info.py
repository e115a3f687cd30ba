"""What a store holds, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay import snapshot
from penstock_schemas.chunks import Ends
from penstock_schemas.spaces import Dict, Discrete, Text, Tuple, space_from_json

if TYPE_CHECKING:
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Partition
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.spaces import Space

# By the value of the byte, the other ways to end being no episode's.
_ENDS = {
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
    that was cut), with their number, mean return and mean length. `counters` are the sums over the partitions. Raises
    `StoreError` where there is no store.
    """
    spec = snapshot.existing(bucket).spec
    at = snapshot.take(bucket, spec)
    ends = np.bincount(_joined(at.segments, "ends", np.uint8), minlength=max(_ENDS.values()) + 1)
    counters: Counter[str] = Counter()
    for partition in at.partitions.values():
        counters.update(partition.commit.counters)
    return {
        "store": bucket.url,
        **spec.to_json(),
        "partitions": [_partition(number, partition) for number, partition in at.partitions.items()],
        "episodes": int(at.first_episode[-1]),
        "steps": int(at.first_step[-1]),
        "ends": {name: int(ends[value]) for name, value in _ENDS.items()},
        "policies": _policies(at.segments),
        "counters": dict(sorted(counters.items())),
    }


def format_info(info: dict[str, Any]) -> str:
    """Lay out what `describe` answers as text for a person."""
    extras, infos = (", ".join(column["name"] for column in info[name]) or "none" for name in ("extras", "infos"))
    ends = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info["ends"].items() if count)
    return "\n".join(
        [
            f"store        {info['store']}",
            f"stream       {info['stream']}",
            f"env          {_inline(info['env'])}",
            f"policy       {_inline(info['policy'])}",
            f"observation  {_space(space_from_json(info['observation']))}",
            f"action       {_space(space_from_json(info['action']))}",
            f"reward       {info['reward']}",
            f"extras       {extras}",
            f"infos        {infos}",
            f"steps        {info['steps']:,}",
            f"episodes     {info['episodes']:,}{f' ({ends})' if ends else ''}",
            *_table(info["partitions"]),
            *_table(info["policies"]),
            *_table([{"counter": name, "count": count} for name, count in info["counters"].items()]),
        ]
    )


def _partition(number: int, at: Partition) -> dict[str, Any]:
    segments, still_open = at.live.segments, at.live.open
    return {
        "partition": number,
        "commit": at.commit.number,
        "high_water": at.commit.high_water,
        "segments": len(segments),
        "episodes": sum(entry.rows for entry in segments),
        "steps": sum(entry.steps for entry in segments),
        "bytes": sum(entry.bytes for entry in segments),
        "open_steps": sum(entry.steps for entry in still_open),
        "open_bytes": sum(entry.bytes for entry in still_open),
    }


def _policies(segments: tuple[Segment, ...]) -> list[dict[str, Any]]:
    ends = _joined(segments, "ends", np.uint8)
    parts = [segment.batch.column("continues").is_valid().to_numpy(zero_copy_only=False) for segment in segments]
    whole = ((ends & (Ends.TERMINATED | Ends.TRUNCATED)) != 0) & ~np.concatenate([np.empty(0, np.bool_), *parts])
    last = [segment.policy_version[segment.chunk_offsets[1:] - 1] for segment in segments]
    acted = np.concatenate([np.empty(0, np.int64), *last])[whole]
    versions, index, episodes = np.unique(acted, return_inverse=True, return_counts=True)
    returns, lengths = (
        np.bincount(index, _joined(segments, name, dtype)[whole], len(versions)) / episodes
        for name, dtype in (("return", np.float64), ("length", np.int64))
    )
    return [
        {"policy_version": version, "episodes": count, "mean_return": mean_return, "mean_length": mean_length}
        for version, count, mean_return, mean_length in zip(
            versions.tolist(), episodes.tolist(), returns.tolist(), lengths.tolist(), strict=True
        )
    ]


def _joined(segments: tuple[Segment, ...], name: str, dtype: type[np.generic]) -> np.ndarray[Any, np.dtype[Any]]:
    """A column of one primitive an episode, over all segments."""
    return np.concatenate([np.empty(0, dtype), *(segment.fixed(name) for segment in segments)])


def _space(space: Space) -> str:
    match space:
        case Dict():
            return f"Dict({', '.join(f'{key}: {_space(inner)}' for key, inner in space.spaces)})"
        case Tuple():
            return f"Tuple({', '.join(map(_space, space.spaces))})"
        case Discrete():
            return f"Discrete(n={space.n}, start={space.start})"
        case Text():
            return f"Text(at most {space.max_length} characters)"
        case _:
            return f"{type(space).__name__}({', '.join(map(str, space.shape))}) {space.dtype}"


def _inline(described: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in described.items()) or "not described"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Lay out rows of the same keys in columns below their names, after an empty line; nothing where there are none."""
    if not rows:
        return []
    cells = [[name.replace("_", " ") for name in rows[0]], *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["", *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)]


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
