"""The fewer versions behind the likelier."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from penstock_consumers.replay.choosing.chooser import positive
from penstock_consumers.replay.choosing.groups import Groups
from penstock_consumers.replay.choosing.weighted import Weighted

if TYPE_CHECKING:
    from penstock_consumers.replay.choosing.chooser import Sampler
    from penstock_consumers.replay.index import Index

# Steeper than this nothing but the newest version is ever drawn, and products would overflow.
_STEEPEST = 1e4


@dataclass(frozen=True)
class Staleness:
    """A step's weight halves with every so many versions that the policy which acted is behind the newest one.

    A window of steps has the weight of the step with which it begins.

    Args:
        half_life_versions: how many.

    Raises:
        SettingsError: it is not above 0.
    """

    half_life_versions: float

    def __post_init__(self) -> None:
        positive("half_life_versions", self.half_life_versions)

    def over(self, index: Index) -> Sampler:
        """Draw from an index; opens every segment once."""
        groups = Groups(index)
        rate = min(log(2.0) / self.half_life_versions, _STEEPEST)
        return Weighted(groups, rate * groups.policy_version)
