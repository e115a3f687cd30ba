"""What a fragment must give, recorded one env and one step at a time; and random answers of envs of any kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_producers.envs.rows import Abort, Answer, Rows
from penstock_producers.fragment import Recording
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import Column
from penstock_schemas.ipc import to_ipc
from penstock_schemas.spaces import Box, Dict, Discrete, Leaf, Text, Tuple, leaves
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_producers.fragment import ActingPolicy
    from penstock_schemas.spaces import Space

MODES = ("next step", "same step", "asynchronous")
FINAL = "final_value"
FLOAT = np.dtype(np.float32)
_TEXT = 4


def spec_of(
    shape: tuple[int, ...] = (3,), dtype: type[np.generic] = np.float32, action: Space | None = None
) -> StreamSpec:
    """A stream with two extras, one of them with a rank."""
    extras = (Column("log_prob", (), np.dtype(np.float32)), Column("logits", (2,), np.dtype(np.float32)))
    action = action or Discrete(5, start=-2)
    return StreamSpec("test", Box(shape, np.dtype(dtype)), action, np.dtype(np.float64), extras)


def nested_spec() -> StreamSpec:
    """A stream of nested observations and actions, with infos."""
    box = Box((2,), np.dtype(np.float32))
    observation = Dict((("camera", Box((2, 2), np.dtype(np.uint8))), ("rest", Tuple((Discrete(4), Text(_TEXT), box)))))
    action = Tuple((Discrete(3), box))
    infos = (
        Column("info.mask", (2,), np.dtype(np.int8), overlap=True, nullable=True),
        Column("info.note", (), np.dtype(object), overlap=True, nullable=True),
    )
    return StreamSpec("test", observation, action, np.dtype(np.float64), (), infos)


def recurrent_spec() -> StreamSpec:
    """A stream of a recurrent policy: states, extras that may be absent, a final value, metrics."""
    extras = (
        Column("logits", (2,), FLOAT),
        Column("log_prob", (), FLOAT, nullable=True),
        Column("place", (2,), np.dtype(np.int16), nullable=True),
        Column(FINAL, (), FLOAT, nullable=True),
    )
    states = (Column("state.0", (2, 2), FLOAT), Column("state.1", (), np.dtype(np.int64)))
    box = Box((3,), FLOAT)
    return StreamSpec("test", box, box, np.dtype(np.float64), extras, (), states, ("score", "laps"))


def recording_of(spec: StreamSpec) -> Recording:
    """The recording of a policy that gives the stream's own columns; the final value, where there is one, later."""
    if not _final(spec):
        return Recording.plain(spec)
    return Recording((*spec.action_columns, *spec.extras[:-1]), lambda values: values, FINAL)


def _final(spec: StreamSpec) -> bool:
    return bool(spec.extras) and spec.extras[-1].name == FINAL


class Sent(NamedTuple):
    """Actions that envs take, and the recurrent states in which the policy chose them."""

    env: NDArray[np.int32]
    drawn: list[NDArray[Any]]
    state: list[NDArray[Any]]


@dataclass
class _Chunk:
    env: int
    episode: int
    chunk: int
    first_step: int
    seed: int | None
    reset_options: str | None
    continues: int | None
    overlapping: list[list[Any]]
    columns: list[list[Any]]
    state: list[Any]
    metrics: list[Any]
    policy: ActingPolicy | None = None
    ends: int = 0
    abort_reason: str | None = None

    @property
    def steps(self) -> int:
        return len(self.columns[0])


class Finished(NamedTuple):
    env: int
    total: float
    length: int
    version: int


