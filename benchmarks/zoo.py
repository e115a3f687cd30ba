"""Environments that exist to be measured with."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

_FRAME = (84, 84, 4)
_EPISODE_STEPS = 200


class Arm(gymnasium.Env[dict[str, Any], np.int64]):
    """A Dict of four observations, each step a little arithmetic."""

    observation_space = gymnasium.spaces.Dict(
        {
            "goal": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "joints": gymnasium.spaces.Box(-np.inf, np.inf, (7,), np.float32),
            "mode": gymnasium.spaces.Discrete(4),
            "touch": gymnasium.spaces.Box(0, 255, (4,), np.uint8),
        }
    )
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self._joints = np.zeros(7, np.float32)
        self._goal = np.zeros(3, np.float32)
        self._touch = np.zeros(4, np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin with random joints."""
        super().reset(seed=seed, options=options)
        self._joints = self.np_random.standard_normal(7, np.float32)
        self._goal = self.np_random.standard_normal(3, np.float32)
        self._steps = 0
        return self._observation(0), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move a joint."""
        self._joints[action] += np.float32(0.1)
        self._steps += 1
        return self._observation(int(action)), 1.0, False, self._steps == _EPISODE_STEPS, {}

    def _observation(self, mode: int) -> dict[str, Any]:
        return {"goal": self._goal, "joints": self._joints.copy(), "mode": mode, "touch": self._touch}


class Sleeper(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """An env whose every step takes so many milliseconds, the first of its kind as many as `slow`."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env_index: int, slow: float = 20.0, fast: float = 1.0) -> None:
        self._seconds = (fast if env_index else slow) / 1000
        self._zero = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed, options=options)
        return self._zero, {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        del action
        time.sleep(self._seconds)
        return self._zero, 1.0, False, False, {}


def sleeper(env_index: int, slow: float = 20.0, fast: float = 1.0) -> Sleeper:
    """Make a `Sleeper`; its index tells which is the slow one."""
    return Sleeper(env_index, slow, fast)


class Frames(VectorEnv[np.ndarray[Any, Any], np.ndarray[Any, Any], Any]):
    """Frames that cost nothing: the same arrays again and again."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (gymnasium's own way)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 255, _FRAME, np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(4)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        rng = np.random.default_rng(0)
        self._frames = rng.integers(0, 256, (4, num_envs, *_FRAME), np.uint8)
        self._reward = np.zeros(num_envs, np.float32)
        self._never = np.zeros(num_envs, np.bool_)
        self._steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Begin."""
        del seed, options
        return self._frames[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Give the next frames."""
        del actions
        self._steps += 1
        return self._frames[self._steps % 4], self._reward, self._never, self._never, {}


def frames(num_envs: int) -> Frames:
    """Make `Frames`."""
    return Frames(num_envs)
