"""The rows of the running fragment, in the order in which the envs gave them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.fragment.values import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Abort, Rows
    from penstock_producers.fragment.recording import Recording
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec

NO_SEED = -1


class RowLog:
    """Copies every row of the envs and what the policy gave for it, its recurrent state included, a column each.

    The rows at hand are `[:count]` of every column; the first `carried` of them are the observations with which the
    open episodes go on. `drawn` is bound to a step when its action is sent (`acted`), however late the env answers.
    """

    def __init__(self, spec: StreamSpec, num_envs: int, rows: int, recording: Recording) -> None:
        drawn = (*recording.columns, *spec.states)
        self.num_envs = num_envs
        self.count = 0
        self.carried = 0
        self.env = np.empty(rows, np.int32)
        self.first = np.empty(rows, np.bool_)
        self.terminated = np.empty(rows, np.bool_)
        self.truncated = np.empty(rows, np.bool_)
        self.policy = np.empty(rows, np.int32)
        self.seed = np.full(rows, NO_SEED, np.int64)
        self.options: dict[int, str] = {}
        self.aborts: list[tuple[int, Abort]] = []
        self.observation = [values_of(column, rows, num_envs) for column in spec.observation_columns]
        self.reward = np.empty(rows, spec.reward_dtype)
        self.drawn = [_empty(column, rows) for column in drawn]
        # What is known with an answer only, of episodes that end with it; NaN where there is none, garbage in resets.
        self.final = None if recording.final is None else np.empty(rows, np.float32)
        self.metrics = np.empty((rows, len(spec.metrics)), np.float64) if spec.metrics else None
        self.infos = [(_empty(column, rows), np.empty(rows, np.bool_)) for column in spec.infos]
        # What was drawn for each env's action that is on its way, and by which policy.
        self._sent = [_empty(column, num_envs) for column in drawn]
        self._sent_policy = np.zeros(num_envs, np.int32)
        # In lockstep it is what was drawn last, for all envs: no copy is needed to keep it.
        self._last: Sequence[NDArray[Any]] | None = None
        self._last_policy = 0
        self._acted = False

    def acted(self, env: NDArray[np.int32], drawn: Sequence[NDArray[Any]], policy: int) -> None:
        """Bind what was drawn, and by which policy, to the next step of these envs; the arrays are kept."""
        self._acted = True
        if len(env) == self.num_envs:
            self._last, self._last_policy = drawn, policy
            return
        self._settle()
        for column, values in zip(self._sent, drawn, strict=True):
            column[env] = values
        self._sent_policy[env] = policy

    def forget_policies(self, known: int) -> Sequence[int]:
        """Of so many policies forget those of which neither a step nor an action on its way is at hand.

        Those that are kept are numbered 0, 1, 2 … from now on; answers the numbers that they had before.
        """
        if self.count > self.carried:
            return range(known)
        self._settle()
        kept, renamed = np.unique(self._sent_policy, return_inverse=True)
        self._sent_policy[:] = renamed
        still: list[int] = kept.tolist()
        return still if self._acted else []

    def steps(self, rows: Rows) -> None:
        """Copy steps, and reset rows among them."""
        start, stop = self._append(rows)
        self.reward[start:stop] = rows.reward
        if self.metrics is not None:
            self.metrics[start:stop] = np.nan if rows.metrics is None else rows.metrics
        if self.final is not None:
            self.final[start:stop] = np.nan if rows.final is None else rows.final
        if self._last is not None and stop - start == self.num_envs:
            self.policy[start:stop] = self._last_policy
            for column, values in zip(self.drawn, self._last, strict=True):
                column[start:stop] = values
        else:
            self._settle()
            self.policy[start:stop] = self._sent_policy[rows.env]
            for column, values in zip(self.drawn, self._sent, strict=True):
                np.take(values, rows.env, axis=0, out=column[start:stop], mode="clip")

    def resets(self, rows: Rows) -> None:
        """Copy reset rows."""
        start, stop = self._append(rows)
        self.reward[start:stop] = 0

    def abort(self, abort: Abort) -> None:
        """An env's episode ends after the rows at hand."""
        self.aborts.append((self.count, abort))

    def carry(self, rows: NDArray[np.intp]) -> None:
        """Begin anew with these rows as the first of their envs, by ascending env."""
        count = len(rows)
        for column in (self.env, *(part for info in self.infos for part in info)):
            column[:count] = column[rows]
        for values in self.observation:
            values.carry(rows, self.env[:count])
        seed = self.seed[rows]
        self.seed[: self.count] = NO_SEED
        self.seed[:count] = seed
        at = rows.tolist() if self.options else []
        self.options = {new: self.options[old] for new, old in enumerate(at) if old in self.options}
        self.first[:count], self.terminated[:count], self.truncated[:count] = True, False, False
        self.reward[:count] = 0
        self.count = self.carried = count
        self.aborts.clear()

    def _append(self, rows: Rows) -> tuple[int, int]:
        start = self.count
        self.count = stop = start + len(rows.env)
        self.env[start:stop] = rows.env
        self.first[start:stop] = rows.first
        self.terminated[start:stop] = rows.terminated
        self.truncated[start:stop] = rows.truncated
        for observation, given in zip(self.observation, rows.observation, strict=True):
            observation.put(slice(start, stop), rows.env, given)
        if rows.seed is not None:
            self.seed[start:stop] = rows.seed
        if rows.options is not None:
            with_options = enumerate(rows.options.tolist(), start)
            self.options.update((at, options) for at, options in with_options if options is not None)
        for (values, valid), (given_values, given_valid) in zip(self.infos, rows.infos, strict=True):
            values[start:stop], valid[start:stop] = given_values, given_valid
        return start, stop

    def _settle(self) -> None:
        if self._last is None:
            return
        for column, values in zip(self._sent, self._last, strict=True):
            column[:] = values
        self._sent_policy.fill(self._last_policy)
        self._last = None


def _empty(column: Column, rows: int) -> NDArray[Any]:
    return np.empty((rows, *column.shape), column.dtype)
