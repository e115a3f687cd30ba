"""What one call gathers: the rows it keeps, fragment by fragment, and the numbers for its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock_producers.collect.answers import steps_in
from penstock_producers.collect.chunks import Chunks
from penstock_producers.collect.statistics import METRIC, Measured
from penstock_producers.collect.times import Times
from penstock_producers.rollout import RESET
from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.callbacks import CallbackRunner
    from penstock_producers.envs import Answer
    from penstock_producers.rollout import Rollout
    from penstock_schemas.stream import StreamSpec


class Gathering:
    """Records answers in the fragments of a rollout, and takes what those hold.

    Args:
        rollout: it records.
        spec: what is recorded.
        num_envs: N.
        observer: is told of fragments that are closed.
        counts_resets: whether episodes that a forced reset ended count as aborted.

    Attributes:
        times: when which env stepped.
        steps: how many steps were recorded.
        durations: of the episodes that ended, in seconds.
    """

    def __init__(
        self,
        rollout: Rollout,
        spec: StreamSpec,
        num_envs: int,
        observer: CallbackRunner | None,
        *,
        counts_resets: bool,
    ) -> None:
        self.times = Times(num_envs)
        self.steps = 0
        self.durations: list[NDArray[np.float64]] = []
        self._rollout = rollout
        self._spec = spec
        self._observer = observer
        self._counts_resets = counts_resets
        self._chunks: list[Chunks] = []
        self._returns: list[NDArray[np.float64]] = []
        self._lengths: list[NDArray[np.int64]] = []

    def record(self, answer: Answer) -> None:
        """Keep an answer."""
        if self._rollout.full:
            self._close()
        if answer.steps is not None:
            self.times.add(answer.steps)
            self.steps += steps_in(answer)
        self._rollout.record(answer)

    def finish(self) -> Chunks:
        """Give the chunk rows of all that was recorded, in the order in which it happened."""
        self._close()
        return Chunks.join(self._chunks)

    def measured(self, chunks: Chunks, seconds: float, pause: float | None) -> Measured:
        """Sum up a call that gathered these rows, took so long, and came so long after the one before."""
        numbers = {
            "returns": np.concatenate(self._returns),
            "lengths": np.concatenate(self._lengths).astype(np.float64),
            "durations": np.concatenate([np.empty(0), *self.durations]),
            "seconds": np.array([seconds]),
            "speed": np.array([self.steps / seconds] if seconds > 0.0 else []),
            "pauses": np.array([] if pause is None else [pause]),
        }
        for column in self._spec.metric_columns:
            values = chunks.rows[column.name]
            numbers[METRIC + column.name.removeprefix(METRIC)] = values[~np.isnan(values)]
        aborted = chunks.rows["ends"] == Ends.ABORTED.value
        if not self._counts_resets:
            aborted &= chunks.rows["abort_reason"] != RESET
        return Measured(self.steps, int(aborted.sum()), numbers)

    def _close(self) -> None:
        closed = self._rollout.close()
        if self._observer is not None:
            self._observer.closed(closed)
            # The rows have it already; what is not taken piles up.
            self._observer.take()
        self._chunks.append(Chunks.of(closed.batches, self._spec))
        self._returns.append(closed.episode_return)
        self._lengths.append(closed.episode_length)
