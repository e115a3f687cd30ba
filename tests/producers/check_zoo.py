"""Environments that keep every rule of the conformance check, or break exactly one."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 7
"""Steps of every episode."""
AT = 4
"""The step of an episode in which most broken envs break."""


class WalkEnv(gymnasium.Env[Any, Any]):
    """A random walk whose steps the actions push; ends after `LENGTH` steps; keeps every rule."""

    def __init__(self, mode: str | None = None) -> None:
        del mode  # the vector env's
        self.observation_space: spaces.Space[Any] = spaces.Box(-100, 100, (3,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        self.place = self.np_random.uniform(-1, 1, 2)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place = self.place + action + self.np_random.normal(size=2)
        return self.observe(), float(self.place.sum()), *self.end(), {}

    def end(self) -> tuple[bool, bool]:
        return self.steps == LENGTH, False

    def observe(self) -> Any:
        return np.array([self.steps, *self.place], np.float32)


class DictEnv(WalkEnv):
    """Keeps every rule, with nested observations and actions."""

    def __init__(self) -> None:
        super().__init__()
        inner = spaces.Tuple([spaces.Discrete(LENGTH + 2, start=-1), spaces.MultiBinary(2)])
        place = spaces.Box(-np.inf, np.inf, (2,))
        self.observation_space = spaces.Dict({"place": place, "inner": inner, "word": spaces.Text(3, min_length=0)})
        self.action_space = spaces.Dict({"push": spaces.Discrete(3, start=-1), "side": spaces.MultiDiscrete([2, 3])})

    def step(self, action: Any) -> Any:
        return super().step(np.array([action["push"], *action["side"]][:2], np.float32))

    def observe(self) -> Any:
        bits = np.array([self.steps % 2, 1], np.int8)
        return {
            "place": self.place.astype(np.float32),
            "inner": (self.steps - 1, bits),
            "word": "abc"[: self.steps % 4],
        }


class RecordEnv(WalkEnv):
    """Keeps every rule, and observes a record of numpy's, which is indexed as a dict is."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"place": spaces.Box(-np.inf, np.inf, (2,)), "steps": spaces.Discrete(9)})

    def observe(self) -> Any:
        return np.array((self.place, self.steps), [("place", "f4", (2,)), ("steps", "i8")])[()]


class ExpensiveEnv(WalkEnv):
    """Keeps every rule, but there are only two of it."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        ExpensiveEnv.made += 1
        if ExpensiveEnv.made > 2:
            raise RuntimeError("only two licences")


class OptionsExitEnv(WalkEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options is not None:
            sys.exit(4)
        return super().reset(seed=seed)

    def close(self) -> None:
        sys.exit(5)


class ExtraKeyEnv(DictEnv):
    def observe(self) -> Any:
        return super().observe() | {"more": 1}


class RaisingEnv(WalkEnv):
    def step(self, action: Any) -> Any:
        if self.steps == AT - 1:
            raise RuntimeError("out of road")
        return super().step(action)


class OldApiEnv(WalkEnv):
    """A step of four parts, as it was in gym."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class NumberFlagEnv(WalkEnv):
    def end(self) -> Any:
        return int(self.steps == LENGTH), False


class ManyFlagsEnv(WalkEnv):
    """Tells of the end of each of two, of which it is one."""

    def end(self) -> Any:
        return np.array([self.steps == LENGTH, False]), False


class LeavingEnv(WalkEnv):
    def step(self, action: Any) -> Any:
        if self.steps == AT - 1:
            sys.exit("enough")
        return super().step(action)


class SpacelessEnv(WalkEnv):
    def __init__(self) -> None:
        super().__init__()
        del self.observation_space


class UncloseableEnv(WalkEnv):
    def close(self) -> None:
        raise OSError("the window is gone")


