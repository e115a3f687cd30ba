"""The rules that a ready-made vector environment has to keep by itself, as gymnasium's API has it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock_producers.check.rules import Rule
from penstock_producers.check.values import describe
from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.autoreset import declared_mode
from penstock_producers.envs.closing import close_vector_env
from penstock_producers.spaces import batch_reader, from_gymnasium
from penstock_schemas.errors import EnvError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.check.report import Findings
    from penstock_producers.envs.closing import AnyVectorEnv
    from penstock_producers.envs.source import EnvSource
    from penstock_schemas.spaces import Leaves

_STEP_PARTS = 5


class _Stop(Exception):  # noqa: N818  (no error: what was found stands among the findings)
    """What comes next cannot be judged."""


def check_vector(source: EnvSource, num_envs: int, *, steps: int, seed: int, findings: Findings) -> None:
    """Check a vector entry point's own answers; what needs rows or a twin is judged elsewhere."""
    try:
        env = source.vector(num_envs)
    except EnvError as error:
        findings.add(Rule.API, 0, 0, 0, expected="a vector env", found=str(error))
        return
    run = _Run(env, num_envs, findings)
    try:
        run.play(steps, seed)
    except _Stop:
        pass
    finally:
        run.close()


class _Run:
    """One vector env, stepped at random, and each answer judged."""

    def __init__(self, env: AnyVectorEnv, num_envs: int, findings: Findings) -> None:
        self._env = env
        self._findings = findings
        self._done = np.zeros(num_envs, np.bool_)
        self._episodes, self._steps = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def play(self, steps: int, seed: int) -> None:
        """Reset with a seed, step, and reset with options."""
        env = self._env
        try:
            num_envs, self._mode = env.num_envs, declared_mode(env)
            self._spaces = copy.deepcopy((env.single_observation_space, env.single_action_space))
            sampler = copy.deepcopy(env.action_space)
            sampler.seed(seed)
        except CONTAINED as error:
            self._stop(Rule.API, "its number of envs, metadata and spaces", told(error))
        if num_envs != len(self._done):
            self._stop(Rule.API, f"num_envs {len(self._done)}, as was asked for", repr(num_envs))
        if not isinstance(self._mode, AutoresetMode):
            self._stop(Rule.API, "metadata['autoreset_mode'] to be an AutoresetMode", repr(self._mode))
        try:
            actions = batch_reader(from_gymnasium(self._spaces[1], "action"))
        except SpaceError as error:
            self._stop(Rule.RECORDABLE_SPACES, "spaces that are mapped to Arrow", str(error))
        self._reset(Rule.SEEDING, seed=seed)
        for _ in range(steps):
            self._step(sampler.sample(), actions)
        self._episodes += self._steps > 0
        self._steps[:] = 0
        self._reset(Rule.RESET_OPTIONS, options={})

    def close(self) -> None:
        """Close the env."""
        try:
            close_vector_env(self._env)
        except CONTAINED as error:
            self._add(Rule.API, "close() to return", told(error))

    def _reset(self, about: Rule, **given: Any) -> None:
        try:
            answer: Any = self._env.reset(**given)
        except CONTAINED as error:
            self._stop(about, f"reset(**{given}) to be taken", told(error))
        if not isinstance(answer, tuple) or len(answer) != 2:  # noqa: PLR2004  (the observations and the infos)
            self._stop(Rule.API, "(observations, infos) from reset()", describe(answer))
        self._judge_infos(answer[1])
        self._check_spaces()

    def _step(self, action: Any, read: Callable[[Any], Leaves]) -> None:
        before = tuple(leaf.copy() for leaf in read(action))
        try:
            answer: Any = self._env.step(action)
        except CONTAINED as error:
            self._stop(Rule.API, "step() to answer", told(error))
        if not isinstance(answer, tuple) or len(answer) != _STEP_PARTS:
            self._stop(Rule.API, "(observations, rewards, terminated, truncated, infos)", describe(answer))
        _, rewards, terminated, truncated, infos = answer
        reset = self._done if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(self._done)
        self._episodes += reset
        self._steps = np.where(reset, 0, self._steps + 1)
        for sent, leaf in zip(before, read(action), strict=True):
            if not np.array_equal(sent, leaf):
                self._add(Rule.ACTION_MUTATED, f"actions {sent.tolist()}", f"{leaf.tolist()}")
        self._judge_infos(infos)
        self._judge_column("rewards", rewards, "fiu", "floats or integers")
        self._judge_column("terminated", terminated, "b", "bools")
        self._judge_column("truncated", truncated, "b", "bools")
        self._judge_resets(reset, rewards, infos)
        self._done = (terminated | truncated) & ~reset
        if self._mode is not AutoresetMode.NEXT_STEP:
            if self._mode is AutoresetMode.DISABLED and self._done.any():
                self._reset(Rule.RESET_OPTIONS, options={"reset_mask": self._done.copy()})
            self._episodes += self._done
            self._steps[self._done] = 0

    def _judge_column(self, name: str, column: Any, kinds: str, of: str) -> None:
        if not isinstance(column, np.ndarray) or column.shape != self._done.shape or column.dtype.kind not in kinds:
            self._stop(Rule.API, f"{name} as an array of shape {self._done.shape} of {of}", describe(column))

    def _judge_resets(self, reset: np.ndarray[Any, np.dtype[np.bool_]], rewards: Any, infos: Any) -> None:
        for i in np.flatnonzero(reset).tolist():
            if rewards[i] != 0:
                expected = "a reward of 0 in the row after an end: in NEXT_STEP it is a reset's"
                self._add(Rule.RESET_ROW, expected, str(rewards[i]), i)
        if self._mode is AutoresetMode.NEXT_STEP and isinstance(infos, dict) and "final_obs" in infos:
            expected = "no infos['final_obs'] in NEXT_STEP, where an end's observation is returned as any other"
            self._add(Rule.RESET_ROW, expected, "final_obs, as in SAME_STEP")

    def _judge_infos(self, infos: Any) -> None:
        if not isinstance(infos, dict):
            self._add(Rule.INFO_DICT, "a dict", describe(infos))

    def _check_spaces(self) -> None:
        spaces = (self._env.single_observation_space, self._env.single_action_space)
        if spaces != self._spaces and Rule.SPACES_FIXED not in self._findings:
            self._add(Rule.SPACES_FIXED, f"the spaces {self._spaces}", str(spaces))

    def _add(self, rule: Rule, expected: str, found: str, env: int = 0) -> None:
        episode, step = int(self._episodes[env]), int(self._steps[env])
        self._findings.add(rule, env, episode, step, expected=expected, found=found)

    def _stop(self, rule: Rule, expected: str, found: str) -> NoReturn:
        self._add(rule, expected, found)
        raise _Stop
