"""Spaces ↔ arrays ↔ Arrow: how one observation or action is typed, stored and read back, bit for bit.

A space here is a plain description that needs no gymnasium, so that a learner can read it; a producer makes it
from the environment's own space. A space is a tree; its leaves are arrays, one list column each. A batch of n values
travels through Penstock as its leaves: a tuple of arrays of shape (n, *leaf shape), in the tree's order.
"""

from __future__ import annotations

from penstock_schemas.spaces.arrays import Box, Discrete, LeafSpace, MultiBinary, MultiDiscrete, Text
from penstock_schemas.spaces.tree import (
    Dict,
    Leaf,
    Leaves,
    Space,
    Tuple,
    bounded,
    flatten,
    leaves,
    space_from_json,
    unflatten,
)

__all__ = [
    "Box",
    "Dict",
    "Discrete",
    "Leaf",
    "LeafSpace",
    "Leaves",
    "MultiBinary",
    "MultiDiscrete",
    "Space",
    "Text",
    "Tuple",
    "bounded",
    "flatten",
    "leaves",
    "space_from_json",
    "unflatten",
]
