"""Random stores of episodes that were cut, of any spaces, and what the policy saw of each by the whole truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.store import layout, segments
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import list_column
from penstock_schemas.connectors import Trajectories, observed
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.spaces import leaves
from penstock_schemas.stream import StreamSpec
from tests.consumers.stores import Episodes, Writer
from tests.schemas.test_connectors_equal import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.spaces import Leaves, Space

LONGEST = 7


@dataclass(eq=False)
class Part:
    """One stored episode, and where it lies among the steps from the reset on."""

    key: tuple[str, int, int, int]
    continues: int | None
    begin: int
    length: int
    ends: Ends
    chunks: list[tuple[int, int]]
    """The first step of each, and the place of the version that acted."""
    whole: Whole
    stored: bool = True

    @property
    def id(self) -> str:
        return "/".join(map(str, self.key))

    def shown(self, reach: int, stored: set[str]) -> bool:
        """Whether what is stored has as many steps before it as connectors of this reach look back at."""
        place, steps = self.whole.parts.index(self), 0
        while place and steps < reach:
            place -= 1
            before = self.whole.parts[place]
            if before.id not in stored or before.ends != Ends.CUT:
                return False
            steps += before.length
        return True


@dataclass(eq=False)
class Whole:
    """What happened from a reset on."""

    observation: Leaves
    action: Leaves
    reward: NDArray[Any]
    version: NDArray[np.int64]
    parts: list[Part] = field(default_factory=list)

    def seen(self, part: Part, pipeline: Pipeline, versions: Sequence[Any] | None) -> Leaves:
        """What the policy saw of a part; by the pipeline's own parameters where no versions are given."""
        end = part.begin + part.length
        trajectories = Trajectories(
            np.array([end]),
            np.array([0]),
            tuple(leaf[: end + 1] for leaf in self.observation),
            tuple(leaf[:end] for leaf in self.action),
            self.reward[:end],
            self.version[:end] if versions else np.zeros(end, np.int64),
        )
        return tuple(leaf[part.begin :] for leaf in observed(pipeline, trajectories, versions or [pipeline.weights]))


def stream(observation: Space, action: Space, connectors: Sequence[Any] = ()) -> StreamSpec:
    return StreamSpec(
        stream="test",
        observation=observation,
        action=action,
        reward_dtype=np.dtype(np.float64),
        env={"id": "Test-v0"},
        policy={"connectors": list(connectors)},
    )


def publish(bucket: Bucket, pipeline: Pipeline, count: int, rng: np.random.Generator) -> list[PolicyRecord]:
    """Store versions with other parameters, of which two have one number; that of 0 is not stored, and the first."""
    records = [PolicyRecord(0, pipeline.weights)]
    for version in (max(1, at - 1) for at in range(1, count)):
        changed = {
            name: np.asarray(0.5 + rng.random() * rng.random(value.shape), value.dtype)
            for name, value in pipeline.weights.items()
        }
        records.append(PolicyRecord(version, {**changed, "weight": rng.standard_normal(3).astype(np.float32)}))
        bucket.put(layout.POLICIES + records[-1].object_name, records[-1].to_safetensors())
    return records


def rolled_out(
    spec: StreamSpec, versions: int, rng: np.random.Generator, *, envs: int = 2, episodes: int = 3, holes: bool = False
) -> list[Whole]:
    """Some episodes of each env, most of them cut; where there are `holes`, not all parts are stored whole."""
    found = []
    for env in range(envs):
        number = 0
        for _ in range(episodes):
            parts = int(rng.integers(1, 5))
            lengths = rng.integers(1, LONGEST, parts)
            steps = int(lengths.sum())
            whole = Whole(
                tuple(values_of(leaf.space, steps + 1, rng) for leaf in leaves(spec.observation)),
                tuple(values_of(leaf.space, steps, rng) for leaf in leaves(spec.action)),
                rng.standard_normal(steps),
                np.sort(rng.integers(0, versions, steps)),
            )
            for at, length in enumerate(lengths.tolist()):
                begin = int(lengths[:at].sum())
                last = at == parts - 1
                ends = Ends(int(rng.choice([1, 2, 3, 4, 8]))) if last else Ends.CUT
                stored = True
                if holes and rng.random() < 0.25:
                    stored = bool(rng.random() < 0.5)
                    ends = Ends.ABORTED
                of_steps = whole.version[begin : begin + length]
                new = (np.diff(of_steps, prepend=-1) != 0) | (rng.random(length) < 0.2)
                chunks = [(int(step), int(of_steps[step])) for step in np.flatnonzero(new)]
                if ends == Ends.ABORTED and rng.random() < 0.5:
                    chunks.append((length, versions - 1))
                key = (f"pod/{env % 2}", 7, env, number)
                whole.parts.append(Part(key, number - 1 if at else None, begin, length, ends, chunks, whole, stored))
                number += 1
            found.append(whole)
            number += int(rng.integers(0, 2))
    return found


