"""Connectors one after the other: while acting, row by row of many envs; while reading, over whole episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.connectors.connector import Seen
from penstock_schemas.errors import PolicyRejectedError
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Connector
    from penstock_schemas.spaces import Leaves, Space

    Parameters = Mapping[str, NDArray[Any]]

PREFIX = "connectors."


class Context(NamedTuple):
    """What led to n observations: see `Seen`."""

    age: NDArray[np.int64]
    action: Leaves
    reward: NDArray[Any]


class Pipeline:
    """Connectors in order; immutable, but for the parameters that a version of the policy brings.

    The parameters of connector i travel among a version's weights as "connectors.<i>.<name>".

    Attributes:
        observation: the space that comes in.
        space: the space that comes out.
    """

    def __init__(self, observation: Space, connectors: Sequence[Connector] = ()) -> None:
        self.observation = observation
        self.connectors = tuple(connectors)
        self.space = connectors[-1].space if connectors else observation
        self._parameters = [dict(connector.parameters) for connector in self.connectors]

    def __bool__(self) -> bool:
        return bool(self.connectors)

    @property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The parameters that act, by the names under which they travel."""
        return {
            f"{PREFIX}{at}.{name}": value
            for at, parameters in enumerate(self._parameters)
            for name, value in parameters.items()
        }

    def check(self, weights: Parameters) -> None:
        """Raise `PolicyRejectedError` unless `load` would take these, which have the right names, shapes and dtypes."""
        for at, connector in enumerate(self.connectors):
            try:
                connector.check(self._of(at, weights))
            except ValueError as error:
                raise PolicyRejectedError("connectors", f"parameters of connector {at}: {error}") from error

    def load(self, weights: Parameters) -> None:
        """Act with these parameters from now on."""
        self._parameters = [self._of(at, weights) for at in range(len(self.connectors))]

    def acting(self, num_envs: int) -> ActingPipeline:
        """Make what runs the connectors while N envs are stepped."""
        return ActingPipeline(self, num_envs)

    def stage(self, at: int, observation: Leaves, context: Context) -> Leaves:
        """Run one connector over rows, with the parameters that act."""
        return self.connectors[at](Seen(observation, *context, self._parameters[at]))

    def inputs(self, at: int) -> Space:
        """The space that comes into a connector."""
        return self.connectors[at - 1].space if at else self.observation

    def _of(self, at: int, weights: Parameters) -> dict[str, NDArray[Any]]:
        return {name: weights[f"{PREFIX}{at}.{name}"] for name in self.connectors[at].parameters}


class ActingPipeline:
    """Runs connectors on the envs that act, and keeps of each env what they look back at."""

    def __init__(self, pipeline: Pipeline, num_envs: int) -> None:
        self._pipeline = pipeline
        # What came into each connector that looks back, the newest last: (N, lookback, *shape) a leaf.
        self._before: list[list[NDArray[Any]]] = [
            [
                np.zeros((num_envs, connector.lookback, *leaf.space.shape), leaf.space.dtype)
                for leaf in leaves(pipeline.inputs(at))
            ]
            if connector.lookback
            else []
            for at, connector in enumerate(pipeline.connectors)
        ]

    def __call__(self, env: NDArray[np.int32], observation: Leaves, context: Context, *, keep: bool = True) -> Leaves:
        """Map the observations of these envs; `keep` them for the envs' next ones to look back at."""
        for at, connector in enumerate(self._pipeline.connectors):
            if connector.lookback:
                observation = tuple(
                    self._window(before, env, values, context.age, keep=keep)
                    for before, values in zip(self._before[at], observation, strict=True)
                )
            observation = self._pipeline.stage(at, observation, context)
        return observation

    def _window(
        self, before: NDArray[Any], env: NDArray[np.int32], values: NDArray[Any], age: NDArray[np.int64], *, keep: bool
    ) -> NDArray[Any]:
        window = np.concatenate([before[env], values[:, np.newaxis]], axis=1)
        begun = np.flatnonzero(age == 0)
        window[begun] = values[begun, np.newaxis]
        if keep:
            before[env] = window[:, 1:]
        return window
