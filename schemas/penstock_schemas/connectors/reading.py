"""Connectors while reading: episodes, all their observations at once."""

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
    from penstock_schemas.spaces import Leaves

# How many rows are mapped at a time: what a connector looks back at is several times what it answers.
_ROWS = 4096


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


class _Rows(NamedTuple):
    """What led to each of the S + E observations."""

    first: NDArray[np.int64]
    """The row with which its episode begins."""
    age: NDArray[np.int64]
    action: Leaves
    reward: NDArray[Any]
    acted: NDArray[np.intp]


def observed(pipeline: Pipeline, trajectories: Trajectories, versions: Sequence[Mapping[str, NDArray[Any]]]) -> Leaves:
    """Give what the policy saw of episodes, bit for bit: an array (S + E, *shape) for each leaf of its space.

    An observation was seen by the version that acted on it, the last one of an episode by that of the last step.

    Args:
        pipeline: the connectors; its own parameters do not matter.
        trajectories: the episodes. Arrays may be of narrower dtypes than the spaces', as they are stored.
        versions: the weights of each version that acted, of which the connectors' parameters are taken. Raises
            `KeyError` where one lacks them.
    """
    rows = _rows(trajectories)
    parameters = [pipeline.parameters_of(weights) for weights in versions]
    seen = tuple(
        values.astype(leaf.space.dtype, copy=False)
        for leaf, values in zip(leaves(pipeline.observation), trajectories.observation, strict=True)
    )
    for at, connector in enumerate(pipeline.connectors):
        seen = _stage(connector, seen, rows, [of[at] for of in parameters])
    return seen


def _stage(connector: Connector, seen: Leaves, rows: _Rows, parameters: Sequence[Mapping[str, NDArray[Any]]]) -> Leaves:
    out = tuple(np.empty((len(rows.age), *leaf.space.shape), leaf.space.dtype) for leaf in leaves(connector.space))
    back = np.arange(-connector.lookback, 1)
    for version, some in _parts(rows.acted, apart=bool(connector.parameters)):
        index = np.maximum(some[:, np.newaxis] + back, rows.first[some, np.newaxis]) if connector.lookback else some
        mapped = connector(
            Seen(
                tuple(values[index] for values in seen),
                rows.age[some],
                tuple(values[some] for values in rows.action),
                rows.reward[some],
                parameters[version] if connector.parameters else {},
            )
        )
        for values, of_rows in zip(out, mapped, strict=True):
            values[some] = of_rows
    return out


def _parts(acted: NDArray[np.intp], *, apart: bool) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Part the rows into a few at a time; those of different versions `apart`."""
    for version in np.unique(acted).tolist() if apart else (0,):
        of_version = np.flatnonzero(acted == version) if apart else np.arange(len(acted))
        for begin in range(0, len(of_version), _ROWS):
            yield version, of_version[begin : begin + _ROWS]


def _rows(trajectories: Trajectories) -> _Rows:
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
    return _Rows(first_of, age, action, reward, acted)
