"""Keeping a store's files and bytes bounded: compaction, retention, collection.

A worker gives each of its partitions to an `Upkeep` now and then, between its commits. `compact`, `retain` and `gc`
do the same by hand, for all partitions of a store.
"""

from penstock_consumers.upkeep.retention import Retention
from penstock_consumers.upkeep.tools import compact, gc, retain
from penstock_consumers.upkeep.upkeep import Kept, Upkeep, UpkeepSettings

__all__ = ["Kept", "Retention", "Upkeep", "UpkeepSettings", "compact", "gc", "retain"]
