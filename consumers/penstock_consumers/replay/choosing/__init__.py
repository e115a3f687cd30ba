"""How a view chooses what it gives."""

from penstock_consumers.replay.choosing.chooser import Chooser, Sampler
from penstock_consumers.replay.choosing.mixture import Mixture
from penstock_consumers.replay.choosing.prioritized import Prioritized
from penstock_consumers.replay.choosing.recency import Recency
from penstock_consumers.replay.choosing.returns import Return
from penstock_consumers.replay.choosing.staleness import Staleness
from penstock_consumers.replay.choosing.uniform import Uniform
from penstock_consumers.replay.drawn import Drawn

__all__ = ["Chooser", "Drawn", "Mixture", "Prioritized", "Recency", "Return", "Sampler", "Staleness", "Uniform"]
