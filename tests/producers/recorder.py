"""What a fragment must give, recorded one env and one step at a time; and random answers of envs in any mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs import Rows
from penstock_schemas.chunks import Ends
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import Column, StreamSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_schemas.spaces import Space

Drawn = list[Any] | None
Answer = list[tuple[Rows, Drawn]]
MODES = ("next step", "same step", "asynchronous")


def spec_of(
    shape: tuple[int, ...] = (3,), dtype: type[np.generic] = np.float32, action: Space | None = None
) -> StreamSpec:
    """A stream with two extras, one of them with a rank."""
    extras = (Column("log_prob", (), np.dtype(np.float32)), Column("logits", (2,), np.dtype(np.float32)))
    action = action or Discrete(5, start=-2)
    return StreamSpec("test", Box(shape, np.dtype(dtype)), action, np.dtype(np.float64), extras)


@dataclass
class _Chunk:
    env: int
    episode: int
    chunk: int
    first_step: int
    seed: int | None
    observation: list[Any]
    columns: list[list[Any]]
    ends: int = 0

    def as_row(self, names: Sequence[str]) -> dict[str, Any]:
        fixed = ("env", "episode", "chunk", "first_step", "ends", "seed", "observation")
        return {name: getattr(self, name) for name in fixed} | dict(zip(names, self.columns, strict=True))


@dataclass
class Recorder:
    """Chunks of at most `longest` steps, told row by row."""

    spec: StreamSpec
    longest: int
    done: list[_Chunk] = field(default_factory=list)
    running: dict[int, _Chunk] = field(default_factory=dict)
    episodes: dict[int, int] = field(default_factory=dict)
    returns: dict[int, float] = field(default_factory=dict)
    finished: list[tuple[int, float, int]] = field(default_factory=list)

    def append(self, rows: Rows, drawn: Drawn) -> None:
        for i, env in enumerate(rows.env.tolist()):
            observation = _plain(rows.observation[i])
            if rows.first[i]:
                self.episodes[env] = self.episodes.get(env, -1) + 1
                self.returns[env] = 0.0
                seed = None if rows.seed is None else int(rows.seed[i])
                self._begin(env, 0, 0, seed, observation)
                continue
            if len(self.running[env].columns[0]) == self.longest:
                self._go_on(env)
            chunk = self.running[env]
            chunk.observation.append(observation)
            assert drawn is not None
            action, *extras = (_plain(column[i]) for column in drawn)
            for column, value in zip(chunk.columns, (action, _plain(rows.reward[i]), *extras), strict=True):
                column.append(value)
            self.returns[env] += float(rows.reward[i])
            chunk.ends = Ends.TERMINATED * int(rows.terminated[i]) + Ends.TRUNCATED * int(rows.truncated[i])
            if chunk.ends:
                self.finished.append((env, self.returns[env], chunk.first_step + len(chunk.columns[0])))
                self.done.append(self.running.pop(env))

    def close(self) -> tuple[list[dict[str, Any]], list[tuple[int, float, int]]]:
        """The chunk rows in their order, and (env, return, length) of the episodes that ended."""
        for env in list(self.running):
            self._go_on(env)
        names = [column.name for column in self.spec.columns[1:]]
        rows = sorted(self.done, key=lambda chunk: chunk.env)
        finished = sorted(self.finished, key=lambda episode: episode[0])
        self.done, self.finished = [], []
        return [chunk.as_row(names) for chunk in rows], finished

    def _begin(self, env: int, number: int, first_step: int, seed: int | None, observation: Any) -> None:
        columns: list[list[Any]] = [[] for _ in self.spec.columns[1:]]
        self.running[env] = _Chunk(env, self.episodes[env], number, first_step, seed, [observation], columns)

    def _go_on(self, env: int) -> None:
        chunk = self.running[env]
        steps = len(chunk.columns[0])
        if steps:
            self.done.append(chunk)
            self._begin(env, chunk.chunk + 1, chunk.first_step + steps, None, chunk.observation[-1])


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """A batch's rows, with what the recorder tells."""
    left_out = ("abort_reason", "reset_options", "policy_version", "policy_digest", "exploration")
    return [{name: value for name, value in row.items() if name not in left_out} for row in batch.to_pylist()]


def answers(spec: StreamSpec, num_envs: int, mode: str, rng: np.random.Generator, end: float) -> Iterator[Answer]:
    """A reset, then steps without end: what an env in one of `MODES` answers, all values drawn at random.

    A step ends its episode with probability `end`. What is meaningless in a reset row is garbage.
    """
    every = np.arange(num_envs, dtype=np.int32)
    yield [(_resets(spec, every, rng, seeded=bool(rng.integers(2))), None)]
    done = np.zeros(num_envs, np.bool_)
    while True:
        env = every if mode != "asynchronous" else every[rng.random(num_envs) < 0.5]
        first = done[env] if mode != "same step" else np.zeros(len(env), np.bool_)
        way = rng.integers(1, 4, len(env)) * (rng.random(len(env)) < end) * ~first
        rows = Rows(
            env, _values(spec.columns[0], len(env), rng), rng.random(len(env)), way % 2 == 1, way > 1, first, None
        )
        rows.reward[first] = np.nan
        drawn = [_values(column, len(env), rng) for column in (spec.columns[1], *spec.columns[3:])]
        if isinstance(spec.action, Discrete):
            drawn[0] = rng.integers(spec.action.start, spec.action.start + spec.action.n, len(env))
        answer: Answer = [(rows, drawn)]
        if mode == "same step" and way.any():
            answer.append((_resets(spec, env[way > 0], rng, seeded=bool(rng.integers(2))), None))
        done[env] = way > 0
        yield answer


def _resets(spec: StreamSpec, env: NDArray[np.int32], rng: np.random.Generator, *, seeded: bool) -> Rows:
    n = len(env)
    never, always = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    seed = rng.integers(1 << 40, size=n) if seeded else None
    return Rows(env, _values(spec.columns[0], n, rng), np.full(n, np.nan), never, never, always, seed)


def _values(column: Column, n: int, rng: np.random.Generator) -> NDArray[Any]:
    return (rng.random((n, *column.shape)) * 250).astype(column.dtype)


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.reshape(-1).tolist() if array.shape else array.item()
