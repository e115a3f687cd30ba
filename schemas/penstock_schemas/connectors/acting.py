"""Connectors while acting: the envs that are ready, each with what it looks back at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.connectors.connector import Seen
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.connectors.pipeline import Pipeline
    from penstock_schemas.spaces import Leaves


class Context(NamedTuple):
    """What led to n observations: see `Seen`."""

    age: NDArray[np.int64]
    action: Leaves
    reward: NDArray[Any]


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
        pipeline = self._pipeline
        for connector, before, parameters in zip(pipeline.connectors, self._before, pipeline.parameters, strict=True):
            if connector.lookback:
                observation = tuple(
                    _window(kept, env, values, context.age, keep=keep)
                    for kept, values in zip(before, observation, strict=True)
                )
            observation = connector(Seen(observation, *context, parameters))
        return observation


def _window(
    before: NDArray[Any], env: NDArray[np.int32], values: NDArray[Any], age: NDArray[np.int64], *, keep: bool
) -> NDArray[Any]:
    window = np.concatenate([before[env], values[:, np.newaxis]], axis=1)
    begun = np.flatnonzero(age == 0)
    window[begun] = values[begun, np.newaxis]
    if keep:
        before[env] = window[:, 1:]
    return window
