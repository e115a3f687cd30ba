"""A policy that answers an observation the same to the last bit, whatever stands beside it in a batch.

A matrix product adds up in another order for other batch sizes, and, in the kernels of OpenBLAS and MKL, for some rows
of one batch than for others: the same observation gets answers that differ in their last bit, and two episodes that
differ in a bit soon differ altogether. What does not matter is what the other rows hold. So every batch is filled up to
one size, and a row is always computed at the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.policy.base import Actions, Inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock_producers.policy import Policy


class Placed:
    """A policy, each of whose forwards has `batch` rows, and each row its place.

    Rows that have the same place are computed in forwards of their own, one after the other. What is not chosen but
    only recorded, values of last observations for one, is computed as the policy computes it. All else is read from
    the policy as it is at that moment; nothing is to be set here.
    """

    def __init__(self, policy: Policy, batch: int) -> None:
        self._policy = policy
        self._batch = batch
        self._place = np.zeros(0, np.int64)

    def place(self, keys: NDArray[np.int64]) -> None:
        """Say at which places the rows of the next `act` are computed: their keys modulo the batch, shape (n,)."""
        self._place = keys % self._batch

    def act(self, inputs: Inputs) -> Actions:
        """Choose actions for the n envs that `place` was told of."""
        forwards = _apart(self._place)
        answers = [self._act(inputs, rows) for rows in forwards]
        if len(answers) == 1:
            return answers[0]
        back = np.argsort(np.concatenate(forwards))
        return Actions(*(_joined(parts, back) for parts in zip(*answers, strict=True)))

    def _act(self, inputs: Inputs, rows: NDArray[np.intp]) -> Actions:
        place = self._place[rows]
        # What fills the batch up is a row that there is: a policy may refuse what no env would show it.
        taken = np.full(self._batch, rows[0])
        taken[place] = rows
        filled = Inputs(
            _rows(inputs.observation, taken),
            tuple((values[taken], valid[taken]) for values, valid in inputs.infos),
            _rows(inputs.state, taken),
        )
        return Actions(*(_rows(arrays, place) for arrays in self._policy.act(filled)))

    def __getattr__(self, name: str) -> Any:
        """All else is the policy's own."""
        return getattr(self._policy, name)


def _apart(place: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Part rows so that no two of a part have the same place."""
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    begins = np.ones(len(place), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(begins)
    nth = np.empty(len(place), np.int64)
    nth[order] = np.arange(len(place)) - first[np.cumsum(begins) - 1]
    return [np.flatnonzero(nth == forward) for forward in range(int(nth.max()) + 1)]


def _rows(arrays: Iterable[NDArray[Any]], rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return tuple(array[rows] for array in arrays)


def _joined(parts: Iterable[tuple[NDArray[Any], ...]], back: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
    """Lay the arrays of several answers end to end, one array for each place in an answer, and order their rows."""
    return tuple(np.concatenate(arrays)[back] for arrays in zip(*parts, strict=True))
