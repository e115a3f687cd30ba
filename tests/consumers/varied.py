"""Stores of episodes that differ in all that one can ask for, and what one must then be given."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock_consumers.store import segments
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from tests.consumers.messages import WrappedBucket
from tests.consumers.stores import CHUNK_STEPS, Episodes, Writer, episodes, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_consumers.store.bucket import Bucket

WAYS = (Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)
NUMBERS = (-1.5, 0.0, 2.0, 7.25, math.inf, -math.inf, math.nan)
PRODUCERS = ("a", "b", "c")
SPEC = replace(stream(), metrics=("score", "laps"))


@dataclass(frozen=True)
class Told:
    """An episode, as one would tell it."""

    length: int = 3
    versions: tuple[int, ...] = (1,)
    """Of its chunks; the last of the later ones too."""
    return_: float = 0.0
    ends: Ends = Ends.TERMINATED
    producer: str = "producer-0"
    closed_ms: int = 0
    score: float | None = None
    stepless: int | None = None
    """The version of a last chunk without a step, as an aborted episode may have."""

    def version(self, step: int) -> int:
        """That chose the action at a step."""
        return self.versions[min(step // CHUNK_STEPS, len(self.versions) - 1)]

    def chunk_versions(self) -> list[int]:
        """Those of all its chunks."""
        acted = [self.version(step) for step in range(0, self.length, CHUNK_STEPS)]
        return acted if self.stepless is None else [*acted, self.stepless]

    def chunk_starts(self) -> list[int]:
        """The step at which each chunk begins."""
        acted = list(range(0, self.length, CHUNK_STEPS))
        return acted if self.stepless is None else [*acted, self.length]


class Opened(WrappedBucket):
    """A bucket that keeps the names of the segments that are opened."""

    def __init__(self) -> None:
        super().__init__(open_bucket("memory://"))
        self.names: list[str] = []

    def read(self, name: str) -> pa.Buffer:
        if name.startswith("segments/"):
            self.names.append(name)
        return super().read(name)


def store(bucket: Bucket, told: Sequence[tuple[int, Sequence[Told]]]) -> dict[int, Told]:
    """Commit segments, each a partition and its episodes; answer these by number, in the order of a reader."""
    writer = Writer(bucket, SPEC)
    first = 0
    numbered: dict[int, list[tuple[int, Told]]] = {}
    for place, (partition, of) in enumerate(told):
        writer.commit(partition, stored(of, first, closed_offset=place))
        numbered.setdefault(partition, []).extend(enumerate(of, first))
        first += len(of)
    return dict(item for partition in sorted(numbered) for item in numbered[partition])


def stored(told: Sequence[Told], first: int, *, closed_offset: int | Sequence[int] = 0) -> Episodes:
    """Make the episodes of a segment."""
    made = episodes(stream(), [of.length for of in told], first=first, ends=[of.ends for of in told])
    others: dict[str, Any] = {
        "producer": [of.producer for of in told],
        "return": [of.return_ for of in told],
        "closed_offset": np.broadcast_to(closed_offset, len(told)),
        "closed_ms": [of.closed_ms for of in told],
        "policy_version": [of.chunk_versions() for of in told],
        "chunk_first_step": [of.chunk_starts() for of in told],
        "policy_digest": [[bytes([version]) * 32 for version in of.chunk_versions()] for of in told],
        "exploration": [[0] * len(of.chunk_versions()) for of in told],
        "metric.score": [of.score for of in told],
        "metric.laps": [None] * len(told),
    }
    schema = segments.episode_schema(SPEC)
    columns = [
        pa.array(others[name], schema.field(name).type) if name in others else made.batch.column(name)
        for name in schema.names
    ]
    return replace(made, spec=SPEC, batch=pa.record_batch(columns, schema=schema))


told = st.builds(
    Told,
    length=st.integers(1, 11),
    versions=st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    return_=st.sampled_from(NUMBERS),
    ends=st.sampled_from(WAYS),
    producer=st.sampled_from(PRODUCERS),
    closed_ms=st.integers(0, 5).map(lambda half: 1_700_000_000_000 + 500 * half),
    score=st.none() | st.sampled_from(NUMBERS),
    stepless=st.none() | st.integers(0, 6),
)
stores = st.lists(st.tuples(st.integers(0, 1), st.lists(told, min_size=1, max_size=4)), min_size=1, max_size=4)


def wanted(told: dict[int, Told], asked: dict[str, Any]) -> list[tuple[int, int]]:
    """The episode and the step of all that a `Where` of `asked` leaves, told one by one."""
    # A chunk without a step says nothing of any step.
    newest_version = max((of.version(step) for of in told.values() for step in range(of.length)), default=0)
    newest_ms = max((of.closed_ms for of in told.values()), default=0)
    of_episode: dict[str, Callable[[Told], float]] = {
        "age_seconds": lambda of: (newest_ms - of.closed_ms) / 1000,
        "return_": lambda of: of.return_,
        "length": lambda of: of.length,
    }

    def fulfils(of: Told) -> bool:
        producer = asked.get("producer", of.producer)
        return (
            all(_within(measure(of), asked[name]) for name, measure in of_episode.items() if name in asked)
            and bool(of.ends & asked.get("ends", of.ends))
            and of.producer in ([producer] if isinstance(producer, str) else producer)
            and all(
                _within(of.score if name == "score" else None, pair) for name, pair in asked.get("metrics", {}).items()
            )
        )

    def step_fulfils(version: int) -> bool:
        measured = {"policy_version": version, "versions_behind": newest_version - version}
        return all(_within(value, asked[name]) for name, value in measured.items() if name in asked)

    return [
        (number, step)
        for number, of in told.items()
        if fulfils(of)
        for step in range(of.length)
        if step_fulfils(of.version(step))
    ]


def _within(value: float | None, pair: tuple[float | None, float | None]) -> bool:
    least, most = pair
    if value is None or math.isnan(value):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def places(batch: dict[str, np.ndarray[Any, Any]]) -> list[tuple[int, int]]:
    """The episode and the step of each item of a batch, by its observations."""
    return [(int(number), int(step)) for number, step in batch["observation"][:, :2].tolist()]
