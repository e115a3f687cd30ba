"""The recurrent state at the borders of chunks: what one leaves behind, and with what the next begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock_consumers.recompute.spans import continued
from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_consumers.recompute.batch import Batch
    from penstock_consumers.recompute.report import Report
    from penstock_consumers.recompute.spans import Span

State: TypeAlias = "tuple[NDArray[Any], ...]"
# An episode, and one of its steps; _BEHIND for what is behind its last one.
Place: TypeAlias = tuple[str, int]
_BEHIND = -1


class Borders:
    """Compares both sides of each border once, in whichever order they come.

    Args:
        names: of the columns of the state.
        report: told of the differences.
    """

    def __init__(self, names: Sequence[str], report: Report) -> None:
        self._names = names
        self._report = report
        self._recorded: dict[Place, tuple[State, str]] = {}
        self._computed: dict[Place, State] = {}

    def compare(self, batch: Batch, computed: State, good: NDArray[np.bool_]) -> None:
        """Take the state computed behind each chunk, shape (C, *shape), of those that are `good`, shape (C,)."""
        ids = [span.episode.id for span in batch.spans]
        within = np.flatnonzero((batch.span[1:] == batch.span[:-1]) & good[:-1] & (batch.length[1:] > 0)) + 1
        self._tell(
            tuple(kept[within] for kept in batch.state),
            tuple(kept[within - 1] for kept in computed),
            batch.span[within],
            ids,
        )
        first = np.searchsorted(batch.span, np.arange(len(ids)))
        last = np.searchsorted(batch.span, np.arange(len(ids)), side="right") - 1
        for at, span in enumerate(batch.spans):
            self._begin(_before(span), _item(batch.state, int(first[at])), ids[at])
            if good[last[at]] and (place := _after(span)) is not None:
                self._end(place, _item(computed, int(last[at])))

    def _begin(self, place: Place | None, recorded: State, episode: str) -> None:
        if place is None:
            self._meet(recorded, tuple(np.zeros_like(kept) for kept in recorded), episode)
        elif place in self._computed:
            self._meet(recorded, self._computed.pop(place), episode)
        else:
            self._recorded[place] = recorded, episode

    def _end(self, place: Place, computed: State) -> None:
        if place in self._recorded:
            recorded, episode = self._recorded.pop(place)
            self._meet(recorded, computed, episode)
        else:
            self._computed[place] = computed

    def _meet(self, recorded: State, computed: State, episode: str) -> None:
        self._tell(recorded, computed, np.zeros(1, np.intp), [episode])

    def _tell(self, recorded: State, computed: State, episodes: NDArray[np.intp], ids: list[str]) -> None:
        for name, one, other in zip(self._names, recorded, computed, strict=True):
            self._report.compare(name, one, other, episodes, ids)


def _before(span: Span) -> Place | None:
    """Where a span begins; None where that is behind a reset."""
    if span.begin:
        return span.episode.id, span.begin
    before = continued(span.episode)
    return None if before is None else (before, _BEHIND)


def _after(span: Span) -> Place | None:
    """Where a span ends; None where nothing begins there."""
    end = span.begin + span.stretch.steps - span.known
    if end < span.episode.length:
        return span.episode.id, end
    return (span.episode.id, _BEHIND) if span.episode.ends == Ends.CUT else None


def _item(state: State, at: int) -> State:
    return tuple(kept[at : at + 1].copy() for kept in state)
