"""Environments that tell in their observations what they did, and environments that are broken on purpose."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import ClipReward

NOT_CALLABLE = "text"
OBSERVATIONS = spaces.Box(0, np.inf, (3,), np.float32)
ACTIONS = spaces.Discrete(2)


class Counter:
    """One env's course: episode e of a seed always has the same length, and ends in one of three ways in turn."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.seed = 0
        self.episode = -1
        self.step_ = 0
        self.generator, _ = seeding.np_random(0)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self.generator, _ = seeding.np_random(seed)
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.step_ = 0
        self.length = int(self.generator.integers(1, self.longest + 1))

    def step(self) -> tuple[float, bool, bool]:
        self.step_ += 1
        done = self.step_ == self.length
        way = self.episode % 3
        return 1000.0 * self.episode + self.step_, done and way != 1, done and way != 0

    @property
    def observation(self) -> tuple[int, int, int]:
        return self.seed, self.episode, self.step_


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes (seed, episode, step); with `one_buffer` always in the same array."""

    observation_space: spaces.Space[Any] = OBSERVATIONS
    action_space = ACTIONS

    def __init__(self, longest: int = 5, *, one_buffer: bool = False) -> None:
        self.counter = Counter(longest)
        self.buffer = np.zeros(3, np.float32) if one_buffer else None

    def observe(self) -> Any:
        if self.buffer is None:
            return np.array(self.counter.observation, np.float32)
        self.buffer[:] = self.counter.observation
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.counter.reset(seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        reward, terminated, truncated = self.counter.step()
        return self.observe(), reward, terminated, truncated, {}


class CountingVectorEnv(VectorEnv[Any, Any, Any]):
    """The same courses, hand-written in any mode, every answer in the same buffers, rewards in float32."""

    def __init__(self, num_envs: int, mode: str = "NEXT_STEP", longest: int = 5) -> None:
        self.mode = AutoresetMode[mode]
        self.metadata = {"autoreset_mode": self.mode}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.counters = [Counter(longest) for _ in range(num_envs)]
        self.observations = np.zeros((num_envs, 3), np.float32)
        self.rewards = np.zeros(num_envs, np.float32)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)

    def observe(self) -> None:
        self.observations[:] = [counter.observation for counter in self.counters]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        mask = self.mask_of(options)
        for i in np.flatnonzero(mask).tolist():
            self.counters[i].reset(None if seed is None else seed + i)
            self.rewards[i], self.terminated[i], self.truncated[i] = -1, False, False
        self.observe()
        return self.observations, {}

    def mask_of(self, options: dict[str, Any] | None) -> Any:
        # As gymnasium does: the mask is taken out of the caller's dict.
        return (options or {}).pop("reset_mask", np.ones(self.num_envs, np.bool_))

    def step(self, actions: Any) -> Any:
        before = self.terminated | self.truncated
        for i, counter in enumerate(self.counters):
            if before[i] and self.mode is AutoresetMode.NEXT_STEP:
                counter.reset(None)
                self.rewards[i], self.terminated[i], self.truncated[i] = -1, False, False
            else:
                self.rewards[i], self.terminated[i], self.truncated[i] = counter.step()
        self.observe()
        infos = {}
        done = self.terminated | self.truncated
        if self.mode is AutoresetMode.SAME_STEP and done.any():
            infos = self.final(done)
            for i in np.flatnonzero(done).tolist():
                self.counters[i].reset(None)
            self.observe()
        return self.observations, self.rewards, self.terminated, self.truncated, infos

    def final(self, done: Any) -> dict[str, Any]:
        return {"final_obs": self.observations.copy(), "_final_obs": done}


class MaskIgnoringEnv(CountingVectorEnv):
    """Resets all envs, whatever the mask says."""

    def mask_of(self, options: dict[str, Any] | None) -> Any:
        return np.ones_like(super().mask_of(options))


class CorridorEnv(CountingVectorEnv):
    """Observes how often each env went on; only env 0 ends, with each step, and every reset is one of all."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "DISABLED")
        self.truncated[0] = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.mask_of(options)
        self.observations[:] = 0
        return self.observations, {}

    def step(self, actions: Any) -> Any:
        self.observations[:, 0] += actions
        return self.observations, self.rewards, self.terminated, self.truncated, {}