@dataclass
class Recorder:
    """Chunks of at most `longest` steps, told row by row; episodes are cut after `cut_steps`."""

    spec: StreamSpec
    longest: int
    cut_steps: int | None = None
    done: list[_Chunk] = field(default_factory=list)
    running: dict[int, _Chunk] = field(default_factory=dict)
    episodes: dict[int, int] = field(default_factory=dict)
    totals: dict[int, tuple[float, int]] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    pending: dict[int, tuple[ActingPolicy, list[Any], list[Any]]] = field(default_factory=dict)
    policy: ActingPolicy | None = None

    def use(self, policy: ActingPolicy) -> None:
        self.policy = policy

    def sent(self, sent: Sent) -> None:
        assert self.policy is not None
        for i, env in enumerate(sent.env.tolist()):
            drawn, state = ([_plain(column[i]) for column in columns] for columns in (sent.drawn, sent.state))
            self.pending[env] = self.policy, drawn, state

    def append(self, answer: Answer) -> None:
        if answer.steps is not None:
            self._append(answer.steps)
        for abort in answer.aborts:
            self._abort(abort)
        if answer.resets is not None:
            self._append(answer.resets)

    def _append(self, rows: Rows) -> None:
        for i, env in enumerate(rows.env.tolist()):
            seen = [_plain(leaf[i]) for leaf in rows.observation]
            seen += [_plain(values[i]) if valid[i] else None for values, valid in rows.infos]
            if rows.first[i]:
                self.totals[env] = 0.0, 0
                seed = None if rows.seed is None or rows.seed[i] < 0 else int(rows.seed[i])
                options = None if rows.options is None else rows.options[i]
                self._begin(env, 0, 0, seen, seed=seed, options=options)
                continue
            self._step(env, seen, rows, i)

    def _step(self, env: int, seen: list[Any], rows: Rows, i: int) -> None:
        policy, drawn, state = self.pending.pop(env)
        if self.running[env].steps and (
            self.running[env].steps == self.longest or self.running[env].policy is not policy
        ):
            self._go_on(env)
        chunk = self.running[env]
        chunk.policy = policy
        if not chunk.steps:
            chunk.state = state
        drawn = self._recorded(policy, drawn, rows, i)
        for column, value in zip(chunk.overlapping, seen, strict=True):
            column.append(value)
        for column, value in zip(chunk.columns, (_plain(rows.reward[i]), *drawn), strict=True):
            column.append(value)
        total, length = self.totals[env]
        self.totals[env] = total, length = total + float(rows.reward[i]), length + 1
        chunk.ends = Ends.TERMINATED * int(rows.terminated[i]) + Ends.TRUNCATED * int(rows.truncated[i])
        if chunk.ends:
            if rows.metrics is not None:
                chunk.metrics = [None if np.isnan(value) else value for value in rows.metrics[i].tolist()]
            self.finished.append(Finished(env, total, length, policy.version))
            self._end(env)
        elif self.cut_steps is not None and chunk.first_step + chunk.steps == self.cut_steps:
            chunk.ends = Ends.CUT
            self._end(env)
            self._begin(env, 0, 0, [column[-1] for column in chunk.overlapping], continues=chunk.episode)

    def _recorded(self, policy: ActingPolicy, drawn: list[Any], rows: Rows, i: int) -> list[Any]:
        """What is recorded of a step: what its policy leaves out is not."""
        if _final(self.spec):
            value = np.nan if rows.final is None else float(rows.final[i])
            drawn = [*drawn, None if np.isnan(value) else value]
        actions = len(self.spec.action_columns)
        extras = zip(self.spec.extras, drawn[actions:], strict=True)
        return [*drawn[:actions], *(None if extra.name in policy.absent else value for extra, value in extras)]

    def _abort(self, abort: Abort) -> None:
        chunk = self.running.get(abort.env)
        if chunk is None:
            return
        if not chunk.steps and not chunk.chunk:
            del self.running[abort.env]
            return
        if not chunk.steps:
            chunk.policy = self.policy
        chunk.ends, chunk.abort_reason = Ends.ABORTED, abort.reason
        self._end(abort.env)

    def _end(self, env: int) -> None:
        self.done.append(self.running.pop(env))
        self.episodes[env] = self.episodes.get(env, 0) + 1

    def close(self) -> tuple[list[dict[str, Any]], list[Finished]]:
        """The chunk rows in their order, and the episodes that ended by themselves."""
        for env in list(self.running):
            if self.running[env].steps:
                self._go_on(env)
        rows = sorted(self.done, key=lambda chunk: chunk.env)
        finished = sorted(self.finished, key=lambda episode: episode.env)
        self.done, self.finished = [], []
        return [self._row(chunk) for chunk in rows], finished

    def _row(self, chunk: _Chunk) -> dict[str, Any]:
        fixed = ("env", "episode", "chunk", "first_step", "ends", "seed", "reset_options", "continues", "abort_reason")
        assert chunk.policy is not None
        overlapping = [column.name for column in self.spec.columns if column.overlap]
        plain = ["reward", *(column.name for column in (*self.spec.action_columns, *self.spec.extras))]
        return (
            {name: getattr(chunk, name) for name in fixed}
            | dict(zip(overlapping, chunk.overlapping, strict=True))
            | dict(zip(plain, chunk.columns, strict=True))
            | dict(zip((state.name for state in self.spec.states), chunk.state, strict=True))
            | dict(zip((metric.name for metric in self.spec.metric_columns), chunk.metrics, strict=True))
            | {
                "policy_version": chunk.policy.version,
                "policy_digest": chunk.policy.digest,
                "exploration": chunk.policy.exploration,
            }
        )

    def _begin(
        self,
        env: int,
        number: int,
        first_step: int,
        seen: list[Any],
        *,
        seed: int | None = None,
        options: str | None = None,
        continues: int | None = None,
    ) -> None:
        columns: list[list[Any]] = [[] for column in self.spec.columns if not column.overlap]
        self.running[env] = _Chunk(
            *(env, self.episodes.get(env, 0), number, first_step, seed, options, continues),
            [[value] for value in seen],
            columns,
            # Of a chunk without a step.
            [_plain(np.zeros(state.shape, state.dtype)) for state in self.spec.states],
            [None] * len(self.spec.metrics),
        )

    def _go_on(self, env: int) -> None:
        chunk = self.running[env]
        self.done.append(chunk)
        seen = [column[-1] for column in chunk.overlapping]
        self._begin(env, chunk.chunk + 1, chunk.first_step + chunk.steps, seen)


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of all messages."""
    return [row for batch in batches for row in batch.to_pylist()]


def received(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches as a reader has them, which of the arrays that they are parts of sees no more."""
    return [pa.ipc.open_stream(to_ipc(batch)).read_next_batch() for batch in batches]


