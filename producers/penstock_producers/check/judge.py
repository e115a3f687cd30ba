"""Judging what several envs lived through."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock_producers.check.rules import Rule
from penstock_producers.check.twin import Part, replay
from penstock_producers.check.values import difference, misfit, unequal
from penstock_producers.contained import CONTAINED, told
from penstock_schemas.spaces import unflatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_producers.check.episodes import Episode
    from penstock_producers.check.report import Findings
    from penstock_producers.envs.wrapper import AnyEnv
    from penstock_schemas.spaces import Space

_TOO_FEW = 2
_RULES = {
    Part.OBSERVATION: Rule.TRANSITIONS,
    Part.REWARD: Rule.TRANSITIONS,
    Part.LAST_OBSERVATION: Rule.FINAL_OBSERVATION,
    Part.END: Rule.OBSERVATION_COUNT,
}


def judge_values(env: int, life: Sequence[Episode], space: Space, findings: Findings) -> None:
    """Check rewards and bounds."""
    for number, episode in enumerate(life):
        for step, reward in enumerate(episode.rewards, 1):
            if not np.isfinite(reward):
                findings.add(Rule.FINITE_REWARD, env, number, step, expected="a finite reward", found=str(reward))
        for step, observation in enumerate(episode.observations):
            wrong = misfit(
                space, unflatten(space, (leaf[()] if leaf.dtype != object else leaf.item() for leaf in observation))
            )
            if wrong is not None:
                findings.add(wrong.rule, env, number, step, expected=wrong.expected, found=wrong.found)


def judge_by_twin(
    env: int,
    life: Sequence[Episode],
    twin: AnyEnv,
    spaces: tuple[Space, Space],
    findings: Findings,
    *,
    tolerance: float = 0.0,
) -> None:
    """Compare a life with a single env's."""
    try:
        for part, number, step, expected, found in replay(twin, life, *spaces, tolerance=tolerance):
            # A first observation that is not the seed's says nothing of resets: the seed went elsewhere.
            first = Rule.RESET_ROW if life[number].seed is None else Rule.SEEDING
            rule = _RULES.get(part, first)
            findings.add(rule, env, number, step, expected=f"{expected}, as the single env has it", found=found)
    except CONTAINED as error:
        findings.add(
            Rule.TRANSITIONS,
            env,
            len(life) - 1,
            0,
            expected="the same life of a single env",
            found=f"{told(error)} from it",
        )


def judge_by_itself(env: int, life: Sequence[Episode], space: Space, findings: Findings) -> None:
    """Check what can be told of ends without a twin."""
    pairs = [(one, other) for one, other in pairwise(life) if one.ended]
    same = [difference(space, one.observations[-1], other.observations[0]) is None for one, other in pairs]
    # Where all episodes begin alike, one may well end where the next one begins.
    starts = any(difference(space, life[0].observations[0], other.observations[0]) for other in life[1:])
    if len(same) >= _TOO_FEW and all(same) and starts:
        expected, found = "the episode's own last observation", "the first one of the next, after every episode"
        findings.add(Rule.FINAL_OBSERVATION, env, 0, life[0].steps, expected=expected, found=found)


def judge_repetition(
    env: int,
    life: Sequence[Episode],
    again: Sequence[Episode],
    space: Space,
    findings: Findings,
    *,
    rule: Rule,
    run: str,
) -> None:
    """Check that another run with the same seeds and actions gave the same; where not, that breaks `rule`."""
    for number, (one, other) in enumerate(zip(life, again, strict=False)):
        for step, (before, after) in enumerate(zip(one.observations, other.observations, strict=False)):
            differs = difference(space, before, after)
            if differs is None and step and unequal(one.rewards[step - 1], other.rewards[step - 1], 0.0):
                differs = (f"reward {one.rewards[step - 1]}", f"reward {other.rewards[step - 1]}")
            if differs is not None:
                expected, found = differs
                findings.add(rule, env, number, step, expected=f"{expected}, as before", found=f"{found} in {run}")
                return
        if number < min(len(life), len(again)) - 1 and one.steps != other.steps:
            expected, found = f"{one.steps} steps, as before", f"{other.steps} steps in {run}"
            at = min(one.steps, other.steps) + 1
            findings.add(rule, env, number, at, expected=expected, found=found)
            return
