"""Environments with nested spaces and with infos, one at a time and as a whole vector."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

OBSERVATIONS = spaces.Dict(
    {
        "course": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "inner": spaces.Tuple([spaces.Discrete(9, start=-2), spaces.Text(40, min_length=0, charset="0123456789 é")]),
        "bits": spaces.MultiBinary((2, 2)),
        "on.off": spaces.Box(0, 1, (2,), np.bool_),
        "heard": spaces.MultiDiscrete([400, 7], start=[-100, 1]),
    }
)
ACTIONS = spaces.Dict(
    {
        "choice": spaces.Discrete(4, start=1),
        "pair": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Text(3, charset="ab")]),
        "many": spaces.MultiDiscrete([3, 5]),
    }
)


NO_ACTION: dict[str, Any] = {"choice": 1, "pair": (np.zeros(2), "a"), "many": np.zeros(2, int)}


class NestedEnv(gymnasium.Env[Any, Any]):
    """Observes (seed, episode, step) and the last action; episode e has 1 + (seed + e) % 4 steps.

    Its infos: `at`, 100 * episode + step; `mask`, two bytes; `late`, only with an episode's last observation; `word`;
    `flag`; `parts`, a dict; `ragged`, a list whose length is 1 + the step.
    """

    observation_space: spaces.Space[Any] = OBSERVATIONS
    action_space: spaces.Space[Any] = ACTIONS

    def __init__(self) -> None:
        self.own, self.episode, self.steps = 0, -1, 0
        self.action: dict[str, Any] = NO_ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.own, self.episode = seed, -1
        self.episode += 1
        self.steps, self.action = 0, NO_ACTION
        return self.observe(), self.infos(last=False)

    def step(self, action: Any) -> Any:
        assert isinstance(action["pair"][1], str)
        self.action = action
        self.steps += 1
        last = self.steps == 1 + (self.own + self.episode) % 4
        return self.observe(), float(self.steps), last, False, self.infos(last=last)

    def observe(self) -> Any:
        box, text = self.action["pair"]
        return {
            "course": np.array([self.own, self.episode, np.nan if self.steps == 2 else self.steps], np.float64),
            "inner": (np.int64(self.action["choice"]), f"{self.episode} é {self.steps}"),
            "bits": np.array([[self.steps & 1, self.steps >> 1 & 1], [len(text) & 1, 1]], np.int8),
            "on.off": np.array([self.steps > 0, text == "ab"]),
            "heard": np.array([round(float(box[0]) * 100), 1 + int(self.action["many"][1])]),
        }

    def infos(self, *, last: bool) -> dict[str, Any]:
        infos: dict[str, Any] = {
            "at": 100 * self.episode + self.steps,
            "mask": np.array([self.steps, self.episode % 100], np.int8),
            "word": f"e{self.episode}",
            "flag": bool(self.steps % 2),
            "parts": {"a": 1.0},
            "ragged": [0.5] * (1 + self.steps),
        }
        return {**infos, "late": np.float32(self.steps)} if last else infos


class NestedVectorEnv(VectorEnv[Any, Any, Any]):
    """The same, hand-written in SAME_STEP: last observations in the batch's own structure, in one buffer."""

    def __init__(self, num_envs: int) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.envs = [NestedEnv() for _ in range(num_envs)]
        self.buffer: Any = create_empty_array(OBSERVATIONS, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations = [env.reset(seed=None if seed is None else seed + i)[0] for i, env in enumerate(self.envs)]
        return self.batch(observations), {"at": np.zeros(self.num_envs, np.int64)}

    def step(self, actions: Any) -> Any:
        answers = [env.step(action) for env, action in zip(self.envs, iterate(self.action_space, actions), strict=True)]
        observations = [answer[0] for answer in answers]
        terminated = np.array([answer[2] for answer in answers])
        empty: Any = create_empty_array(OBSERVATIONS, self.num_envs)
        final = concatenate(OBSERVATIONS, observations, empty)
        for i in np.flatnonzero(terminated).tolist():
            observations[i], _ = self.envs[i].reset()
        rewards = np.array([answer[1] for answer in answers], np.int32)
        return self.batch(observations), rewards, terminated, np.zeros_like(terminated), {"final_obs": final}

    def batch(self, observations: Any) -> Any:
        batch = concatenate(OBSERVATIONS, observations, self.buffer)
        assert isinstance(batch, dict)
        return batch
