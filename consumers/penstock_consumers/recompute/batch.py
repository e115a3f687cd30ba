"""A few spans of stored chunks, laid end to end as a policy answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_consumers.recompute.report import present
from penstock_consumers.recompute.stretches import show
from penstock_schemas.chunks import Ends
from penstock_schemas.stream import INFO, STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.recompute.spans import Span
    from penstock_consumers.replay.episodes import Episode
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.spaces import Leaves
    from penstock_schemas.stream import StreamSpec

    Info = tuple[NDArray[Any], NDArray[np.bool_]]
    Inputs = tuple[Leaves, tuple[Info, ...]]

_OF_ITS_OWN = Ends.TERMINATED | Ends.TRUNCATED


class Batch(NamedTuple):
    """R observations, S steps and C chunks of a few spans, end to end."""

    spans: Sequence[Span]
    observation: Leaves
    """(R, *shape) as the policy saw them, one more than steps in each span."""
    infos: tuple[Info, ...]
    """(R, *shape), and which are there."""
    action: Leaves
    """(S, *shape) in the dtypes in which they are recorded."""
    extras: dict[str, NDArray[Any]]
    """(S, *shape), masked where there was none."""
    state: tuple[NDArray[Any], ...]
    """(C, *shape) as recorded."""
    span: NDArray[np.intp]
    """(C,) the span of each chunk."""
    length: NDArray[np.int64]
    """(C,) how many steps it has; none in the last one of some episodes that were aborted."""
    step: NDArray[np.int64]
    """(C,) the first of its steps."""
    version: NDArray[np.intp]
    """(C,) the place of the version that acted."""
    exploration: NDArray[np.uint8]
    """(C,)"""
    ended: NDArray[np.bool_]
    """(C,) whether the env ended the episode with it."""

    @property
    def row(self) -> NDArray[np.int64]:
        """(C,) the first of its observations."""
        return self.step + self.span

    def inputs(self, rows: NDArray[np.int64]) -> Inputs:
        """What the policy was given with these observations."""
        infos = tuple((values[rows], there[rows]) for values, there in self.infos)
        return tuple(leaf[rows] for leaf in self.observation), infos


def batch_of(
    spans: Sequence[Span], spec: StreamSpec, pipeline: Pipeline, parameters: Sequence[Mapping[str, NDArray[Any]]]
) -> Batch:
    """Lay spans end to end; `parameters` are those of the connectors, of each version that acted."""
    # Where the chunks of each span begin in its episode, and where the last one ends.
    bounds = [
        np.append(span.episode.chunk_first_step, span.episode.length)[span.chunks.start : span.chunks.stop + 1]
        for span in spans
    ]
    steps = [slice(int(of[0]), int(of[-1])) for of in bounds]
    observed = [slice(of.start, of.stop + 1) for of in steps]
    chunks = [slice(span.chunks.start, span.chunks.stop) for span in spans]

    def joined(values: Callable[[Episode], NDArray[Any]], at: Sequence[slice]) -> NDArray[Any]:
        return _concatenated([values(span.episode)[of] for span, of in zip(spans, at, strict=True)])

    def info(name: str) -> Info:
        values = joined(lambda episode: episode.infos[name], observed)
        return np.ma.getdata(values), present(values)

    length = np.concatenate([np.diff(of) for of in bounds])
    step = np.cumsum(length) - length
    # A chunk without steps is put down to whichever acted nearby.
    at = np.minimum(step, length.sum() - 1)
    actions = zip(*(span.stretch.part(span.known, span.stretch.steps).action for span in spans), strict=True)
    return Batch(
        spans,
        show(pipeline, [span.stretch for span in spans], [span.known for span in spans], parameters),
        tuple(info(column.name.removeprefix(INFO)) for column in spec.infos),
        tuple(
            np.concatenate(of).astype(column.dtype, copy=False)
            for of, column in zip(actions, spec.action_columns, strict=True)
        ),
        {name: joined(_extra(name), steps) for name in (column.name for column in spec.extras)},
        tuple(joined(_state(column.name.removeprefix(STATE)), chunks) for column in spec.states),
        np.repeat(np.arange(len(spans)), [len(span.chunks) for span in spans]),
        length,
        step,
        np.concatenate([span.stretch.acted[span.known :] for span in spans])[at],
        joined(lambda episode: episode.exploration, steps)[at],
        np.concatenate(
            [
                (of[1:] == span.episode.length) & bool(span.episode.ends & _OF_ITS_OWN)
                for span, of in zip(spans, bounds, strict=True)
            ]
        ),
    )


def _extra(name: str) -> Callable[[Episode], NDArray[Any]]:
    return lambda episode: episode.extras[name]


def _state(name: str) -> Callable[[Episode], NDArray[Any]]:
    return lambda episode: episode.chunk_state[name]


def _concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    masked = isinstance(parts[0], np.ma.MaskedArray)
    joined: NDArray[Any] = np.ma.concatenate(parts) if masked else np.concatenate(parts)  # type: ignore[no-untyped-call]  # numpy's
    return joined
