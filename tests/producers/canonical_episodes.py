"""Episodes told from canonical rows alone, whatever gave them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Answer, Envs, Rows
    from penstock_schemas.spaces import Leaves

    Act = Callable[[NDArray[np.int32], Leaves], Leaves]


@dataclass
class Episode:
    """What one episode was; an observation and its infos are tuples of what their leaves and columns hold."""

    observations: list[tuple[Any, ...]]
    rewards: list[float] = field(default_factory=list)
    end: tuple[bool, bool] | None = None
    infos: list[tuple[Any, ...]] = field(default_factory=list)
    seed: int | None = None


class Recorder:
    """Checks each answer and keeps the episodes of each env."""

    def __init__(self, envs: Envs) -> None:
        self.envs = envs
        self.episodes: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
        self.dtypes = [leaf.space.dtype for leaf in leaves(envs.observation_space)]
        self.current: list[Any] = [None] * envs.num_envs

    def take(self, answer: Answer) -> None:
        assert answer.aborts == ()
        for rows in (answer.steps, answer.resets):
            if rows is not None:
                self.rows(rows)
        assert answer.ready.dtype == np.int32
        assert np.all(np.diff(answer.ready) > 0)
        assert {len(leaf) for leaf in answer.observation} == {len(answer.ready)}
        for position, i in enumerate(answer.ready.tolist()):
            assert same(tuple(plain(leaf[position]) for leaf in answer.observation), self.current[i])

    def rows(self, rows: Rows) -> None:
        n = len(rows.env)
        assert n
        assert rows.env.dtype == np.int32
        assert np.all(np.diff(rows.env) > 0)
        assert rows.reward.dtype == self.envs.reward_dtype
        assert [leaf.dtype for leaf in rows.observation] == self.dtypes
        columns = [rows.reward, rows.terminated, rows.truncated, rows.first, *rows.observation]
        columns += [column for info in rows.infos for column in info]
        assert {len(column) for column in columns} == {n}
        assert len(rows.infos) == len(self.envs.infos)
        for (values, valid), column in zip(rows.infos, self.envs.infos, strict=True):
            assert (values.dtype, values.shape[1:], valid.dtype.name) == (column.dtype, column.shape, "bool")
        for position, i in enumerate(rows.env.tolist()):
            observation = tuple(plain(leaf[position]) for leaf in rows.observation)
            infos = tuple(plain(v[position]) if there[position] else None for v, there in rows.infos)
            end = bool(rows.terminated[position]), bool(rows.truncated[position])
            self.current[i] = observation
            mine = self.episodes[i]
            if rows.first[position]:
                assert not mine or mine[-1].end is not None
                assert end == (False, False)
                seed = None if rows.seed is None else int(rows.seed[position])
                mine.append(Episode([observation], infos=[infos], seed=seed))
            else:
                assert mine[-1].end is None
                mine[-1].observations.append(observation)
                mine[-1].infos.append(infos)
                mine[-1].rewards.append(float(rows.reward[position]))
                mine[-1].end = end if any(end) else None


def plain(value: Any) -> Any:
    """An item of an array as Python's own."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def same(one: Any, other: Any) -> bool:
    """Whether both are equal, a NaN being equal to a NaN."""
    return repr(one) == repr(other)


def record(envs: Envs, episodes: int, act: Act) -> list[list[Episode]]:
    """Each env's first `episodes`, from a reset on."""
    recorder = Recorder(envs)
    answer = envs.reset()
    for _ in range(2000):
        recorder.take(answer)
        if all(sum(episode.end is not None for episode in mine) >= episodes for mine in recorder.episodes):
            return [mine[:episodes] for mine in recorder.episodes]
        if len(answer.ready):
            envs.send(answer.ready, act(answer.ready, answer.observation))
        answer = envs.recv()
    pytest.fail(f"after 2000 answers not every env has ended {episodes} episodes")


def zeros(ready: NDArray[np.int32], observation: Leaves) -> Leaves:
    """The action 0 of a Discrete for each env."""
    return (np.zeros(len(ready), np.int64),)
