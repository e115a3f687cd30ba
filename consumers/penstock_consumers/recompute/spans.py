"""Stored episodes as spans: a few whole chunks each, with the steps before them that the connectors look back at."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from penstock_consumers.recompute.stretches import Stretch, stretch_of
from penstock_consumers.replay.segment import episode_id
from penstock_schemas.chunks import Ends
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock_consumers.recompute.stretches import Acted
    from penstock_consumers.replay.episodes import Episode
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.stream import StreamSpec


class Span(NamedTuple):
    """Some of an episode's chunks, one after the other."""

    episode: Episode
    chunks: range
    begin: int
    """The step of the episode with which the first begins."""
    stretch: Stretch
    """Their steps, behind those that are looked back at."""
    known: int
    """How many those are."""


class Spans:
    """Parts episodes into spans of about so many steps; remembers the ends of those that were cut.

    Args:
        spec: the stream's.
        pipeline: the connectors that look back.
        place: gives the place of a version and its digest in a list of them.
        steps: at most so many a span, where a chunk has not more.
    """

    def __init__(self, spec: StreamSpec, pipeline: Pipeline, place: Callable[[Acted], int], steps: int) -> None:
        self._spec = spec
        self._reach = pipeline.reach
        self._place = place
        self._steps = steps
        # The last steps of the parts whose continuation did not come yet, by their ids.
        self._tails: dict[str, Stretch] = {}
        # The parts that came before what they continue, by its id.
        self._early: dict[str, Episode] = {}

    def of(self, episodes: Iterable[Episode]) -> Iterator[Span]:
        """Give the spans of episodes, whichever order the parts of one come in."""
        for given in episodes:
            episode: Episode | None = given
            while episode is not None:
                before = continued(episode)
                if before is not None and self._reach and before not in self._tails:
                    self._early[before] = episode
                    break
                yield from self._spans(episode, self._tails.pop(before, None) if before is not None else None)
                episode = self._early.pop(episode.id, None)

    @property
    def orphans(self) -> Iterable[Episode]:
        """The parts of which no span was given, since what they continue did not come."""
        return self._early.values()

    def _spans(self, episode: Episode, tail: Stretch | None) -> Iterator[Span]:
        age = 0 if tail is None else tail.age + tail.steps
        own = stretch_of(episode, self._spec, age, self._place)
        whole = own if tail is None else tail.then(own)
        before = 0 if tail is None else tail.steps
        if self._reach and episode.ends == Ends.CUT:
            self._tails[episode.id] = _copied(whole.part(max(0, whole.steps - self._reach), whole.steps))
        begins = [*episode.chunk_first_step.tolist(), episode.length]
        first = 0
        for chunk in range(1, len(begins)):
            if chunk < len(begins) - 1 and begins[chunk + 1] - begins[first] <= self._steps:
                continue
            begin, end = begins[first], begins[chunk]
            known = min(self._reach, before + begin)
            if begin < end:
                stretch = whole.part(before + begin - known, before + end)
                yield Span(episode, range(first, chunk), begin, stretch, known)
            first = chunk


def continued(episode: Episode) -> str | None:
    """The id of the part that an episode continues; None where it began with a reset."""
    if episode.continues is None:
        return None
    return episode_id(episode.producer, episode.incarnation, episode.env, episode.continues)


def step_bytes(spec: StreamSpec, pipeline: Pipeline) -> int:
    """What a step takes, stored and as the policy sees it."""
    return spec.step_bytes + sum(prod(leaf.space.shape) * leaf.space.dtype.itemsize for leaf in leaves(pipeline.space))


def _copied(stretch: Stretch) -> Stretch:
    # A view would hold the whole episode in memory.
    observation, action = (tuple(leaf.copy() for leaf in of) for of in (stretch.observation, stretch.action))
    return Stretch(stretch.age, observation, action, stretch.reward.copy(), stretch.acted.copy())
