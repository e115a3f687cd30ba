"""The statistics that a learner publishes for the connectors that normalize: accumulated from what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_consumers.replay.observed import observed
from penstock_schemas.connectors import Pipeline, make_pipeline
from penstock_schemas.connectors.normalize import Normalize
from penstock_schemas.connectors.pipeline import PREFIX
from penstock_schemas.spaces import flatten, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.episodes import Episode
    from penstock_schemas.spaces import Leaf
    from penstock_schemas.stream import StreamSpec


class Moments:
    """The mean and the variance of arrays of one shape, a batch at a time; exact to a float64's rounding.

    Attributes:
        count: how many arrays there were.
        mean: of the shape; zeros before the first.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Of the arrays so far, as a population; ones before the first."""
        return self._squares / self.count if self.count else np.ones_like(self.mean)

    def add(self, values: NDArray[Any]) -> None:
        """Add n arrays, shape (n, *shape); those that hold an infinity or a NaN are left out."""
        wide = values.astype(np.float64)
        wide = wide[np.isfinite(wide).all(axis=tuple(range(1, wide.ndim)))]
        if not len(wide):
            return
        count = self.count + len(wide)
        mean = wide.mean(axis=0)
        off = mean - self.mean
        # Two sets of squares about their own means, and what the distance of the means adds.
        self._squares += ((wide - mean) ** 2).sum(axis=0) + off**2 * (self.count * len(wide) / count)
        self.mean += off * (len(wide) / count)
        self.count = count


class _Stage(NamedTuple):
    """One connector that normalizes."""

    prefix: str
    """Of its parameters among a version's weights."""
    before: Pipeline
    """The connectors in front of it."""
    moments: dict[int, tuple[Leaf, Moments]]
    """Of the leaves that it normalizes, by their places."""


class Normalization:
    """Accumulates what each "normalize" among a stream's connectors is given.

    Args:
        spec: the stream's.
        weights: finds the weights of a version, as `Versions` does: connectors in front may have parameters too.
    """

    def __init__(self, spec: StreamSpec, weights: Callable[[int, bytes], Mapping[str, NDArray[Any]]]) -> None:
        self._spec = spec
        self._weights = weights
        pipeline = make_pipeline(spec.policy.get("connectors", ()), spec.observation, spec.action)
        self._stages = [
            _Stage(
                f"{PREFIX}{at}.",
                Pipeline(spec.observation, pipeline.connectors[:at]),
                {
                    place: (leaf, Moments(leaf.space.shape))
                    for place, leaf in enumerate(leaves(pipeline.inputs(at)))
                    if leaf.name("mean") in connector.parameters
                },
            )
            for at, connector in enumerate(pipeline.connectors)
            if isinstance(connector, Normalize)
        ]

    def add(self, parts: Sequence[Episode]) -> None:
        """Add the observations of an episode, the last part, behind those that it continues, as `observed` has it.

        Each part of an episode that was cut is to be added, once.
        """
        # A part begins with the observation with which the one before it ended.
        first = 0 if parts[-1].continues is None else 1
        for stage in self._stages:
            seen = flatten(stage.before.space, observed(parts, self._spec, stage.before, self._weights))
            for place, (_, moments) in stage.moments.items():
                moments.add(seen[place][first:])

    @property
    def weights(self) -> dict[str, NDArray[np.float64]]:
        """The connectors' parameters, as they travel among a version's weights."""
        return {
            stage.prefix + leaf.name(name): value
            for stage in self._stages
            for leaf, moments in stage.moments.values()
            for name, value in (("mean", moments.mean.copy()), ("variance", moments.variance))
        }
