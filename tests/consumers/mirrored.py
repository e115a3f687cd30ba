"""A store whose recorded parameters are what the policy saw, and whose final values are the first of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.consumers.rolled import ZOO, rolled

if TYPE_CHECKING:
    from pathlib import Path

# Twice 4 numbers, 9 of the action and a reward: what the mean and the deviation of 9 numbers take.
CONNECTORS = (
    {"name": "stack", "arguments": {"frames": 2, "axis": 0}},
    {"name": "previous_action"},
    {"name": "previous_reward"},
    {"name": "normalize", "arguments": {"clip": 3.0}},
)


def mirrored_store(folder: Path) -> Path:
    """Roll one out."""
    rolled(
        folder,
        f"{ZOO}:mirror",
        action="wide",
        behaviour={"parameters": True, "final_value": True},
        connectors=CONNECTORS,
        cut_steps=4,
        longest=40,
    )
    return folder
