"""The rules that a single env has to keep by itself, as gymnasium's API has it."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock_producers.check.episodes import Episode
from penstock_producers.check.report import Findings, ModeReport
from penstock_producers.check.rules import Rule
from penstock_producers.check.twin import replay
from penstock_producers.check.values import arrays, describe, difference, misfit
from penstock_producers.contained import CONTAINED, told
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.errors import EnvError, SpaceError

if TYPE_CHECKING:
    from penstock_producers.envs.source import EnvSource
    from penstock_producers.envs.wrapper import AnyEnv
    from penstock_schemas.spaces import Leaves

SINGLE = "single"
_STEP_PARTS = 5
# So many later episodes are compared with those of envs that begin with them: odd and even resets are among them.
_LATER_SEEDS = 3
_NO_TWIN = "not compared with a twin, since it breaks more basic rules"


class _Stop(Exception):  # noqa: N818  (no error: what was found stands among the findings)
    """What comes next cannot be judged."""


def check_single(source: EnvSource, *, steps: int, seed: int) -> ModeReport:
    """Check one env by itself for so many steps, then whether its seeds reproduce them.

    Every third episode is reset without a seed: those go on with the generator of the one before.
    """
    findings = Findings()
    life: list[Episode] = []
    try:
        env = source.single(0)
    except EnvError as error:
        findings.add(Rule.API, 0, 0, 0, expected="an env", found=str(error))
        return _report(findings, life, _NO_TWIN)
    try:
        run = _Run(env, life, findings)
        run.play(steps, seed)
        twin = _check_seeding(source, run, findings)
    except _Stop:
        twin = _NO_TWIN
    finally:
        _close(env, len(life), findings)
    return _report(findings, life, twin)


class _Run:
    """One env, stepped at random, and each answer judged."""

    def __init__(self, env: AnyEnv, life: list[Episode], findings: Findings) -> None:
        self.env = env
        self.life = life
        self._findings = findings
        self._held: list[tuple[Any, Leaves, int, int]] = []
        self._episode, self._step = 0, 0
        try:
            self._same_spaces = (env.observation_space, env.action_space)
        except AttributeError as error:
            self._stop(Rule.API, "an observation_space and an action_space", told(error))
        self.spaces = copy.deepcopy(self._same_spaces)
        try:
            self.observation_space = from_gymnasium(env.observation_space, "observation")
            self.action_space = from_gymnasium(env.action_space, "action")
        except SpaceError as error:
            self._stop(Rule.RECORDABLE_SPACES, "spaces that are mapped to Arrow", str(error))

    def play(self, steps: int, seed: int) -> None:
        """Step for so many steps, in as many episodes as that takes."""
        sampler = copy.deepcopy(self.env.action_space)
        sampler.seed(seed)
        done = True
        for _ in range(steps):
            if done:
                self._reset(None if len(self.life) % 3 == 2 else seed + len(self.life))  # noqa: PLR2004  (every third)
            done = self._take(sampler.sample())
        self._reset_with_options(seed)
        self._check_spaces(thoroughly=True)
        self._check_held(self._held)

    def check_replay(self, env: AnyEnv, which: str, episodes: slice = slice(None)) -> None:
        """Have an env live through the same episodes again, or some of them."""
        life, first = self.life[episodes], episodes.start or 0
        try:
            for _, episode, step, expected, found in replay(env, life, self.observation_space, self.action_space):
                self._episode, self._step = first + episode, step
                self._add(Rule.SEEDING, f"{found}, as before", f"{expected} in {which}")
        except CONTAINED as error:
            self._add(Rule.SEEDING, "the same episodes again", f"{told(error)} in {which}")

    def _reset_with_options(self, seed: int) -> None:
        self._episode, self._step = len(self.life), 0
        try:
            self.env.reset(seed=seed, options={})
        except CONTAINED as error:
            self._add(Rule.RESET_OPTIONS, "reset(options={}) to be taken", told(error))

    def _reset(self, seed: int | None) -> None:
        self._episode, self._step = len(self.life), 0
        try:
            answer: Any = self.env.reset(seed=seed)
        except TypeError as error:
            rule = Rule.SEEDING if "seed" in str(error) else Rule.API
            self._stop(rule, "reset(seed=…) to be taken", told(error))
        except CONTAINED as error:
            self._stop(Rule.API, "reset() to answer", told(error))
        if not isinstance(answer, tuple) or len(answer) != 2:  # noqa: PLR2004  (the observation and the info)
            self._stop(Rule.API, "(observation, info) from reset()", describe(answer))
        observation, info = answer
        self.life.append(Episode(seed, [self._judge_observation(observation)]))
        self._judge_info(info)
        self._check_spaces(thoroughly=True)

    def _take(self, action: Any) -> bool:
        self._step += 1
        sent = arrays(self.action_space, action)
        try:
            answer: Any = self.env.step(action)
        except CONTAINED as error:
            self._stop(Rule.API, "step() to answer", told(error))
        changed = difference(self.action_space, sent, arrays(self.action_space, action), "action")
        if changed is not None:
            self._add(Rule.ACTION_MUTATED, *changed)
        if not isinstance(answer, tuple) or len(answer) != _STEP_PARTS:
            self._stop(Rule.API, "(observation, reward, terminated, truncated, info) from step()", describe(answer))
        observation, reward, terminated, truncated, info = answer
        episode = self.life[-1]
        leaves = self._judge_observation(observation)
        episode.rewards.append(self._judge_reward(reward))
        episode.observations.append(leaves)
        episode.actions.append(sent)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self._add(Rule.API, f"{name} as a bool", repr(flag))
        try:
            episode.terminated, episode.truncated = bool(terminated), bool(truncated)
        except ValueError:  # an array, which is told already
            raise _Stop from None
        self._judge_info(info)
        self._check_spaces(thoroughly=False)
        return episode.ended

    def _judge_observation(self, observation: Any) -> Leaves:
        self._check_held(self._held[-1:])
        wrong = misfit(self.observation_space, observation)
        if wrong is not None:
            if not wrong.outside_only:
                self._stop(*wrong)
            self._add(*wrong)
        leaves = arrays(self.observation_space, observation)
        self._held.append((observation, leaves, self._episode, self._step))
        return leaves

    def _judge_reward(self, reward: Any) -> float:
        number = _number(reward)
        if number is None:
            self._stop(Rule.FINITE_REWARD, "a number", repr(reward))
        if not np.isfinite(number):
            self._add(Rule.FINITE_REWARD, "a finite reward", repr(number))
        return number

    def _judge_info(self, info: object) -> None:
        if not isinstance(info, dict):
            self._add(Rule.INFO_DICT, "a dict", describe(info))

    def _check_held(self, held: list[tuple[Any, Leaves, int, int]]) -> None:
        for observation, leaves, episode, step in held:
            changed = difference(self.observation_space, leaves, arrays(self.observation_space, observation))
            if changed is not None and Rule.BUFFER_REUSE not in self._findings:
                expected = f"{changed[0]}, as it was returned in episode {episode}, step {step}"
                self._add(Rule.BUFFER_REUSE, expected, f"{changed[1]}, written over")

    def _check_spaces(self, *, thoroughly: bool) -> None:
        for known, same, name in zip(
            self.spaces, self._same_spaces, ("observation_space", "action_space"), strict=True
        ):
            space = getattr(self.env, name)
            # Comparing two large boxes takes longer than many an env's step.
            if (thoroughly or space is not same) and space != known and Rule.SPACES_FIXED not in self._findings:
                self._add(Rule.SPACES_FIXED, f"{name} {known}", str(space))

    def _add(self, rule: Rule, expected: str, found: str) -> None:
        self._findings.add(rule, 0, self._episode, self._step, expected=expected, found=found)

    def _stop(self, rule: Rule, expected: str, found: str) -> NoReturn:
        self._add(rule, expected, found)
        raise _Stop


def _number(reward: Any) -> float | None:
    """Read a reward as lanes do; None where it is none, as a text is, of which Python would make one."""
    if isinstance(reward, str | bytes):
        return None
    try:
        return float(reward)
    except (TypeError, ValueError, OverflowError):
        return None


def _check_seeding(source: EnvSource, run: _Run, findings: Findings) -> str:
    if Rule.SPACES_FIXED in findings:
        return _NO_TWIN
    try:
        new = source.single(0)
    except EnvError as error:
        findings.add(Rule.API, 0, 0, 0, expected="a second env", found=str(error))
        return _NO_TWIN
    try:
        if (new.observation_space, new.action_space) != run.spaces:
            spaces = f"{new.observation_space} and {new.action_space}"
            findings.add(
                Rule.SPACES_FIXED, 0, 0, 0, expected=f"the spaces {run.spaces}", found=f"{spaces} in a new env"
            )
            return _NO_TWIN
        run.check_replay(new, "a new env")
        run.check_replay(run.env, "the same env, reset with the same seed")
    finally:
        with suppress(*CONTAINED):  # its twin's close() is judged
            new.close()
    # A twin that is reset as often would heed as many seeds.
    later = [number for number, episode in enumerate(run.life) if number and episode.seed is not None]
    for number in later[:_LATER_SEEDS] if Rule.SEEDING not in findings else ():
        _check_alone(source, run, number, findings)
    return "compared with a twin"


def _check_alone(source: EnvSource, run: _Run, number: int, findings: Findings) -> None:
    """Have an env begin with an episode that was another's later one."""
    try:
        env = source.single(0)
    except EnvError as error:
        findings.add(Rule.API, 0, number, 0, expected="one more env", found=str(error))
        return
    try:
        run.check_replay(env, "a new env that begins with it", slice(number, number + 1))
    finally:
        with suppress(*CONTAINED):  # its twin's close() is judged
            env.close()


def _close(env: AnyEnv, episodes: int, findings: Findings) -> None:
    try:
        env.close()
    except CONTAINED as error:
        findings.add(Rule.API, 0, episodes, 0, expected="close() to return", found=told(error))


def _report(findings: Findings, life: list[Episode], twin: str) -> ModeReport:
    steps, episodes = sum(episode.steps for episode in life), sum(episode.ended for episode in life)
    return ModeReport(SINGLE, findings.all(), steps=steps, episodes=episodes, twin=twin)
