"""Callbacks, an env that has levels, and a loop that shows callbacks what envs answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from penstock_producers.callbacks import BegunEpisode, CallbackList, Callbacks, EndedEpisode, attach
from penstock_producers.envs import Lanes, Seeds
from penstock_producers.envs.lanes import Containment
from penstock_producers.envs.source import EnvSource
from penstock_producers.fragment import ActingPolicy, Fragment
from penstock_schemas.stream import StreamSpec
from tests.producers.recorder import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock_producers.envs import Answer, Envs, Rows

ZOO = __name__
QUICK = Containment(backoff=0.0, max_rebuilds=10_000)


class Ladder(gymnasium.Env[Any, Any]):
    """An episode has as many steps as its level, each worth 1; it observes (env, level, step).

    `faults` makes env 1 raise in its second step.
    """

    observation_space: spaces.Space[Any] = spaces.Box(0, 1000, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, env_index: int, *, faults: bool = False) -> None:
        self.env_index = env_index
        self.faults = faults and env_index == 1

    def observe(self) -> Any:
        return np.array([self.env_index, self.level, self.count], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.level = (options or {}).get("level", 1)
        self.count = 0
        return self.observe(), {"level": self.level}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.faults and self.count == 2:
            raise RuntimeError("a rung is missing")
        done = self.count == self.level
        return self.observe(), 1.0, done and self.level % 2 == 0, done and self.level % 2 == 1, {"level": self.level}


def ladder(env_index: int, **settings: Any) -> Ladder:
    return Ladder(env_index, **settings)


def in_process(n: int = 3, **settings: Any) -> Lanes:
    return Lanes.local(
        lambda index: Ladder(index, **settings), n, seeds=Seeds(7, "pod-0"), infos=["level"], containment=QUICK
    )


def in_workers(n: int = 3, *, count: int = 2, lockstep: bool = False, **settings: Any) -> Lanes:
    source = EnvSource(f"{ZOO}:ladder", settings, (), "pod-0")
    return Lanes.workers(
        source, n, count, seeds=Seeds(7, "pod-0"), infos=["level"], lockstep=lockstep, containment=QUICK
    )


KINDS: dict[str, Callable[..., Lanes]] = {
    "in process": in_process,
    "workers": in_workers,
    "lockstep": lambda n=3, **settings: in_workers(n, lockstep=True, **settings),
}


class Climber(Callbacks):
    """Each env begins at level 1, and after an episode goes on one level above what that one returned."""

    def __init__(self, highest: int = 4) -> None:
        self.highest = highest
        self.levels: dict[int, int] = {}
        self.asked: list[tuple[int, int]] = []

    def on_reset(self, env: int, episode: int) -> Mapping[str, Any] | None:
        self.asked.append((env, episode))
        return {"level": self.levels.get(env, 1)}

    def on_episode_end(self, ended: EndedEpisode) -> None:
        if ended.abort_reason is None:
            self.levels[ended.env] = min(int(ended.episode_return) + 1, self.highest)


class Witness(Callbacks):
    """Keeps all that it is called with."""

    metrics = ("score", "long")

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_episode_start(self, env: int, begun: BegunEpisode) -> None:
        self.calls.append(("start", env, begun))

    def on_step(self, steps: Rows) -> None:
        assert not steps.first.any()
        rewards = zip(steps.env.tolist(), steps.reward.tolist(), strict=True)
        self.calls.extend(("step", env, reward) for env, reward in rewards)

    def on_episode_end(self, ended: EndedEpisode) -> Mapping[str, float]:
        self.calls.append(("end", ended.env, ended))
        score = {"score": 10 * ended.episode_return}
        return {**score, "long": ended.length} if ended.length > 1 else score

    def of(self, kind: str) -> list[tuple[int, Any]]:
        return [(env, told) for what, env, told in self.calls if what == kind]


class Play:
    """Steps envs with callbacks as a rollout does, into a fragment."""

    def __init__(self, envs: Envs, *callbacks: Callbacks) -> None:
        listed = CallbackList(callbacks)
        self.envs = envs
        self.runner = attach(listed, envs)
        self.spec = StreamSpec(
            "test",
            *(envs.observation_space, envs.action_space, envs.reward_dtype, (), envs.infos),
            metrics=listed.metrics,
        )
        self.fragment = Fragment(self.spec, envs.num_envs, 1000, 1 << 19)
        self.fragment.use(ActingPolicy(0, bytes(32)))
        self.take(envs.reset())

    def take(self, answer: Answer) -> None:
        self.answer = answer if self.runner is None else self.runner.see(answer)
        self.fragment.append(self.answer)

    def step(self) -> Answer:
        ready = self.answer.ready
        if len(ready):
            action = (np.zeros(len(ready), np.int64),)
            self.fragment.sent(ready, action)
            self.envs.send(ready, action)
        self.take(self.envs.recv(10.0))
        return self.answer

    def until(self, enough: Callable[[], bool], most: int = 10_000) -> None:
        for _ in range(most):
            if enough():
                return
            self.step()
        raise AssertionError(f"not enough after {most} answers")

    def rows(self) -> list[dict[str, Any]]:
        """The chunk rows so far."""
        return rows_of(self.fragment.close().batches)
