"""Recorded steps against what the weights that acted say of them: many chunks at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock_consumers.recompute.batch import batch_of
from penstock_consumers.recompute.borders import Borders
from penstock_consumers.recompute.report import Report, largest
from penstock_consumers.recompute.spans import Spans, continued, step_bytes
from penstock_schemas.columns import ranges
from penstock_schemas.connectors import make_pipeline
from penstock_schemas.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.recompute.batch import Batch, Inputs
    from penstock_consumers.recompute.spans import Span
    from penstock_consumers.recompute.stretches import Acted
    from penstock_consumers.replay.episodes import Episode
    from penstock_consumers.replay.versions import Versions
    from penstock_schemas.columns import Column
    from penstock_schemas.policies import PolicyRecord
    from penstock_schemas.spaces import Leaves
    from penstock_schemas.stream import StreamSpec

# What is at hand at a time, and how much of it one episode gives at most.
_BATCH_BYTES = 128 << 20
_SPAN_BYTES = 32 << 20
_FINAL, _LOG_PROB = "final_value", "log_prob"
# How far two ways to compute the same parameters are apart, as a share of the largest; and how often that is tried.
_ROUNDING, _TRIES = 1e-6, 8


class Answers(Protocol):
    """What a policy answered in C chunks of S steps in all."""

    @property
    def extras(self) -> dict[str, NDArray[Any]]:
        """By name, (S, *shape)."""
        ...

    @property
    def absent(self) -> frozenset[str]:
        """Which of the extras may be null."""
        ...

    @property
    def parameters(self) -> NDArray[Any]:
        """(S, k), of what the actions were drawn from."""
        ...

    @property
    def action(self) -> Leaves:
        """(S, *shape) what is chosen where exploration is OFF; else none."""
        ...

    @property
    def final(self) -> NDArray[Any] | None:
        """(F,) the values of the observations that ended an episode; None where there were none to value."""
        ...

    @property
    def state(self) -> tuple[NDArray[Any], ...]:
        """(C, *shape) the recurrent state behind each chunk."""
        ...


class Recomputer(Protocol):
    """A policy that answers again; what each method is given, the producers' `Recomputer` tells."""

    def check(self, version: int, digest: bytes, record: PolicyRecord | None) -> None:
        """Raise `PolicyRejectedError` unless `use` would take a version."""
        ...

    def use(self, record: PolicyRecord | None) -> None:
        """Answer as a version did, None for version 0."""
        ...

    def answer(
        self,
        exploration: int,
        length: NDArray[np.int64],
        inputs: Inputs,
        state: tuple[NDArray[Any], ...],
        action: Leaves,
        ended: tuple[NDArray[np.intp], Inputs],
    ) -> Answers:
        """Compute again what was recorded of C chunks of S steps in all, end to end."""
        ...

    def log_prob(self, parameters: NDArray[Any], action: Leaves) -> NDArray[Any]:
        """Give the log-probabilities (S,) of actions that were drawn from parameters (S, k)."""
        ...


def recompute(
    episodes: Iterable[Episode],
    spec: StreamSpec,
    recomputer: Recomputer,
    versions: Versions,
    *,
    tolerance: float,
    progress: Callable[[int], object] = lambda _: None,
) -> Report:
    """Compute again what the policy recorded of episodes, and compare.

    What is compared: the extras "log_prob", "value", "parameters" and "final_value", as far as they are recorded or the
    policy has them, the actions where exploration is OFF, and the recurrent state with which each chunk begins: zeros
    behind a reset, else what is computed of the chunk before.

    Args:
        episodes: the parts of one that was cut may come in any order; where there are connectors, to look back, one is
            computed again only where those that it continues are among them, from the reset on.
        spec: the stream's.
        recomputer: the policy.
        versions: the store's.
        tolerance: how far what is compared may be off, as `Report` measures it.
        progress: told the steps of each few chunks that are done, those that could not be computed among them.
    """
    return _Check(spec, recomputer, versions, Report(tolerance), progress).run(episodes)


class _Version(NamedTuple):
    """One that acted."""

    number: int
    digest: bytes
    parameters: dict[str, NDArray[Any]]
    """Of the connectors, by the names of the weights."""
    lost: str | None
    """Why nothing can be computed with it."""


