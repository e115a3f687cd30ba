"""The rules that an environment has to keep so that its experience can be recorded faithfully."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Rule(StrEnum):
    """A rule's name; `EXPLANATIONS` says what it asks."""

    API = "api"
    RECORDABLE_SPACES = "recordable_spaces"
    SPACES_FIXED = "spaces_fixed"
    OBSERVATION_SPACE = "observation_space"
    OBSERVATION_BOUNDS = "observation_bounds"
    FINITE_REWARD = "finite_reward"
    INFO_DICT = "info_dict"
    ACTION_MUTATED = "action_mutated"
    BUFFER_REUSE = "buffer_reuse"
    RESET_OPTIONS = "reset_options"
    SEEDING = "seeding"
    OBSERVATION_COUNT = "observation_count"
    FINAL_OBSERVATION = "final_observation"
    RESET_ROW = "reset_row"
    TRANSITIONS = "transitions"


EXPLANATIONS: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.API: "It is made, reset, stepped and closed as gymnasium's API says, and nothing of that raises.",
        Rule.RECORDABLE_SPACES: "Its spaces are Box, Discrete, MultiDiscrete, MultiBinary, Text, or Dict and Tuple "
        "of these.",
        Rule.SPACES_FIXED: "Its spaces never change, and are the same each time it is made.",
        Rule.OBSERVATION_SPACE: "Each observation has its space's structure, shapes and dtypes.",
        Rule.OBSERVATION_BOUNDS: "Each observation lies within its space's bounds, and is not NaN.",
        Rule.FINITE_REWARD: "Each reward is one finite number.",
        Rule.INFO_DICT: "Each info is a dict.",
        Rule.ACTION_MUTATED: "An action is not written to.",
        Rule.BUFFER_REUSE: "An observation that was returned does not change when the env is stepped or reset later.",
        Rule.RESET_OPTIONS: "reset() takes options={}.",
        Rule.SEEDING: "The same seed and actions give the same episode, in a new env and in a used one.",
        Rule.OBSERVATION_COUNT: "An episode of T steps has T + 1 observations, and ends where the single env ends it.",
        Rule.FINAL_OBSERVATION: "An episode's last observation is its own, not the first one of the next.",
        Rule.RESET_ROW: "An episode begins with what reset() observes, and no reset is counted as a step.",
        Rule.TRANSITIONS: "Each step's observation and reward are those of the single env.",
    }
)