class GraphEnv(WalkEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Graph(spaces.Discrete(2), None)


class GrowingEnv(WalkEnv):
    """Its observation space is wider in its second episode."""

    def reset(self, **given: Any) -> Any:
        answer = super().reset(**given)
        if self.episode == 1:
            self.observation_space = spaces.Box(-200, 200, (3,), np.float32)
        return answer


class StretchingEnv(WalkEnv):
    """Writes wider bounds into the observation space that it has."""

    def reset(self, **given: Any) -> Any:
        answer = super().reset(**given)
        if self.episode == 1:
            self.observation_space.high[:] = 200  # type: ignore[attr-defined]  # a Box
        return answer


class WideEnv(WalkEnv):
    """An observation of float64 where float32 was said."""

    def observe(self) -> Any:
        observation = super().observe()
        return observation.astype(np.float64) if self.steps == AT else observation


class LongEnv(WalkEnv):
    """An observation of another shape."""

    def observe(self) -> Any:
        observation = super().observe()
        return np.append(observation, observation) if self.steps == AT else observation


class OutsideEnv(WalkEnv):
    def observe(self) -> Any:
        observation = super().observe()
        if self.steps == AT:
            observation[1] = 101
        return observation


class NanEnv(WalkEnv):
    def observe(self) -> Any:
        observation = super().observe()
        if self.steps == AT:
            observation[1] = np.nan
        return observation


class InfiniteRewardEnv(WalkEnv):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.inf if self.steps == AT else reward, *rest


class HugeRewardEnv(WalkEnv):
    """Its reward is no float's."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, 10**400 if self.steps == AT else reward, *rest


class TextRewardEnv(WalkEnv):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, "1.5" if self.steps == AT else reward, *rest


class NoInfoEnv(WalkEnv):
    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, None if self.steps == AT else info


class GreedyEnv(WalkEnv):
    """Clips its action where it lies."""

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        if self.steps == AT:
            action[:] = 0
        return answer


class OneBufferEnv(WalkEnv):
    """Observes into the same array always."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(3, np.float32)

    def observe(self) -> Any:
        self.buffer[:] = super().observe()
        return self.buffer


class OptionlessEnv(WalkEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options is not None:
            raise ValueError("no options here")
        return super().reset(seed=seed)


class UnseededEnv(WalkEnv):
    """Draws one step from a generator that no seed reaches."""

    def step(self, action: Any) -> Any:
        if self.steps == AT - 1:
            self.place = self.place + np.random.default_rng().normal(size=2)
        return super().step(action)


class RememberingEnv(WalkEnv):
    """Goes on from where its last episode ended, whatever the seed."""

    place: Any = np.zeros(2)

    def reset(self, **given: Any) -> Any:
        place = self.place
        super().reset(**given)
        self.place = place
        return self.observe(), {}


class LateSeedEnv(WalkEnv):
    """Heeds no seed in its second reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if self.episode == 0 else seed)


class DriftingEnv(WalkEnv):
    """Each one made drifts in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.drift = np.random.default_rng().normal(size=2)

    def step(self, action: Any) -> Any:
        return super().step(action + self.drift)


class ShortSeedEnv(WalkEnv):
    """Takes seeds of 16 bits only."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None and seed >= 2**16:
            raise ValueError("a seed of 16 bits, please")
        return super().reset(seed=seed)


class LevelEnv(WalkEnv):
    """Begins at the same place always; keeps every rule."""

    def reset(self, **given: Any) -> Any:
        _, info = super().reset(**given)
        self.place = np.zeros(2)
        return self.observe(), info


class RailEnv(LevelEnv):
    """Moves by its actions alone; keeps every rule."""

    def step(self, action: Any) -> Any:
        before = self.place
        _, _, *rest = super().step(action)
        self.place = before + action
        return self.observe(), float(self.place.sum()), *rest


class WalkVectorEnv(VectorEnv[Any, Any, Any]):
    """As many walks, in any mode, seeded as gymnasium's are; keeps every rule."""

    single: type[WalkEnv] = WalkEnv

    def __init__(self, num_envs: int, mode: str = "NEXT_STEP") -> None:
        self.mode = AutoresetMode[mode]
        self.metadata = {"autoreset_mode": self.mode}
        self.num_envs = num_envs
        self.envs = [self.single() for _ in range(num_envs)]
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.done = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        mask = (options or {}).pop("reset_mask", np.ones(self.num_envs, np.bool_))
        for i in np.flatnonzero(mask).tolist():
            self.envs[i].reset(seed=None if seed is None else seed + i)
        self.done = self.done & ~mask
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        rewards = np.zeros(self.num_envs)
        done = np.zeros(self.num_envs, np.bool_)
        for i, env in enumerate(self.envs):
            if self.done[i] and self.mode is AutoresetMode.NEXT_STEP:
                env.reset()
            else:
                _, rewards[i], done[i], _, _ = env.step(actions[i])
        self.done = done
        observations, infos = self.observe(), {}
        if self.mode is AutoresetMode.SAME_STEP and done.any():
            observations, infos = self.reset_same_step(observations, done)
        return observations, rewards, done, np.zeros(self.num_envs, np.bool_), infos

    def reset_same_step(self, last: Any, done: Any) -> Any:
        for i in np.flatnonzero(done).tolist():
            self.envs[i].reset()
        return self.observe(), {"final_obs": last, "_final_obs": done}

    def observe(self) -> Any:
        return np.stack([env.observe() for env in self.envs])


class LosingVectorEnv(WalkVectorEnv):
    """SAME_STEP, with the next episode's first observation for the last one's last."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "SAME_STEP")

    def reset_same_step(self, last: Any, done: Any) -> Any:
        observations, infos = super().reset_same_step(last, done)
        return observations, {**infos, "final_obs": observations}


class ResetCountingVectorEnv(WalkVectorEnv):
    """Says SAME_STEP, but shows each last observation once more, as if it were the next episode's first."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "SAME_STEP")

    def reset_same_step(self, last: Any, done: Any) -> Any:
        _, infos = super().reset_same_step(last, done)
        return last, infos


class MisdeclaredVectorEnv(WalkVectorEnv):
    """Says NEXT_STEP, but resets in the same step."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "SAME_STEP")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}


class SparseVectorEnv(MisdeclaredVectorEnv):
    """So too, but rewards ends only, and hands no last observation out."""

    def step(self, actions: Any) -> Any:
        observations, _, done, truncated, _ = super().step(actions)
        return observations, done.astype(np.float64), done, truncated, {}


class EarlyVectorEnv(WalkVectorEnv):
    """Ends each episode a step before the single env does."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        for env in self.envs:
            env.end = lambda env=env: (env.steps == LENGTH - 1, False)  # type: ignore[method-assign,misc]  # broken on purpose


class SlowVectorEnv(WalkVectorEnv):
    """Moves otherwise than the single env in one step."""

    def step(self, actions: Any) -> Any:
        return super().step(np.where(self.envs[0].steps == AT - 1, actions / 2, actions))


class OtherDrawVectorEnv(WalkVectorEnv):
    """Draws from a generator that no seed reaches."""

    def step(self, actions: Any) -> Any:
        return super().step(actions + np.random.default_rng().normal(size=actions.shape))


class NanRewardVectorEnv(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, np.where(self.envs[0].steps == AT, np.nan, rewards), *rest


class InfoListVectorEnv(WalkVectorEnv):
    """Gives a list of infos, as gym's vector envs did."""

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        return *rest, [infos] * self.num_envs


class FloatFlagVectorEnv(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, *rest = super().step(actions)
        return observations, rewards, terminated.astype(np.float64), *rest


class ColumnFlagVectorEnv(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        *answer, truncated, infos = super().step(actions)
        return *answer, truncated[:, None], infos


class OneRewardVectorEnv(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, float(rewards.sum()), *rest


class CountlessVectorEnv(WalkVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        del self.num_envs


class ActionlessVectorEnv(WalkVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        del self.action_space


class SpareVectorEnv(WalkVectorEnv):
    """Has one env more than was asked for."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs + 1)


class OptionlessVectorEnv(WalkVectorEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options is not None:
            raise ValueError("no options here")
        return super().reset(seed=seed)


class GreedyVectorEnv(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        answer = super().step(actions)
        actions[:] = 0
        return answer


class ActingVectorEnv(WalkVectorEnv):
    """NEXT_STEP, but the step that resets takes its action too."""

    def step(self, actions: Any) -> Any:
        for i in np.flatnonzero(self.done).tolist():
            self.envs[i].reset()
        self.done[:] = False
        return super().step(actions)


class LevelVectorEnv(WalkVectorEnv):
    """Keeps every rule, and seeds its envs in its own way."""

    single = LevelEnv

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else seed + 1000, options=options)


class RailVectorEnv(LevelVectorEnv):
    single = RailEnv


class ShortSeedVectorEnv(WalkVectorEnv):
    """Keeps every rule, and seeds its envs in its own way."""

    single = ShortSeedEnv

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else seed % 2**15, options=options)


class ModelessVectorEnv(WalkVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.metadata = {}


VECTORS = (
    *(WalkVectorEnv, LosingVectorEnv, ResetCountingVectorEnv, MisdeclaredVectorEnv, EarlyVectorEnv, SlowVectorEnv),
    *(OtherDrawVectorEnv, InfoListVectorEnv, OptionlessVectorEnv, GreedyVectorEnv, ModelessVectorEnv),
    *(ActingVectorEnv, LevelVectorEnv, RailVectorEnv, ShortSeedVectorEnv),
)
gymnasium.register(
    "SyncWalk-v0", entry_point=WalkEnv, vector_entry_point=lambda num_envs: SyncVectorEnv([WalkEnv] * num_envs)
)
for _vector in VECTORS:
    gymnasium.register(
        f"{_vector.__name__.removesuffix('VectorEnv')}Walk-v0",
        entry_point=_vector.single,
        vector_entry_point=_vector,
    )
