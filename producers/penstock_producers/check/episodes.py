"""Putting episodes together again, from rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.check.rules import Rule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.check.report import Findings
    from penstock_producers.envs.rows import Answer, Rows
    from penstock_schemas.spaces import Leaves

_FAULT_RULES = {
    "env_reward": Rule.FINITE_REWARD,
    "env_observation": Rule.OBSERVATION_SPACE,
    "env_spaces": Rule.SPACES_FIXED,
    "env_info": Rule.INFO_DICT,
}


@dataclass
class Episode:
    """One env's rows from a reset to the next: T steps, and their T + 1 observations, T + 1 arrays a leaf.

    Attributes:
        seed: With what the env was reset; None where it was reset without one, or nobody knows.
        terminated: Of the last step.
        truncated: Of the last step.
        aborted: Why it has no end of its own.
    """

    seed: int | None
    observations: list[Leaves]
    actions: list[Leaves] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    aborted: str | None = None

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def ended(self) -> bool:
        """Whether the env itself ended it."""
        return self.terminated or self.truncated


class Recorder:
    """Takes actions and answers, and keeps each env's life: its episodes one after another."""

    def __init__(self, num_envs: int, findings: Findings) -> None:
        self.lives: list[list[Episode]] = [[] for _ in range(num_envs)]
        self._actions: dict[int, Leaves] = {}
        self._findings = findings

    def act(self, env: NDArray[Any], action: Leaves) -> None:
        """Note the actions that are sent to some envs."""
        for place, i in enumerate(env.tolist()):
            self._actions[i] = _row(action, place)

    def ended(self, env: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which of some envs' last rows are ends, so that a reset comes next."""
        return np.array([self.lives[i][-1].ended for i in env.tolist()])

    def add(self, answer: Answer) -> None:
        """Note what the envs answered."""
        if answer.steps is not None:
            self._add_rows(answer.steps)
        for i, reason in answer.aborts:
            self._abort(i, reason)
        if answer.resets is not None:
            self._add_rows(answer.resets)

    def _add_rows(self, rows: Rows) -> None:
        for place, i in enumerate(rows.env.tolist()):
            observation = _row(rows.observation, place)
            if rows.first[place]:
                seed = -1 if rows.seed is None else int(rows.seed[place])
                self._begin(i, Episode(None if seed < 0 else seed, [observation]))
            else:
                self._step(i, observation, rows, place)

    def _begin(self, i: int, episode: Episode) -> None:
        life = self.lives[i]
        if life and not life[-1].ended and life[-1].aborted is None:
            what = "a reset amid the episode, which has no end"
            self._add(Rule.RESET_ROW, i, life[-1].steps, "a step, or the episode's end", what)
        self._actions.pop(i, None)
        life.append(episode)

    def _step(self, i: int, observation: Leaves, rows: Rows, place: int) -> None:
        action = self._actions.pop(i, None)
        episode = self.lives[i][-1] if self.lives[i] else None
        if episode is None or episode.ended or episode.aborted is not None or action is None:
            self._add(Rule.RESET_ROW, i, episode.steps if episode else 0, "a reset", "a step of no open episode")
            return
        episode.observations.append(observation)
        episode.actions.append(action)
        episode.rewards.append(rows.reward[place])
        episode.terminated, episode.truncated = bool(rows.terminated[place]), bool(rows.truncated[place])

    def _abort(self, i: int, reason: str) -> None:
        if self.lives[i]:
            self.lives[i][-1].aborted = reason
        steps = self.lives[i][-1].steps if self.lives[i] else 0
        rule = _FAULT_RULES.get(reason.partition(":")[0], Rule.API)
        self._add(rule, i, steps + 1, "an episode that its env ends", reason)

    def _add(self, rule: Rule, i: int, step: int, expected: str, found: str) -> None:
        episode = max(len(self.lives[i]) - 1, 0)
        self._findings.add(rule, i, episode, step, expected=expected, found=found)


def _row(leaves: Leaves, place: int) -> Leaves:
    # With the dtype, since a string by itself would become an array of another one.
    return tuple(np.array(leaf[place], leaf.dtype) for leaf in leaves)
