"""Factories and wrappers that tell what they were given, and some that are broken on purpose."""

from __future__ import annotations

from typing import Any

import gymnasium

from tests.producers.env_zoo import CountingEnv, CountingVectorEnv

NO_WRAPPER = 3


class ToldEnv(CountingEnv):
    """Remembers what its factory was given, and whether it was closed."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__()
        self.told = told
        self.closed = False

    def close(self) -> None:
        self.closed = True


def told(env_index: int, producer: str, size: int = 1) -> ToldEnv:
    return ToldEnv({"env_index": env_index, "producer": producer, "size": size})


def told_anything(**kwargs: Any) -> ToldEnv:
    return ToldEnv(kwargs)


class ToldVectorEnv(CountingVectorEnv):
    def __init__(self, num_envs: int, producer: str) -> None:
        super().__init__(num_envs)
        self.producer = producer


def mask_reward(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(env, lambda _: 0.0)


def unwrap(env: gymnasium.Env[Any, Any]) -> str:
    return "no env"


class BrokenWrapperError(Exception):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__("no pole to hold")
        self.env = env


def break_at_once(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    raise BrokenWrapperError(env)
