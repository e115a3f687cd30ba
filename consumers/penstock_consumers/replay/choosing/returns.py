"""The better the episode the likelier."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay.choosing.chooser import number
from penstock_consumers.replay.choosing.groups import Groups
from penstock_consumers.replay.choosing.weighted import Weighted
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from penstock_consumers.replay.choosing.chooser import Sampler
    from penstock_consumers.replay.index import Index


@dataclass(frozen=True)
class Return:
    """A step's weight is `exp(z / temperature)`: z is the return of its episode, standardised.

    Standardised over the episodes that the view gives something of: less their mean, by their standard deviation. So a
    temperature means the same whatever the rewards: at 1, an episode that is one deviation better is chosen e times as
    often; the nearer to 0, the more it is only the best; below 0, the worse are preferred.

    An aborted episode has the return of what there is of it, and each part of a cut episode that of its own steps.

    Args:
        temperature: how little the return matters.

    Raises:
        SettingsError: it is 0 or not a number; or, once it is used, an episode's return is not.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < abs(number(self.temperature)) < inf:
            raise SettingsError(f"temperature {self.temperature}: a number above 0, or below 0 to prefer the worst")

    def over(self, index: Index) -> Sampler:
        """Draw from an index; opens every segment once."""
        groups = Groups(index)
        returns = groups.of_episode("return")
        unknown = returns[~np.isfinite(returns)]
        if len(unknown):
            raise SettingsError(
                f"{self}: there are episodes with a return of {unknown[0]}, which is more or less than no other: leave "
                "them out by where=Where(return_=(least, most))"
            )
        # Squares of what is as large as a float can be would be no number.
        returns = returns / (np.abs(returns).max() or 1.0)
        each = returns[groups.begins_episode]
        spread = each.std() or 1.0
        better = np.sign(self.temperature) * (returns - each.mean()) / spread
        with np.errstate(over="ignore"):  # infinitely light is never drawn
            return Weighted(groups, (better - better.max()) / abs(self.temperature))