def commit(
    writer: Writer,
    parts: Sequence[Part],
    records: Sequence[PolicyRecord],
    rng: np.random.Generator,
    high_water: int = 0,
) -> int:
    """Store parts in random order, in random segments, in the partitions of their producers; gives the high water."""
    for partition in (0, 1):
        own = [part for part in parts if part.key[0] == f"pod/{partition}" and part.stored]
        rng.shuffle(own)  # type: ignore[arg-type]  # a list is shuffled as an array is
        while own:
            size = int(rng.integers(1, len(own) + 1))
            some, own = own[:size], own[size:]
            writer.commit(partition, batch_of(writer.spec, some, records, high_water), high_water=high_water + size)
            high_water += size
    return high_water


def batch_of(spec: StreamSpec, parts: Sequence[Part], records: Sequence[PolicyRecord], closed: int = 0) -> Episodes:
    length = np.array([part.length for part in parts])
    chunks = [chunk for part in parts for chunk in part.chunks]
    offsets = pa.array(_offsets([len(part.chunks) for part in parts]))
    per_chunk = {
        "chunk_first_step": pa.array([step for step, _ in chunks], pa.int64()),
        "policy_version": pa.array([records[at].version for _, at in chunks], pa.int64()),
        "policy_digest": pa.array([records[at].digest for _, at in chunks], pa.binary(32)),
        "exploration": pa.array([0] * len(chunks), pa.uint8()),
    }
    producer, incarnation, env, episode = zip(*(part.key for part in parts), strict=True)
    items: dict[str, list[Any]] = {column.name: [] for column in spec.columns}
    for part in parts:
        end = part.begin + part.length
        for column, leaf in zip(spec.observation_columns, part.whole.observation, strict=True):
            items[column.name].append(leaf[part.begin : end + 1])
        for column, leaf in zip(spec.action_columns, part.whole.action, strict=True):
            items[column.name].append(leaf[part.begin : end])
        items["reward"].append(part.whole.reward[part.begin : end])
    schema = segments.episode_schema(spec)
    columns: dict[str, Any] = {
        "producer": pa.array(producer),
        "incarnation": pa.array(incarnation, pa.int64()),
        "env": pa.array(env, pa.int32()),
        "episode": pa.array(episode, pa.int64()),
        "length": pa.array(length, pa.int64()),
        "return": pa.array([float(values.sum()) for values in items["reward"]], pa.float64()),
        "ends": pa.array([part.ends.value for part in parts], pa.uint8()),
        "abort_reason": pa.array(["gap" if part.ends == Ends.ABORTED else None for part in parts], pa.string()),
        "seed": pa.nulls(len(parts), pa.int64()),
        "reset_options": pa.nulls(len(parts), pa.string()),
        "continues": pa.array([part.continues for part in parts], pa.int64()),
        "opened_offset": pa.array(np.zeros(len(parts), np.int64)),
        "closed_offset": pa.array(closed + np.arange(len(parts))),
        "closed_ms": pa.array(1_000 + np.arange(len(parts))),
        **{name: pa.ListArray.from_arrays(offsets, of, type=schema.field(name).type) for name, of in per_chunk.items()},
        **{
            column.name: list_column(
                column, np.concatenate(items[column.name]).astype(column.dtype), _offsets(length + column.overlap)
            )
            for column in spec.columns
        },
    }
    batch = pa.record_batch([columns[name] for name in schema.names], schema=schema)
    batch.validate(full=True)
    ends = np.array([part.ends.value for part in parts], np.uint8)
    return Episodes(spec, batch, length, ends, 0)


def _offsets(lengths: Any) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
