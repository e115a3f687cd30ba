"""The columnar log of a fragment, and how it becomes chunk rows.

The loop appends one batch of rows per answer of the envs, of all of them or of those that were ready. When the fragment
closes, one stable sort by env and one take per column turn it into chunk rows: no Python per env, step or episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_producers.fragment.episodes import Names, Standing
from penstock_producers.fragment.log import NO_SEED, RowLog
from penstock_producers.fragment.pieces import Pieces, Runs, pieces_of, runs_of
from penstock_producers.fragment.recording import ActingColumns, ActingPolicy, Recording
from penstock_producers.fragment.split import longest_chunk, split
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import item_column, list_column, ranges
from penstock_schemas.errors import EnvError, PolicyError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Abort, Answer
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class ClosedFragment:
    """A fragment's chunk rows, and what is worth counting of it.

    Attributes:
        batches: the chunk rows, a batch a message. Large observations are views of the log, and hold until the fragment
            is appended to, or closed again.
        steps: how many steps they hold.
        episode_return: of the episodes that ended by themselves, the parts of a cut one joined.
        episode_length: of the same.
        episode_version: the policy version that chose the last action of each.
        aborts: what ended episodes by a fault.
    """

    batches: tuple[pa.RecordBatch, ...]
    steps: int
    episode_return: NDArray[np.float64]
    episode_length: NDArray[np.int64]
    episode_version: NDArray[np.int64]
    aborts: tuple[Abort, ...]


class Fragment:
    """The rows of the running fragment, and where each env's episode stands.

    Args:
        spec: the stream.
        num_envs: N.
        capacity: how many rows of each env it takes, reset rows beside them not counted.
        message_bytes: how many bytes of chunk rows a message holds.
        recording: what the policy gives for every step; the stream's own columns where it is None.
        cut_steps: after how many steps an episode is cut; None for never.

    Raises `TooLargeError` where a single step takes more than that, `PolicyError` for a recording that is not the
    stream's.
    """

    def __init__(
        self,
        spec: StreamSpec,
        num_envs: int,
        capacity: int,
        message_bytes: int,
        recording: Recording | None = None,
        cut_steps: int | None = None,
    ) -> None:
        self._spec = spec
        self._recording = recording or Recording.plain(spec)
        self._recording.check(spec)
        self._longest = longest_chunk(spec, message_bytes)
        self._message_bytes = message_bytes
        self._cut_steps = cut_steps
        self._capacity = capacity
        self._log = RowLog(spec, num_envs, num_envs * (2 * capacity + 1), self._recording)
        observed = list(zip(spec.observation_columns, self._log.observation, strict=True))
        self._small = [(column, values) for column, values in observed if not values.large]
        self._large = [(column, values) for column, values in observed if values.large]
        large = {column.name for column, _ in self._large}
        self._small_schema = pa.schema(
            [field for field in spec.schema if field.name not in large], spec.schema.metadata
        )
        self._standing = Standing(num_envs)
        self._policies: list[ActingPolicy] = []
        self._acting = ActingColumns.of(())
        # How many rows an env has given at the most; how many each has given while others did not.
        self._most = 0
        self._alone = np.zeros(num_envs, np.int64)
        # After a fault an env may be reset again and again without a step.
        self._faulty = False
        self._resets = np.zeros(num_envs, np.int64)

    @property
    def rows(self) -> int:
        """The number of rows at hand, those carried over from the fragment before included."""
        return self._log.count

    @property
    def full(self) -> bool:
        """Whether an env has given as many rows as it may."""
        return self._most >= self._capacity

    def use(self, policy: ActingPolicy) -> None:
        """Bind the actions that are sent from now on to this policy; a fragment has one from its start.

        Raises `PolicyError` where the policy leaves out what the stream says is always there.
        """
        missing = policy.absent - {extra.name for extra in self._spec.extras if extra.nullable}
        if missing:
            raise PolicyError(
                f"policy version {policy.version}: it leaves out {sorted(missing)}, which the stream "
                f"{self._spec.stream!r} does not say may be absent: declare them as nullable extras"
            )
        kept = self._log.forget_policies(len(self._policies))
        self._policies = [*(self._policies[index] for index in kept), policy]
        self._acting = ActingColumns.of(self._policies)

    def sent(self, env: NDArray[np.int32], drawn: Sequence[NDArray[Any]]) -> None:
        """Bind what the policy gave to the next step of these envs: the recording's columns, then the stream's states.

        The arrays are kept until then.
        """
        self._log.acted(env, drawn, len(self._policies) - 1)

    def append(self, answer: Answer) -> None:
        """Copy what the envs answered.

        Raises `EnvError` for reset options with which no step fits into a message; nothing is copied then.
        """
        for rows in (answer.steps, answer.resets):
            if rows is not None and rows.options is not None:
                self._check_options(rows.env, rows.options)
        if answer.steps is not None:
            self._log.steps(answer.steps)
            self._count(answer.steps.env)
        if answer.aborts and not self._faulty:
            self._faulty = True
            # Up to here there was a reset behind a step at the most.
            self._resets.fill(self._most)
        for abort in answer.aborts:
            self._log.abort(abort)
        if answer.resets is not None:
            self._log.resets(answer.resets)
            if self._faulty:
                self._resets[answer.resets.env] += 1
                self._most = max(self._most, int(self._resets.max()))

    def close(self) -> ClosedFragment:
        """Turn the rows into chunk rows, and begin the next fragment with the episodes that are open."""
        log, standing = self._log, self._standing
        runs = runs_of(log)
        pieces = pieces_of(log, runs, standing.step(runs), self._cut_steps, self._longest_of(runs))
        names = standing.name(runs, pieces)
        finished = standing.finish(log, runs)
        closed = ClosedFragment(
            self._to_batches(runs, pieces, names),
            int(pieces.length.sum()),
            finished.returns,
            finished.length,
            self._acting.version[log.policy[finished.tail]],
            tuple(abort for _, abort in log.aborts),
        )
        log.carry(standing.go_on(runs, pieces, names))
        self._most = 0
        self._alone.fill(0)
        self._resets.fill(0)
        return closed

    def _check_options(self, env: NDArray[np.int32], options: NDArray[Any]) -> None:
        for index, text in zip(env.tolist(), options.tolist(), strict=True):
            try:
                self._longest_beside(text or "")
            except TooLargeError as error:
                raise EnvError(
                    f"env {index}: reset options of {len(text)} characters are too long: {error}; or give shorter ones"
                ) from error

    def _longest_beside(self, options: str) -> int:
        """How many steps a chunk has at most beside these reset options."""
        return longest_chunk(self._spec, self._message_bytes, len(options.encode()))

    def _longest_of(self, runs: Runs) -> NDArray[np.int64]:
        """How many steps a chunk of each run has at most, shape (runs,)."""
        longest = np.full(len(runs.env), self._longest)
        options = self._log.options
        if options:
            head = runs.order[runs.head]
            for run in np.flatnonzero(np.isin(head, list(options))).tolist():
                longest[run] = self._longest_beside(options[int(head[run])])
        return longest

    def _count(self, env: NDArray[np.int32]) -> None:
        if len(env) == self._log.num_envs:
            self._most += 1
            return
        before = int(self._alone.max())
        self._alone[env] += 1
        self._most += int(self._alone.max()) - before

    def _to_batches(self, runs: Runs, pieces: Pieces, names: Names) -> tuple[pa.RecordBatch, ...]:
        """Make the chunk rows, parted into messages."""
        log, rows = self._log, len(pieces.head)
        used = log.policy[runs.order[self._first_step(runs, pieces)]]
        # An abort without a step is nobody's; it is put down to whoever acts now.
        columns = self._acting.columns(np.where(pieces.length > 0, used, len(self._policies) - 1))
        for name in ("env", "episode", "chunk", "first_step"):
            columns[name] = pa.array(getattr(names, name))
        columns["ends"] = pa.array(pieces.ends)
        columns["continues"] = pa.array(names.continues, mask=(names.continues < 0) | (names.chunk > 0))
        begins = (names.chunk == 0) & (pieces.head == runs.head[pieces.run])
        head = runs.order[pieces.head]
        seed = log.seed[head]
        columns["seed"] = pa.array(seed, mask=~begins | (seed == NO_SEED))
        with_options = np.flatnonzero(begins).tolist() if log.options else []
        options = {row: log.options[int(head[row])] for row in with_options if int(head[row]) in log.options}
        aborted = np.flatnonzero(pieces.ends == Ends.ABORTED).tolist() if runs.aborted else []
        reasons = {row: runs.aborted[int(pieces.run[row])] for row in aborted}
        seen = runs.order[ranges(pieces.head, pieces.length + 1)], _offsets(pieces.length + 1)
        columns |= self._row_columns(runs, pieces) | self._lists(runs, pieces, *seen)
        sizes = self._spec.row_bytes + pieces.length * self._spec.step_bytes
        for name, texts in (("reset_options", options), ("abort_reason", reasons)):
            columns[name] = _texts(texts, rows)
            for row, text in texts.items():
                sizes[row] += len(text.encode())
        schema = self._small_schema
        whole = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        parts = list(split(self._spec, sizes, self._message_bytes))
        batches = [whole.slice(part.start, part.stop - part.start) for part in parts]
        for column, lists in self._large_lists(*seen, parts).items():
            at = self._spec.schema.get_field_index(column.name)
            batches = [batch.add_column(at, column.field, list_) for batch, list_ in zip(batches, lists, strict=True)]
        return tuple(batches)

    def _row_columns(self, runs: Runs, pieces: Pieces) -> dict[str, pa.Array]:
        """Make the columns that are the stream's own and hold one item a chunk: recurrent states and metrics."""
        log, spec = self._log, self._spec
        columns = {}
        first = runs.order[self._first_step(runs, pieces)]
        for state, values in zip(spec.states, log.drawn[len(self._recording.columns) :], strict=True):
            before = values[first]
            before[pieces.length == 0] = 0
            columns[state.name] = item_column(state, before)
        if log.metrics is not None:
            measured = log.metrics[runs.order[pieces.head + pieces.length]]
            ended = (pieces.ends & (Ends.TERMINATED | Ends.TRUNCATED)) != 0
            for at, column in enumerate(spec.metric_columns):
                columns[column.name] = item_column(column, measured[:, at], ended & ~np.isnan(measured[:, at]))
        return columns

    def _first_step(self, runs: Runs, pieces: Pieces) -> NDArray[np.intp]:
        """Find the first step of each piece in the sorted rows; of one without a step, any row."""
        return np.minimum(pieces.head + 1, len(runs.order) - 1)

    def _large_lists(
        self, index: NDArray[np.intp], offsets: NDArray[np.int32], parts: Sequence[slice]
    ) -> dict[Column, list[pa.Array]]:
        """View large observations where they lie, or gather them, a list column for each message.

        `index` and `offsets` are as `_lists` has them.
        """
        if not (self._large and parts):
            return {}
        mine = [offsets[part.start : part.stop + 1] for part in parts]
        ends = [int(offset[-1]) for offset in mine]
        return {
            column: [
                list_column(column, part, offset - offset[0])
                for part, offset in zip(values.take(index, ends), mine, strict=True)
            ]
            for column, values in self._large
        }

    def _lists(
        self, runs: Runs, pieces: Pieces, index: NDArray[np.intp], offsets: NDArray[np.int32]
    ) -> dict[str, pa.Array]:
        """Gather the lists of all pieces, but for large observations.

        `index` are the rows of the log with what was observed, `offsets` where those of each piece begin and end.
        """
        log, spec = self._log, self._spec
        columns = {
            column.name: list_column(column, values.take(index, [len(index)])[0], offsets)
            for column, values in self._small
        }
        for column, (values, valid) in zip(spec.infos, log.infos, strict=True):
            columns[column.name] = list_column(column, np.take(values, index, axis=0), offsets, valid[index])
        index, offsets = runs.order[ranges(pieces.head + 1, pieces.length)], _offsets(pieces.length)
        columns["reward"] = list_column(spec.reward_column, log.reward[index], offsets)
        recording = self._recording
        finished = recording.finish([np.take(v, index, axis=0) for v in log.drawn[: len(recording.columns)]])
        extras = spec.extras if log.final is None else spec.extras[:-1]
        for column, values in zip((*spec.action_columns, *extras), finished, strict=True):
            columns[column.name] = list_column(column, values, offsets, self._present(column, index))
        if log.final is not None:
            final, column = log.final[index], spec.extras[-1]
            present = self._present(column, index)
            valid = ~np.isnan(final) if present is None else present & ~np.isnan(final)
            columns[column.name] = list_column(column, final, offsets, valid)
        return columns

    def _present(self, column: Column, rows: NDArray[np.intp]) -> NDArray[np.bool_] | None:
        """Tell at which of these steps there is an extra, by the policies that chose their actions; None for at all."""
        present = np.array([column.name not in acting.absent for acting in self._policies])
        return None if present.all() else present[self._log.policy[rows]]


def _texts(texts: Mapping[int, str], rows: int) -> pa.Array:
    """Make a column of a few strings, by row, among many nulls."""
    if not texts:
        return pa.nulls(rows, pa.string())
    column: list[str | None] = [None] * rows
    for row, text in texts.items():
        column[row] = text
    return pa.array(column, pa.string())


def _offsets(length: NDArray[Any]) -> NDArray[np.int32]:
    """The offsets of lists of these lengths, end to end."""
    return np.append(0, np.cumsum(length)).astype(np.int32)