class _Check:
    """One walk over episodes."""

    def __init__(
        self,
        spec: StreamSpec,
        recomputer: Recomputer,
        versions: Versions,
        report: Report,
        progress: Callable[[int], object],
    ) -> None:
        self._spec = spec
        self._recomputer = recomputer
        self._store = versions
        self._report = report
        self._progress = progress
        self._pipeline = make_pipeline(spec.policy.get("connectors", ()), spec.observation, spec.action)
        self._borders = Borders([column.name for column in spec.states], report)
        self._places: dict[Acted, int] = {}
        self._versions: list[_Version] = []

    def run(self, episodes: Iterable[Episode]) -> Report:
        size = step_bytes(self._spec, self._pipeline)
        spans = Spans(self._spec, self._pipeline, self._place, max(1, _SPAN_BYTES // size))
        batch: list[Span] = []
        steps = 0
        for span in spans.of(episodes):
            batch.append(span)
            steps += span.stretch.steps
            if steps * size >= _BATCH_BYTES:
                self._take(batch)
                batch, steps = [], 0
        if batch:
            self._take(batch)
        before = {episode.id: continued(episode) for episode in spans.orphans}
        for episode in spans.orphans:
            missing: str | None = episode.id
            while missing in before:
                missing = before[missing]
            reason = f"they look back at the part {missing}, which is not in the store, or lost its end"
            self._report.lost[reason] += len(episode.policy_digest)
            self._progress(episode.length)
        return self._report

    def _place(self, acted: Acted) -> int:
        """Find a version's place; whether it can be used is asked once."""
        place = self._places.get(acted)
        if place is None:
            place = self._places[acted] = len(self._versions)
            self._versions.append(self._version(*acted))
        return place

    def _version(self, number: int, digest: bytes) -> _Version:
        first = self._pipeline.weights
        try:
            record = self._record(number, digest)
            self._recomputer.check(number, digest, record)
        except PenstockError as error:
            return _Version(number, digest, first, str(error))
        own = first if record is None else {name: record.weights[name] for name in first}
        return _Version(number, digest, own, None)

    def _record(self, number: int, digest: bytes) -> PolicyRecord | None:
        return self._store.read(number, digest) if number else None

    def _take(self, spans: Sequence[Span]) -> None:
        batch = batch_of(spans, self._spec, self._pipeline, [version.parameters for version in self._versions])
        good = self._good(batch)
        state = tuple(np.zeros_like(kept) for kept in batch.state)
        keys = np.stack([batch.version, batch.exploration], axis=1)
        for version, exploration in np.unique(keys[good], axis=0).tolist():
            chunks = np.flatnonzero(good & (keys == (version, exploration)).all(axis=1))
            try:
                self._recomputer.use(self._record(self._versions[version].number, self._versions[version].digest))
                answers = self._answers(batch, chunks, exploration)
            except PenstockError as error:
                self._report.lost[str(error)] += len(chunks)
                good[chunks] = False
                continue
            self._compare(batch, chunks, answers)
            for kept, computed in zip(state, answers.state, strict=True):
                kept[chunks] = computed
        self._borders.compare(batch, state, good)
        self._progress(int(batch.length.sum()))

    def _good(self, batch: Batch) -> NDArray[np.bool_]:
        """Tell which chunks have steps and can be computed; count the others."""
        good = batch.length > 0
        lost = np.array([version.lost is not None for version in self._versions])
        if not lost.any():
            return good
        # Connectors look back with the parameters that acted there.
        far = self._pipeline.reach if self._pipeline.weights else 0
        first = batch.step[np.searchsorted(batch.span, batch.span)]
        for chunk in np.flatnonzero(good).tolist():
            span = batch.spans[batch.span[chunk]]
            begin = span.known + int(batch.step[chunk] - first[chunk])
            acted = span.stretch.acted[max(0, begin - far) : begin + int(batch.length[chunk])]
            if lost[acted].any():
                self._report.lost[str(self._versions[acted[lost[acted]][-1]].lost)] += 1
                good[chunk] = False
        return good

    def _answers(self, batch: Batch, chunks: NDArray[np.intp], exploration: int) -> Answers:
        length, row = batch.length[chunks], batch.row[chunks]
        step = ranges(batch.step[chunks], length)
        ended = np.flatnonzero(batch.ended[chunks])
        return self._recomputer.answer(
            exploration,
            length,
            batch.inputs(ranges(row, length)),
            tuple(kept[chunks] for kept in batch.state),
            tuple(leaf[step] for leaf in batch.action),
            (ended, batch.inputs((row + length)[ended])),
        )

    def _compare(self, batch: Batch, chunks: NDArray[np.intp], answers: Answers) -> None:
        report, ids = self._report, [span.episode.id for span in batch.spans]
        length, span = batch.length[chunks], batch.span[chunks]
        step = ranges(batch.step[chunks], length)
        for name, computed in answers.extras.items():
            recorded = batch.extras[name][step]
            if name not in answers.absent:
                # Then a null is a number that is gone, which equals none.
                recorded = np.ma.filled(recorded, np.nan)
            scale = self._sensitivity(batch, step, answers) if name == _LOG_PROB else None
            report.compare(name, recorded, computed, np.repeat(span, length), ids, scale)
        for column, leaf, best in zip(self._spec.action_columns, batch.action, answers.action, strict=False):
            self._compare_best(column, leaf[step], best, np.repeat(span, length), ids)
        if answers.final is not None:
            ended = batch.ended[chunks]
            last = (batch.step[chunks] + length - 1)[ended]
            report.compare(_FINAL, batch.extras[_FINAL][last], answers.final, span[ended], ids)
        report.steps += len(step)
        report.chunks += len(chunks)

    def _compare_best(
        self,
        column: Column,
        recorded: NDArray[Any],
        best: NDArray[Any],
        episodes: NDArray[np.intp],
        ids: list[str],
    ) -> None:
        if column.dtype.kind != "f":
            # One choice is as far from another as any.
            other = recorded != best
            self._report.compare(column.name, other, np.zeros_like(other), episodes, ids)
            return
        # What is recorded may be coarser than what the policy computes in.
        coarse = float(np.finfo(column.dtype).eps / np.finfo(np.float32).eps)
        scale = np.full(len(best), coarse * max(1.0, largest(best)))
        self._report.compare(column.name, recorded, best, episodes, ids, scale)

    def _sensitivity(self, batch: Batch, step: NDArray[np.int64], answers: Answers) -> NDArray[np.float64]:
        """By how many times the share by which parameters are off the log-probabilities are, shape (S,)."""
        parameters, action = answers.parameters, tuple(leaf[step] for leaf in batch.action)
        rounding, rng = _ROUNDING * max(1.0, largest(parameters)), np.random.default_rng(0)
        moved = np.zeros(len(step))
        for _ in range(_TRIES):
            apart = rounding * rng.standard_normal(parameters.shape, np.float32)
            with np.errstate(all="ignore"):
                off = self._recomputer.log_prob(parameters + apart, action) - answers.extras[_LOG_PROB]
                moved += np.square(off, dtype=np.float64)
        return np.sqrt(np.nan_to_num(moved, posinf=0.0) / _TRIES) / _ROUNDING
