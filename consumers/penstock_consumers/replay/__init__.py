"""The learner's reader: a store's episodes and transitions, as numpy arrays."""

from penstock_consumers.replay.episodes import Episode
from penstock_consumers.replay.replay import Replay

__all__ = ["Episode", "Replay"]