def answers(
    spec: StreamSpec, num_envs: int, mode: str, rng: np.random.Generator, end: float, fault: float = 0.0
) -> Iterator[Answer | Sent]:
    """A reset, then in turn the actions that envs take and what they answer; all values drawn at random.

    A step ends its episode with probability `end`, and a fault comes in its stead with `fault`. What is meaningless in
    a reset row is garbage.
    """
    every = np.arange(num_envs, dtype=np.int32)
    ready, down, done = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
    yield _answer(None, (), _resets(spec, every, rng), every)
    while True:
        drawn = [_values(column, int(ready.sum()), rng) for column in recording_of(spec).columns]
        for column, leaf in zip(range(len(drawn)), leaves(spec.action), strict=False):
            drawn[column] = _of_leaf(leaf, int(ready.sum()), rng)
        if ready.any():
            yield Sent(every[ready], drawn, [_values(column, int(ready.sum()), rng) for column in spec.states])
        flying = ~down
        answering = flying if mode != "asynchronous" else flying & (rng.random(num_envs) < 0.5)
        faulty = answering & (rng.random(num_envs) < fault)
        stepped = answering & ~faulty
        env = every[stepped]
        first = done[env] if mode == "next step" else np.zeros(len(env), np.bool_)
        way = rng.integers(1, 4, len(env)) * (rng.random(len(env)) < end) * ~first
        rows = Rows(
            env,
            _observations(spec, len(env), rng),
            rng.random(len(env)),
            way % 2 == 1,
            way > 1,
            first,
            infos=_infos(spec, len(env), rng),
            final=_where(way > 0, rng.random(len(env)).astype(np.float32)) if _final(spec) else None,
            metrics=_metrics(spec, way > 0, rng),
        )
        rows.reward[first] = np.nan
        done[env] = way > 0
        aborts = tuple(Abort(env, f"env_raised: {rng.integers(9)}") for env in every[faulty].tolist())
        down |= faulty
        risen = down & (rng.random(num_envs) < 0.5)
        down &= ~risen
        begins = risen | (done & stepped) if mode != "next step" else risen
        done[risen] = False
        ready = stepped | risen
        yield _answer(
            rows if len(env) else None,
            aborts,
            _resets(spec, every[begins], rng) if begins.any() else None,
            every[ready],
        )


def _answer(steps: Rows | None, aborts: tuple[Abort, ...], resets: Rows | None, ready: NDArray[np.int32]) -> Answer:
    # What is acted on is the rollout's affair, not the fragment's.
    return Answer(steps, aborts, resets, ready, ())


def _resets(spec: StreamSpec, env: NDArray[np.int32], rng: np.random.Generator) -> Rows:
    n = len(env)
    never, always = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    seed = rng.integers(-1, 1 << 40, size=n) if rng.integers(2) else None
    options = np.array([*(rng.choice([None, '{"level":1}'], n)), ""], object)[:-1] if rng.integers(2) else None
    reward = np.full(n, np.nan)
    return Rows(
        env, _observations(spec, n, rng), reward, never, never, always, seed, options, infos=_infos(spec, n, rng)
    )


def _observations(spec: StreamSpec, n: int, rng: np.random.Generator) -> tuple[NDArray[Any], ...]:
    return tuple(_of_leaf(leaf, n, rng) for leaf in leaves(spec.observation))


def _infos(spec: StreamSpec, n: int, rng: np.random.Generator) -> tuple[tuple[NDArray[Any], NDArray[np.bool_]], ...]:
    return tuple((_values(column, n, rng), rng.random(n) < 0.7) for column in spec.infos)


def _metrics(spec: StreamSpec, ended: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float64] | None:
    """What was measured where an episode ended; now and then nothing was, of one metric or of all."""
    if not spec.metrics or rng.random() < 0.2:
        return None
    measured = rng.random((len(ended), len(spec.metrics)))
    return _where(ended[:, None] & (measured > 0.2), measured)


def _where(mask: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
    return np.where(mask, values, values.dtype.type(np.nan))


def _of_leaf(leaf: Leaf, n: int, rng: np.random.Generator) -> NDArray[Any]:
    space = leaf.space
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, n)
    return _values(Column.of(leaf, "any"), n, rng)


def _values(column: Column, n: int, rng: np.random.Generator) -> NDArray[Any]:
    if column.is_text:
        return np.array([*("ä" * int(length) for length in rng.integers(0, _TEXT + 1, n)), None], object)[:-1]
    return (rng.random((n, *column.shape)) * 120).astype(column.dtype)


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.reshape(-1).tolist() if array.shape else array.item()
