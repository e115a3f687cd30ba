"""Connectors of a user's own, and some that are broken."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from penstock_schemas.connectors import Connector, Plain, Seen
from penstock_schemas.spaces import Box, Leaves, Space, leaves

FLOAT32 = np.dtype(np.float32)
NOT_CALLABLE = "text"


class Speed:
    """Appends how far the observation moved over the last two steps, times a factor that a version brings."""

    lookback = 2

    def __init__(self, observation: Space, action: Space, *, most: float = 100.0) -> None:
        assert isinstance(observation, Box)
        (width,) = observation.shape
        self.space: Space = Box((2 * width,), FLOAT32)
        self.parameters = {"factor": np.full(width, 2.0, np.float32)}
        self._most = most

    def check(self, parameters: Any) -> None:
        if parameters["factor"].max() > self._most:
            raise ValueError(f"factor has the value {parameters['factor'].max():g}: too fast")

    def __call__(self, seen: Seen) -> Leaves:
        window = seen.observation[0]
        with np.errstate(all="ignore"):
            moved = (window[:, -1] - window[:, 0]).astype(np.float32) * seen.parameters["factor"]
            return (np.concatenate([window[:, -1], moved], axis=1, dtype=np.float32, casting="unsafe"),)


class Reckoning(Plain):
    """Appends what comes of the action before by arithmetic, which a narrower dtype would not hold."""

    def __init__(self, observation: Space, action: Space) -> None:
        assert isinstance(observation, Box)
        (width,) = observation.shape
        size = sum(prod(leaf.space.shape) for leaf in leaves(action))
        self.space: Space = Box((width + size,), FLOAT32)

    def __call__(self, seen: Seen) -> Leaves:
        reckoned = [(100 + values).reshape(len(values), -1) * 100 for values in seen.action]
        with np.errstate(all="ignore"):
            return (np.concatenate([seen.observation[0], *reckoned], axis=1, dtype=np.float32, casting="unsafe"),)


class Scaled(Plain):
    """Twice the observation; the ways in which it is broken are its user's choice."""

    def __init__(self, observation: Space, action: Space, *, wrong: str = "") -> None:
        self.space = observation
        self._wrong = wrong
        if wrong == "space":
            self.space = "a box"  # type: ignore[assignment]  # wrong on purpose
        if wrong == "lookback":
            self.lookback = -1
        if wrong == "parameters":
            self.parameters = {"factor": 2.0}  # type: ignore[dict-item]  # wrong on purpose
        if wrong == "argument":
            raise ZeroDivisionError("argument")

    def check(self, parameters: Any) -> None:
        if self._wrong == "check":
            raise ValueError("never content")

    def __call__(self, seen: Seen) -> Leaves:
        (values,) = seen.observation
        match self._wrong:
            case "raising":
                raise ArithmeticError("no")
            case "writing":
                values *= 2
            case "dtype":
                values = values.astype(np.float64)
            case "shape":
                values = values[:, :1]
            case "list":
                return [values]  # type: ignore[return-value]  # wrong on purpose
            case "two":
                return (values, values)
            case "batch":
                values = values - values.mean(axis=0)
        return (values * np.float32(2) if values.dtype == np.float32 else values,)


def no_connector(observation: Space, action: Space) -> str:
    return "no connector"


def nested(observation: Space, action: Space) -> Connector:
    """Knows nested spaces too: it shows nothing but the age."""
    assert leaves(observation)
    return Age()


class Age(Plain):
    space: Space = Box((1,), FLOAT32)

    def __call__(self, seen: Seen) -> Leaves:
        return (seen.age[:, np.newaxis].astype(np.float32),)
