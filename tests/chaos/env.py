"""Environments that say in every observation whose it is and when it was made, so that any mix-up of steps shows."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Discrete

# Where an observation says what: the producer's ordinal, the start of its process, and so on.
PRODUCER, START, ENV, EPISODE, STEP = range(5)
# No two starts of a producer share a nanosecond.
_THIS_START = time.time_ns()
_MEAN_LENGTH = 20
_LONG_SHARE, _LONG_FACTOR = 0.03, 15


class Marked(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """An env whose observations are (producer, start, env, episode, step), int64, shape (5,).

    Lengths are drawn from the seed of each episode: about 20 steps, and now and then some hundreds.

    Args:
        producer: the producer's ordinal.
        env_index: the env's index in its vector.
        pace: seconds that a step of the first env takes: of a vector that is stepped in lanes, that of each step.
    """

    def __init__(self, producer: int, env_index: int, pace: float) -> None:
        self.observation_space = Box(0, 1 << 62, (5,), np.int64)
        self.action_space = Discrete(5)
        self._pace = pace if env_index == 0 else 0.0
        self._now = np.array([producer, _THIS_START, env_index, -1, 0], np.int64)
        self._length = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        mean = _MEAN_LENGTH * (_LONG_FACTOR if self.np_random.random() < _LONG_SHARE else 1)
        self._length = int(self.np_random.geometric(1 / mean))
        self._now[EPISODE] += 1
        self._now[STEP] = 0
        return self._now.copy(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        """Count; the reward tells the episode and the step."""
        if self._pace:
            time.sleep(self._pace)
        self._now[STEP] += 1
        done = int(self._now[STEP]) >= self._length
        terminated = done and self._length % 2 == 0
        reward = float(self._now[EPISODE]) + float(self._now[STEP]) / 8
        return self._now.copy(), reward, terminated, done and not terminated, {}


def make(producer: str, env_index: int, pace: float = 0.0) -> Marked:
    """Make one env of a producer whose name ends in its ordinal."""
    return Marked(int(producer.rpartition("-")[2]), env_index, pace)


class Stamped(CartPoleVectorEnv):
    """CartPole, whose info `wall_ns` says when each observation was made, and which can be held to a rate.

    Args:
        num_envs: how many envs.
        steps_per_second: of all of them together, at most; 0 for no limit.
    """

    def __init__(self, num_envs: int, steps_per_second: float) -> None:
        super().__init__(num_envs)
        self._seconds = num_envs / steps_per_second if steps_per_second else 0.0
        self._next = time.monotonic()

    def reset(self, **given: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Reset all."""
        observation, _ = super().reset(**given)
        return observation, self._stamp()

    def step(self, action: np.ndarray[Any, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all, once it is time."""
        if self._seconds:
            # A step that comes late is made up for, so that the mean rate holds.
            self._next += self._seconds
            if (early := self._next - time.monotonic()) > 0:
                time.sleep(early)
        *answered, _ = super().step(action)
        observation, reward, terminated, truncated = answered
        return observation, reward, terminated, truncated, self._stamp()

    def _stamp(self) -> dict[str, Any]:
        present = np.ones(self.num_envs, np.bool_)
        return {"wall_ns": np.full(self.num_envs, time.time_ns()), "_wall_ns": present}


def make_stamped(num_envs: int, steps_per_second: float = 0.0) -> Stamped:
    """Make a vector of stamped CartPoles."""
    return Stamped(num_envs, steps_per_second)
