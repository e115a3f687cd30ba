"""Envs whose episodes are known beforehand from their seeds, some of which break on purpose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NAME = f"{__name__}:Known"
VECTOR = f"{__name__}:vector_only"


def length_of(seed: int) -> int:
    """From 1 to 23 steps."""
    return 1 + seed * 7 % 23


def return_of(seed: int) -> float:
    """A long episode pays more, with each step."""
    return length_of(seed) * (length_of(seed) + 1) / 2


class Known(gymnasium.Env[Any, Any]):
    """Observes its seed and its step, and rewards with the number of the step; its episode's length is of its seed.

    Args:
        breaks: where the episodes of some seeds break: "step" or "reset", by seed, or "exit", a reset that ends the
            process.
        once: a folder: each of these seeds breaks once only, and leaves a file there.
        levels: how many seeds there are, where the reset of any other breaks.
        strict: whether an action that its mask forbids is paid for: the mask allows 0 to even seeds, 1 to odd ones.
    """

    observation_space: spaces.Space[Any] = spaces.Box(0, 1e6, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(
        self,
        breaks: dict[str, str] | None = None,
        once: str | None = None,
        *,
        levels: int | None = None,
        strict: bool = False,
    ) -> None:
        self.levels = levels
        self.strict = strict
        self.breaks = breaks or {}
        self.once = once
        self.resets: list[tuple[int, Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seed = (seed or 0) % 1000
        self.count = 0
        self.resets.append((seed or 0, options))
        self._break("reset", seed or 0)
        if self.breaks.get(str(seed)) == "exit":
            os._exit(3)
        if self.levels is not None and (seed or 0) >= self.levels:
            raise ValueError(f"there is no level {seed}")
        return self._observe(), self._inform()

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 2:
            self._break("step", self.seed)
        reward = -1000.0 if self.strict and action != self.seed % 2 else float(self.count)
        done = self.count == length_of(self.seed)
        return (
            self._observe(),
            reward,
            done and self.seed % 3 != 1,
            done and self.seed % 3 != 0,
            self._inform(),
        )

    def _observe(self) -> Any:
        return np.array([self.seed, self.count], np.float32)

    def _inform(self) -> dict[str, Any]:
        return {"mask": np.array([self.seed % 2 == 0, self.seed % 2 == 1], np.int8)}

    def _break(self, where: str, seed: int) -> None:
        if self.breaks.get(str(seed)) != where:
            return
        if self.once is not None:
            try:
                (Path(self.once) / str(seed)).touch(exist_ok=False)
            except FileExistsError:
                return
        raise RuntimeError(f"seed {seed} broke it")


def vector_only(num_envs: int) -> Any:
    """Is never called: that it takes `num_envs` says what it makes."""
    raise AssertionError(num_envs)
