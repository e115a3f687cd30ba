"""Environments for the tests of collecting: some whose long episodes pay more, some that break."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LOTTERY = f"{__name__}:Lottery"
BREAKING = f"{__name__}:Breaking"
NESTED = f"{__name__}:Nested"
DRAWN = f"{__name__}:Drawn"
LONG, SHORT = 20, 1


class Lottery(gymnasium.Env[Any, Any]):
    """An episode lasts and pays 20 or 1, as likely as not."""

    observation_space: spaces.Space[Any] = spaces.Box(0, LONG, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = LONG if self.np_random.random() < 0.5 else SHORT
        return np.array([self.left], np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


class Fixed(Lottery):
    """All episodes are of so many steps."""

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, **given: Any) -> Any:
        answer = super().reset(**given)
        self.left = self.length
        return answer


class Breaking(Lottery):
    """All episodes are long; of every three of an env the second breaks in its last step."""

    episode = -1

    def reset(self, **given: Any) -> Any:
        self.episode += 1
        answer = super().reset(**given)
        self.left = LONG
        return answer

    def step(self, action: Any) -> Any:
        if self.left == 1 and self.episode % 3 == 1:
            raise ValueError("the pole is missing")
        return super().step(action)


class Nested(gymnasium.Env[Any, Any]):
    """Observes a dict with a tuple in it; its info is there in every other step; its third step is the last."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {
            "at": spaces.Discrete(9, start=1),
            "rest": spaces.Tuple((spaces.Box(-1, 9, (2,), np.float64), spaces.MultiBinary(3))),
        }
    )
    action_space: spaces.Space[Any] = spaces.Box(-0.1, 0.1, (2,), np.float32)

    def observe(self) -> Any:
        at = np.int64(1 + self.at)
        return {"at": at, "rest": (np.full(2, self.at, np.float64), np.array([0, 1, self.at % 2], np.int8))}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self.observe(), {"even": 0.0}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.observe(), float(self.at), False, self.at == 3, {} if self.at % 2 else {"even": float(self.at)}


class Drawn(Lottery):
    """Draws itself as a frame of the steps that are left."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((16, 32, 3), 10 * self.left, np.uint8) if self.render_mode == "rgb_array" else None


def lotteries(num_envs: int, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv([Lottery] * num_envs, autoreset_mode=AutoresetMode[mode])
