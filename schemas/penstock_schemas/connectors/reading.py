"""Connectors while reading: what was seen of many observations at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.connectors.connector import Seen
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Connector
    from penstock_schemas.connectors.pipeline import Pipeline
    from penstock_schemas.spaces import Leaves, Space

# How much a connector is shown and answers at a time: little enough to stay in a processor's cache.
_BYTES = 1 << 21


class Trajectories(NamedTuple):
    """E episodes of S steps in all, end to end: parts of one that was cut are joined."""

    length: NDArray[np.int64]
    """(E,) how many steps each has, at least 1."""
    age: NDArray[np.int64]
    """(E,) how many steps lie before each: 0 where it begins with a reset.

    Where there are some, the first `Pipeline.reach` observations come out otherwise than they were seen.
    """
    observation: Leaves
    """An array (S + E, *shape) for each leaf of the observation space: one more than steps in each episode."""
    action: Leaves
    """An array (S, *shape) for each leaf of the action space: as it was drawn."""
    reward: NDArray[Any]
    """(S,)"""
    acted: NDArray[np.intp]
    """(S,) which of the policy's versions chose each action, as a place in a list of them."""


class Rows(NamedTuple):
    """R observations, each with what led to it: stretches of consecutive ones, each of one episode.

    Observations may be of narrower dtypes than the space's, as they are stored; actions are of the space's.
    """

    first: NDArray[np.int64]
    """(R,) the row with which its stretch begins. Where that is not the first observation of the episode, there are
    as many rows before those that are wanted as the connectors look back at."""
    lead: NDArray[np.int64]
    """(R,) how many rows before one that is wanted it stands, to be looked back at; 0 where it is wanted."""
    age: NDArray[np.int64]
    """(R,) as in `Seen`, as are the next two."""
    observation: Leaves
    action: Leaves
    reward: NDArray[Any]
    acted: NDArray[np.intp]
    """(R,) which of the policy's versions saw it, as a place in a list of them."""


def observed(pipeline: Pipeline, trajectories: Trajectories, versions: Sequence[Mapping[str, NDArray[Any]]]) -> Leaves:
    """Give what the policy saw of episodes, bit for bit: an array (S + E, *shape) for each leaf of its space.

    An observation was seen by the version that acted on it, the last one of an episode by that of the last step.
    `versions` are as in `shown`.
    """
    return shown(pipeline, _rows(trajectories), versions)


def shown(pipeline: Pipeline, rows: Rows, versions: Sequence[Mapping[str, NDArray[Any]]]) -> Leaves:
    """Give what the policy saw of the rows that are wanted, bit for bit: (wanted, *shape) for each leaf of its space.

    Args:
        pipeline: the connectors; its own parameters do not matter.
        rows: the observations.
        versions: the weights of each version that acted, of which the connectors' parameters are taken. Raises
            `KeyError` where one lacks them.
    """
    parameters = [pipeline.parameters_of(weights) for weights in versions]
    seen = tuple(
        values.astype(leaf.space.dtype, copy=False)
        for leaf, values in zip(leaves(pipeline.observation), rows.observation, strict=True)
    )
    # Where each row stands in `seen`; each connector maps those alone that it or later ones look back at.
    place = np.arange(len(rows.age))
    beyond = pipeline.lookback
    for at, connector in enumerate(pipeline.connectors):
        beyond -= connector.lookback
        needed = rows.lead <= beyond
        seen = _mapped(connector, pipeline.inputs(at), seen, place, np.flatnonzero(needed), rows, parameters, at)
        place = np.cumsum(needed) - 1
    return seen


def _mapped(
    connector: Connector,
    space: Space,
    seen: Leaves,
    place: NDArray[np.int64],
    needed: NDArray[np.int64],
    rows: Rows,
    parameters: Sequence[Sequence[Mapping[str, NDArray[Any]]]],
    at: int,
) -> Leaves:
    out = tuple(np.empty((len(needed), *leaf.space.shape), leaf.space.dtype) for leaf in leaves(connector.space))
    back = np.arange(-connector.lookback, 1)
    row_bytes = (1 + connector.lookback) * _bytes(space) + _bytes(connector.space)
    apart = rows.acted[needed] if connector.parameters else None
    for version, some in _parts(len(needed), apart, max(1, _BYTES // row_bytes)):
        of = needed[some]
        index = place[np.maximum(of[:, np.newaxis] + back, rows.first[of, np.newaxis]) if connector.lookback else of]
        mapped = connector(
            Seen(
                tuple(values[index] for values in seen),
                rows.age[of],
                tuple(values[of] for values in rows.action),
                rows.reward[of],
                parameters[version][at] if connector.parameters else {},
            )
        )
        for values, of_rows in zip(out, mapped, strict=True):
            values[some] = of_rows
    return out


def _parts(rows: int, acted: NDArray[np.intp] | None, most: int) -> Iterator[tuple[int, slice | NDArray[np.intp]]]:
    """Part rows into a few at a time; those of different versions apart where it matters who `acted`."""
    if acted is None:
        for begin in range(0, rows, most):
            yield 0, slice(begin, begin + most)
        return
    order = np.argsort(acted, kind="stable")
    versions, first = np.unique(acted[order], return_index=True)
    for version, begin, end in zip(versions.tolist(), first.tolist(), [*first[1:].tolist(), rows], strict=True):
        for at in range(begin, end, most):
            yield version, order[at : min(at + most, end)]


def _bytes(space: Space) -> int:
    return sum(leaf.space.item_bytes for leaf in leaves(space))


def _rows(trajectories: Trajectories) -> Rows:
    length = trajectories.length
    first = np.cumsum(length + 1) - (length + 1)
    first_of = np.repeat(first, length + 1)
    place = np.arange(len(first_of)) - first_of
    age = place + np.repeat(trajectories.age, length + 1)
    later = place > 0
    # Without the first row of each episode, the others are its steps.
    action = tuple(np.zeros((len(age), *values.shape[1:]), values.dtype) for values in trajectories.action)
    reward = np.zeros(len(age), trajectories.reward.dtype)
    for of_rows, of_steps in zip((*action, reward), (*trajectories.action, trajectories.reward), strict=True):
        of_rows[later] = of_steps
    acted = np.empty(len(age), trajectories.acted.dtype)
    acted[later] = trajectories.acted
    # Without the last, they are its steps too: the version of each, not of the one before.
    acted[np.roll(later, -1)] = trajectories.acted
    return Rows(first_of, np.zeros_like(age), age, trajectories.observation, action, reward, acted)