class ForgetfulEnv(CountingVectorEnv):
    """SAME_STEP without the last observations."""

    def final(self, done: Any) -> dict[str, Any]:
        return {"final_obs": np.full(self.num_envs, None), "_final_obs": np.zeros_like(done)}


class NarrowFinalEnv(CountingVectorEnv):
    """SAME_STEP with last observations of another shape."""

    def final(self, done: Any) -> dict[str, Any]:
        final = np.full(self.num_envs, None)
        final[:] = [row[:2] for row in self.observations]
        return {"final_obs": final, "_final_obs": done}


class LateFlagsEnv(CountingVectorEnv):
    """NEXT_STEP, but the flags of a done row are still up in the reset row that follows it."""

    def step(self, actions: Any) -> Any:
        before = np.stack([self.terminated, self.truncated])
        observations, rewards, terminated, truncated, infos = super().step(actions)
        return observations, rewards, terminated | before[0], truncated | before[1], infos


class MisfitEnv(CountingVectorEnv):
    """Answers with arrays that are not what its spaces say; `what` chooses one."""

    def __init__(self, num_envs: int, what: str) -> None:
        super().__init__(num_envs)
        self.what = what
        self.resets = 0

    def reset(self, **kwargs: Any) -> Any:
        observations, infos = super().reset(**kwargs)
        self.resets += 1
        if self.what == "observation dtype":
            return observations.astype(np.float64), infos
        if self.what == "observation list":
            return observations.tolist(), infos
        return observations, infos

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        if self.what == "observation shape":
            observations = observations[:, :2]
        if self.what == "reward":
            rewards = rewards.astype(object)
        if self.what == "later reward" and self.resets > 1:
            rewards = rewards.astype(np.float64)
        if self.what == "flags":
            terminated = terminated.astype(np.int8)
        return observations, rewards, terminated, truncated, infos


class ListeningEnv(CountingVectorEnv):
    """Appends the actions that it gets to the list that it is given."""

    def __init__(self, num_envs: int, heard: list[Any]) -> None:
        super().__init__(num_envs)
        self.action_space = batch_space(spaces.Discrete(2), num_envs)  # with a random generator of its own
        self.heard = heard

    def step(self, actions: Any) -> Any:
        self.heard.append(actions.tolist())
        return super().step(actions)


class ClosableEnv(CountingVectorEnv):
    """Counts in the list that it is given how often it was closed."""

    def __init__(self, num_envs: int, closed: list[bool]) -> None:
        super().__init__(num_envs)
        self.closings = closed

    def close_extras(self, **_: Any) -> None:
        self.closings.append(True)


