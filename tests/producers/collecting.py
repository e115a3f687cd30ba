"""What the tests of collecting share: collectors of envs that tell what they did, and what was collected, joined."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.collect import Collector
from penstock_schemas.spaces import flatten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock_producers.collect import Collection, Episode

ZOO = "tests.producers.env_zoo"
COUNTING = f"{ZOO}:CountingEnv"
SEED = 11
# What all parts of an episode say.
_ORIGINS = ("seed", "continues")
# Every way in which rows come: reset rows among the steps, behind them, behind a masked reset, from lanes.
MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED", "lanes")


def collector_of(mode: str, num_envs: int = 3, longest: int = 5, **settings: Any) -> Collector:
    """Collect from envs that observe (seed, episode, step) and reward with 1000 · episode + step."""
    arguments: dict[str, Any] = {"longest": longest}
    if mode == "lanes":
        return Collector(COUNTING, **{"seed": SEED, **settings}, num_envs=num_envs, env_arguments=arguments)
    arguments["mode"] = mode
    return Collector(f"{ZOO}:CountingVectorEnv", num_envs=num_envs, seed=SEED, env_arguments=arguments, **settings)


def joined(collections: Iterable[Collection]) -> dict[tuple[int, int], dict[str, NDArray[Any]]]:
    """The rows of every episode with a step, over all calls, by env and number."""
    parts: dict[tuple[int, int], list[dict[str, NDArray[Any]]]] = {}
    for collection in collections:
        for episode in collection.episodes:
            if episode.length:
                parts.setdefault((episode.env, episode.episode), []).append(_columns(episode, collection))
    return {key: _join(of) for key, of in parts.items()}


def _columns(episode: Episode, collection: Collection) -> dict[str, NDArray[Any]]:
    columns = {
        f"observation.{i}": leaf for i, leaf in enumerate(flatten(collection.spec.observation, episode.observation))
    }
    columns |= {f"info.{key}": np.ma.filled(info, 0) for key, info in episode.infos.items()}
    columns |= {f"extra.{name}": np.ma.filled(extra, -7) for name, extra in episode.extras.items()}
    columns |= {f"action.{i}": leaf for i, leaf in enumerate(flatten(collection.spec.action, episode.action))}
    columns |= {"reward": episode.reward, "version": episode.policy_version, "exploration": episode.exploration}
    columns["step"] = episode.first_step + np.arange(episode.length)
    columns["ends"] = np.array([episode.ends] if episode.ends else [])
    for name in _ORIGINS:
        value = getattr(episode, name)
        columns[name] = np.array([-1 if value is None else value])
    return columns


def _join(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    joined = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        if name.startswith(("observation", "info")):
            # A part begins with the observation with which the one before it ended.
            for before, after in itertools.pairwise(columns):
                np.testing.assert_array_equal(before[-1], after[0])
            columns[1:] = [column[1:] for column in columns[1:]]
        joined[name] = np.unique(columns) if name in _ORIGINS else np.concatenate(columns)
    return joined


def assert_equal(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    """Equal episodes, to the last bit."""
    assert one.keys() == other.keys()
    for key, columns in one.items():
        assert columns.keys() == other[key].keys()
        for name, values in columns.items():
            np.testing.assert_array_equal(values, other[key][name], err_msg=f"{key} {name}")
