"""Trying a connector of a user's own once, before it acts."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_schemas.connectors.connector import Seen
from penstock_schemas.connectors.leafwise import bounds, name_of
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Text, leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Connector
    from penstock_schemas.spaces import LeafSpace, Leaves, Space

_ROWS = 3
_NUMBERS = "fiub"


def probe(connector: Any, observation: Space, action: Space) -> None:
    """Raise `PolicyError` unless a connector has what one must have, and answers a few rows as it says.

    The rows are drawn from the spaces, the same ones each time; none may depend on the others.
    """
    _check_attributes(connector)
    rng = np.random.default_rng(0)
    looked_at = (_ROWS, 1 + connector.lookback) if connector.lookback else (_ROWS,)
    seen = Seen(
        tuple(_examples(leaf.space, looked_at, rng) for leaf in leaves(observation)),
        _fixed(np.arange(1, _ROWS + 1)),
        tuple(_examples(leaf.space, (_ROWS,), rng) for leaf in leaves(action)),
        _fixed(rng.standard_normal(_ROWS)),
        MappingProxyType({name: _fixed(np.array(value)) for name, value in connector.parameters.items()}),
    )
    answer = _answer(connector, seen)
    for row in range(_ROWS):
        alone = _answer(connector, _row(seen, row))
        for values, of_row in zip(answer, alone, strict=True):
            if not _same(values[row : row + 1], of_row):
                raise PolicyError(
                    "a row comes out otherwise alone than among others: it is a pure function, and each row is made of "
                    "its own inputs only"
                )


def _check_attributes(connector: Any) -> None:
    for name in ("space", "lookback", "parameters", "check", "__call__"):
        if not hasattr(connector, name):
            raise PolicyError(f"the factory returned {type(connector).__name__}, which has no {name!r}: no connector")
    if not hasattr(connector.space, "to_json"):
        raise PolicyError(f"its space is {type(connector.space).__name__}, not one of penstock_schemas.spaces")
    if not isinstance(connector.lookback, int) or connector.lookback < 0:
        raise PolicyError(f"its lookback is {connector.lookback!r}, not a number of observations")
    for name, value in connector.parameters.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS:
            raise PolicyError(f"its parameter {name!r} is {type(value).__name__}, not an array of numbers")
    try:
        connector.check(connector.parameters)
    except Exception as error:
        raise PolicyError(f"check refused its own first parameters: {type(error).__name__}: {error}") from error


def _answer(connector: Connector, seen: Seen) -> Leaves:
    n, expected = len(seen.age), leaves(connector.space)
    answer: Any
    try:
        answer = connector(seen)
    except Exception as error:
        raise PolicyError(f"it raised for {n} rows: {type(error).__name__}: {error}") from error
    if not isinstance(answer, tuple) or len(answer) != len(expected):
        found = f"{len(answer)} of them" if isinstance(answer, tuple) else type(answer).__name__
        raise PolicyError(f"it answers {found}, not a tuple of {len(expected)} arrays, one for each leaf of its space")
    for leaf, values in zip(expected, answer, strict=True):
        wanted = f"{(n, *leaf.space.shape)} of {leaf.space.dtype}"
        found = f"{values.shape} of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
        if found != wanted:
            raise PolicyError(f"for its leaf {name_of(leaf)!r} it answers {found}, not {wanted} as its space says")
    answered: Leaves = answer
    return answered


def _row(seen: Seen, row: int) -> Seen:
    at = slice(row, row + 1)
    observation, action = (tuple(values[at] for values in of) for of in (seen.observation, seen.action))
    return Seen(observation, seen.age[at], action, seen.reward[at], seen.parameters)


def _examples(space: LeafSpace, n: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    shape = (*n, *space.shape)
    if isinstance(space, Text):
        length = max(space.min_length, min(1, space.max_length))
        return _fixed(np.full(shape, (space.characters or "a")[:1] * length, object))
    low, high = bounds(space)
    if isinstance(space, Box) and space.dtype.kind == "f":
        return _fixed(np.clip(rng.standard_normal(shape), low, high).astype(space.dtype))
    # A few of the values only: the bounds of the largest integers are rounded in floats.
    return _fixed((low + rng.integers(0, np.minimum(high - low, 100) + 1, shape)).astype(space.dtype))


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    values.setflags(write=False)
    return values


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    text = one.dtype.kind == "O"
    return bool(one.tolist() == other.tolist() if text else one.tobytes() == other.tobytes())