def wrapped(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """A vector wrapper around gymnasium's async vector env."""
    return ClipReward(AsyncVectorEnv([CountingEnv] * num_envs), min_reward=0.0, max_reward=1.0)


def sync_cart_poles(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """gymnasium's own vector env."""
    return SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs)


def moded(num_envs: int, mode: Any) -> CountingVectorEnv:
    """A vector env whose metadata declare `mode`; nothing where it is "absent"."""
    env = CountingVectorEnv(num_envs)
    env.metadata = {} if mode == "absent" else {"autoreset_mode": mode}
    return env


def dict_space(num_envs: int) -> CountingVectorEnv:
    env = CountingVectorEnv(num_envs)
    env.single_observation_space = spaces.Dict({"a": OBSERVATIONS})
    return env


def one_too_many(num_envs: int) -> CountingVectorEnv:
    return CountingVectorEnv(num_envs + 1)


def no_env() -> str:
    return "no env"


def no_vector_env(num_envs: int) -> CountingEnv:
    return CountingEnv()


def hidden_vector_env() -> CountingVectorEnv:
    return CountingVectorEnv(2)


class FailingEnv(CountingEnv):
    """Raises at its third step; or, with `dying`, ends its process there where it was seeded with that."""

    def __init__(self, dying: int | None = None) -> None:
        super().__init__(longest=1)
        self.dying = dying
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3 and self.dying is None:
            raise ValueError("the pole is missing")
        if self.steps == 3 and self.dying == self.counter.seed:
            os._exit(1)
        return self.observe(), 0.0, False, False, {}


class LongEnv(CountingEnv):
    """Of which no test sees an end."""

    def __init__(self) -> None:
        super().__init__(longest=10**6)


class LeavingEnv(LongEnv):
    """Ends the interpreter at its third step."""

    def step(self, action: Any) -> Any:
        if self.counter.step_ == 2:
            sys.exit(0)
        return super().step(action)


class InformingEnv(LongEnv):
    """Raises at its fourth step; gives an info, and in its third step one of another shape."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], {"mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        observation, reward, *ends, _ = super().step(action)
        if self.counter.step_ == 4:
            raise ValueError("the pole is missing")
        return observation, reward, *ends, {"mask": np.ones(2 if self.counter.step_ < 3 else 3, np.int8)}


class StuckEnv(LongEnv):
    """Allows every action, and none any more after its third step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], {"allowed": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:-1], {"allowed": np.full(2, self.counter.step_ < 3, np.int8)}


class TalkingEnv(gymnasium.Env[Any, Any]):
    """Says what cannot be written; env 0 behaves."""

    observation_space: spaces.Space[Any] = spaces.Text(5, charset="abc")
    action_space = ACTIONS

    def __init__(self, env_index: int) -> None:
        self.what = ["abc", "x" * 9000, "\ud800", "raise"][env_index]
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return "a", {"said": "hello"}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps < 3:
            return "b", 0.0, False, False, {"said": self.what * 100}
        if self.what == "raise":
            raise RuntimeError("bad \ud800")
        return self.what, 0.0, False, False, {}


class FrameEnv(CountingEnv):
    """Observes large frames, all of whose pixels are the step."""

    def __init__(self) -> None:
        super().__init__(longest=100)
        self.observation_space = spaces.Box(0, 255, (40, 40), np.uint8)

    def observe(self) -> Any:
        return np.full((40, 40), self.counter.step_, np.uint8)


class GreedyEnv(CountingVectorEnv):
    """Changes the actions that it is given."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def step(self, actions: Any) -> Any:
        actions *= 0
        return super().step(actions)


class RunawayEnv(CountingVectorEnv):
    """Observes a Discrete; from its third step on a value that is none of it."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_observation_space = spaces.Discrete(5)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.steps = 0

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return np.zeros(self.num_envs, np.int64), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        _, *rest = super().step(actions)
        return np.full(self.num_envs, 259 if self.steps > 3 else 3), *rest


class SignalledEnv(CountingEnv):
    """Interrupts its process; observes the process id, and whether SIGTERM has its default effect there."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return np.array([os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL])

    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, False, {}


gymnasium.register("penstock-test/Counting-v1", entry_point=f"{__name__}:CountingEnv")
gymnasium.register("penstock-test/Counting-v2", entry_point=f"{__name__}:CountingEnv")
gymnasium.register("penstock-test/OnlyVector-v0", vector_entry_point=f"{__name__}:CountingVectorEnv")
gymnasium.register(
    "penstock-test/Limited-v0", entry_point=f"{__name__}:CountingEnv", max_episode_steps=3, kwargs={"longest": 4}
)


class HeldEnv(CountingEnv):
    """Env 1 takes its third step only once someone opens the pipe at `path` for writing."""

    def __init__(self, path: str, env_index: int) -> None:
        super().__init__(longest=10**6)
        self.pipe = path if env_index == 1 else None

    def step(self, action: Any) -> Any:
        if self.pipe is not None and self.counter.step_ == 2:
            os.close(os.open(self.pipe, os.O_RDONLY))
        return super().step(action)
