"""Steps of an episode, over the cuts between its parts: what connectors show of them, with what they look back at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.connectors import Trajectories, observed
from penstock_schemas.spaces import flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.episodes import Episode
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.spaces import Leaves
    from penstock_schemas.stream import StreamSpec

    Weights = Mapping[str, NDArray[Any]]
    Acted = tuple[int, bytes]


class Stretch(NamedTuple):
    """T consecutive steps of one env, from within one episode or over the cuts between its parts."""

    age: int
    """How many steps lie before."""
    observation: Leaves
    """An array (T + 1, *shape) for each leaf of the observation space."""
    action: Leaves
    """An array (T, *shape) for each leaf of the action space."""
    reward: NDArray[Any]
    """(T,)"""
    acted: NDArray[np.intp]
    """(T,) which version chose each action, as a place in a list."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.reward)

    def part(self, begin: int, end: int) -> Stretch:
        """View the steps from `begin` to `end`."""
        return Stretch(
            self.age + begin,
            tuple(leaf[begin : end + 1] for leaf in self.observation),
            tuple(leaf[begin:end] for leaf in self.action),
            self.reward[begin:end],
            self.acted[begin:end],
        )

    def then(self, later: Stretch) -> Stretch:
        """Lay another behind, which begins with the observation with which this one ends."""
        return Stretch(
            self.age,
            tuple(np.concatenate([one, other[1:]]) for one, other in _pairs(self.observation, later.observation)),
            tuple(np.concatenate([one, other]) for one, other in _pairs(self.action, later.action)),
            np.concatenate([self.reward, later.reward]),
            np.concatenate([self.acted, later.acted]),
        )


def stretch_of(episode: Episode, spec: StreamSpec, age: int, place: Callable[[Acted], int]) -> Stretch:
    """View an episode; `place` gives the place of a version and its digest in a list of them."""
    begins = np.append(episode.chunk_first_step, episode.length)
    # The last chunk of an aborted episode may have no step: then it chose nothing.
    versions = [
        place((int(episode.policy_version[begin]), digest)) if begin < end else 0
        for begin, end, digest in zip(begins[:-1].tolist(), begins[1:].tolist(), episode.policy_digest, strict=True)
    ]
    return Stretch(
        age,
        flatten(spec.observation, episode.observation),
        flatten(spec.action, episode.action),
        episode.reward,
        np.repeat(np.array(versions, np.intp), np.diff(begins)),
    )


def show(pipeline: Pipeline, stretches: Sequence[Stretch], known: Sequence[int], versions: Sequence[Weights]) -> Leaves:
    """Give what the policy saw, leaving out the first observations of each stretch: `known` is how many.

    These are there for those behind them to look back at. Shape (sum of T + 1 - known, *shape) for each leaf.
    """
    observation, action = (
        tuple(np.concatenate(leaf) for leaf in zip(*of, strict=True))
        for of in ([stretch.observation for stretch in stretches], [stretch.action for stretch in stretches])
    )
    trajectories = Trajectories(
        np.array([stretch.steps for stretch in stretches], np.int64),
        np.array([stretch.age for stretch in stretches], np.int64),
        observation,
        action,
        np.concatenate([stretch.reward for stretch in stretches]),
        np.concatenate([stretch.acted for stretch in stretches]),
    )
    seen = observed(pipeline, trajectories, versions)
    if not any(known):
        return seen
    rows = np.concatenate([np.arange(stretch.steps + 1) for stretch in stretches])
    kept = rows >= np.repeat(known, [stretch.steps + 1 for stretch in stretches])
    return tuple(leaf[kept] for leaf in seen)


def _pairs(one: Leaves, other: Leaves) -> zip[tuple[NDArray[Any], NDArray[Any]]]:
    return zip(one, other, strict=True)
