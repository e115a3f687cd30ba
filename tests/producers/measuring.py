"""Callbacks by name, for a producer's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producers.callbacks import Callbacks, EndedEpisode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_producers.fragment import ClosedFragment


class Halving(Callbacks):
    """Measures half of an episode's length, and nothing of odd ones."""

    metrics = ("half",)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def on_episode_end(self, ended: EndedEpisode) -> Mapping[str, float] | None:
        return {"half": self.scale * ended.length / 2} if ended.length % 2 == 0 else None


class Refusing(Callbacks):
    """Does not bear the end of a second fragment."""

    def __init__(self) -> None:
        self.fragments = 0

    def on_fragment_end(self, fragment: ClosedFragment) -> None:
        self.fragments += 1
        if self.fragments > 1:
            raise ValueError("one is enough")
