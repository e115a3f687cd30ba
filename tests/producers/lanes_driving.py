"""Drives lanes, and keeps each env's episodes."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs.lanes import Containment, Lanes
from penstock_producers.envs.seeds import Seeds
from penstock_producers.envs.source import EnvSource
from tests.producers.lanes_zoo import course

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.envs.rows import Answer, Rows
    from penstock_schemas.spaces import Leaves

BAD = 1
QUICK = Containment(backoff=0.0, max_rebuilds=10_000)


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Episode:
    seed: int
    observations: list[Any]
    options: str | None = None
    infos: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: str = ""


class Driver:
    """Sends each env the number of its step as its action, and files every row under its env."""

    def __init__(self, lanes: Lanes, n: int) -> None:
        self.lanes = lanes
        self.episodes: list[list[Episode]] = [[] for _ in range(n)]
        self.answers: Counter[int] = Counter()
        self.steps = np.zeros(n, np.int64)
        self.file(lanes.reset())

    def act(self, answer: Answer) -> Any:
        return (self.steps[answer.ready].astype(np.float64),)

    def file(self, answer: Answer) -> None:
        for rows in (answer.steps, answer.resets):
            if rows is not None:
                assert (np.diff(rows.env) > 0).all()
        if answer.steps is not None:
            self.file_steps(answer.steps)
        for env, reason in answer.aborts:
            assert not self.episodes[env][-1].end
            self.episodes[env][-1].end = reason
        if answer.resets is not None:
            self.file_resets(answer.resets)
        assert (np.diff(answer.ready) > 0).all()
        for env, observation in zip(answer.ready.tolist(), listed(answer.observation), strict=True):
            last = self.episodes[env][-1]
            assert not last.end
            assert last.observations[-1] == observation
        self.answer = answer

    def file_steps(self, rows: Rows) -> None:
        assert not rows.first.any()
        ends = (rows.reward.tolist(), rows.terminated.tolist(), rows.truncated.tolist())
        for env, observation, infos, reward, terminated, truncated in zip(
            rows.env.tolist(), listed(rows.observation), infos_of(rows), *ends, strict=True
        ):
            self.answers[env] += 1
            self.steps[env] += 1
            episode = self.episodes[env][-1]
            assert not episode.end
            episode.observations.append(observation)
            episode.infos.append(infos)
            episode.rewards.append(reward)
            episode.end = "terminated" * terminated + "truncated" * truncated

    def file_resets(self, rows: Rows) -> None:
        assert rows.first.all()
        assert rows.seed is not None
        options = [None] * len(rows.env) if rows.options is None else rows.options.tolist()
        for env, observation, infos, seed, given in zip(
            rows.env.tolist(), listed(rows.observation), infos_of(rows), rows.seed.tolist(), options, strict=True
        ):
            assert not self.episodes[env] or self.episodes[env][-1].end
            self.episodes[env].append(Episode(seed, [observation], given, [infos]))

    def step(self, timeout: float = 10.0) -> Answer:
        ready = self.answer.ready
        if len(ready):
            self.lanes.send(ready, self.act(self.answer))
        self.file(self.lanes.recv(timeout))
        return self.answer

    def run(self, enough: Callable[[], bool], most: int = 100_000) -> None:
        for _ in range(most):
            if enough():
                return
            self.step()
        raise AssertionError(f"not enough after {most} answers: {self.answers}")


def listed(leaves: Leaves) -> list[tuple[Any, ...]]:
    """Each row's leaves, as plain Python values."""
    return list(zip(*(leaf.tolist() for leaf in leaves), strict=True))


def infos_of(rows: Rows) -> list[tuple[Any, ...]]:
    """Each row's infos, as plain Python values; None for one that is not there."""
    if not rows.infos:
        return [()] * len(rows.env)
    columns = [
        [value if there else None for value, there in zip(values.tolist(), valid.tolist(), strict=True)]
        for values, valid in rows.infos
    ]
    return list(zip(*columns, strict=True))


def local(
    n: int = 4, *, infos: Any = (), containment: Containment = QUICK, clock: Any = None, **settings: Any
) -> Lanes:
    more = {} if clock is None else {"clock": clock}
    return Lanes.local(
        lambda index, **changed: course(index, **{**settings, **changed}),
        n,
        seeds=Seeds(7, "pod-0"),
        infos=infos,
        containment=containment,
        **more,
    )


def workers(
    n: int = 4,
    count: int = 2,
    *,
    lockstep: bool = False,
    infos: Any = (),
    containment: Containment = QUICK,
    env: str = "course",
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Lanes:
    source = EnvSource(f"tests.producers.lanes_zoo:{env}", settings, (), "pod-0")
    chosen: dict[str, Any] = {"lockstep": lockstep, "infos": infos, "containment": containment, "clock": clock}
    return Lanes.workers(source, n, count, seeds=Seeds(7, "pod-0"), **chosen)


def courses(driver: Driver, env: int, steps: int) -> list[Any]:
    """What an env did in its first so many steps."""
    return [
        (episode.seed, observation, reward)
        for episode in driver.episodes[env]
        for observation, reward in zip(episode.observations[1:], episode.rewards, strict=True)
    ][:steps]


def check_siblings(driver: Driver, twin: Lanes, n: int) -> None:
    """Each sibling did what it does in a run without the faulty env, step by step."""
    with closing(twin):
        alone = Driver(twin, n)
        most = max(driver.answers.values())
        alone.run(lambda: min(alone.answers[env] for env in range(n)) >= most, most=2 * most)
    for env in range(n):
        if env != BAD:
            steps = driver.answers[env]
            assert len(courses(driver, env, steps)) == steps
            assert courses(driver, env, steps) == courses(alone, env, steps)
            assert not [episode.end for episode in driver.episodes[env] if episode.end.startswith("env_")]
