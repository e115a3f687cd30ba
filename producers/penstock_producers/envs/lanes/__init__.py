"""Lanes: envs that come one by one, stepped in groups, in this process or in workers, each env contained."""

from __future__ import annotations

from penstock_producers.envs.lanes.containment import Containment
from penstock_producers.envs.lanes.lanes import Lanes

__all__ = ["Containment", "Lanes"]
