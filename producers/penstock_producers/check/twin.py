"""A twin: a single env that lives through what was recorded of another one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from penstock_producers.check.values import arrays, difference, misfit, unequal
from penstock_producers.contained import CONTAINED
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.spaces import leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock_producers.check.episodes import Episode
    from penstock_producers.envs.source import EnvSource
    from penstock_producers.envs.wrapper import AnyEnv
    from penstock_schemas.spaces import Leaves, Space

ROUNDING = 1e-5
"""How far floats of two implementations of the same env may be apart, as gymnasium has it."""


class Part(Enum):
    """In what an episode and its twin's differ."""

    FIRST_OBSERVATION = auto()
    OBSERVATION = auto()
    LAST_OBSERVATION = auto()
    REWARD = auto()
    END = auto()


class Difference(NamedTuple):
    """Where a recorded episode is not the twin's: `expected` is what the twin has."""

    part: Part
    episode: int
    step: int
    expected: str
    found: str


def replay(
    twin: AnyEnv,
    life: Sequence[Episode],
    observation_space: Space,
    action_space: Space,
    *,
    tolerance: float = 0.0,
) -> Iterator[Difference]:
    """Live through one env's episodes, from a seeded reset on, and tell where they differ.

    A wrong last observation leaves the two in step; after any other difference nothing more can be compared.
    Rewards are compared in the dtype of the recorded ones; `tolerance` is for floats (see `unequal`). Whatever the
    twin raises is its caller's to deal with.
    """
    for number, episode in enumerate(life):
        observation, _ = twin.reset(seed=episode.seed)
        for step in range(episode.steps + 1):
            end = False
            if step:
                action = single_action(action_space, episode.actions[step - 1])
                observation, reward, terminated, truncated, _ = twin.step(action)
                found = _other_step(episode, step, reward, (bool(terminated), bool(truncated)), tolerance)
                if found is not None:
                    yield Difference(found[0], number, step, *found[1:])
                    return
                end = bool(terminated or truncated)
            differs = _other_observation(observation_space, observation, episode.observations[step], tolerance)
            if differs is not None:
                part = (Part.LAST_OBSERVATION if end else Part.OBSERVATION) if step else Part.FIRST_OBSERVATION
                yield Difference(part, number, step, *differs)
                if part is not Part.LAST_OBSERVATION:
                    return


def single_action(space: Space, action: Leaves) -> Any:
    """Make of one action's leaves what a single env takes."""
    return unflatten(space, (_value(leaf.space.dtype, part) for leaf, part in zip(leaves(space), action, strict=True)))


def _value(dtype: np.dtype[Any], part: Any) -> Any:
    # `[()]` makes a scalar of an array without dimensions, as iterating over a batch does; a copy, since an env
    # may write to its action.
    return part.item() if dtype.kind == "O" else np.array(part, dtype)[()]


def _other_step(
    episode: Episode, step: int, reward: Any, end: tuple[bool, bool], tolerance: float
) -> tuple[Part, str, str] | None:
    last = step == episode.steps
    recorded = (episode.terminated, episode.truncated) if last else (False, False)
    if end != recorded:
        return Part.END, _end(*end), _end(*recorded)
    found = np.asarray(episode.rewards[step - 1])
    expected = np.asarray(reward, found.dtype)
    if unequal(expected, found, tolerance):
        return Part.REWARD, f"reward {expected}", f"reward {found}"
    return None


def _other_observation(space: Space, expected: Any, found: Leaves, tolerance: float) -> tuple[str, str] | None:
    wrong = misfit(space, expected)
    if wrong is not None and not wrong.outside_only:
        return f"an observation ({wrong.found}) that is none of the space", "one of the space"
    return difference(space, arrays(space, expected), found, tolerance=tolerance)


def _end(terminated: bool, truncated: bool) -> str:  # noqa: FBT001  (they come in this order everywhere)
    ways = [name for name, holds in (("terminated", terminated), ("truncated", truncated)) if holds]
    return f"the episode's end ({' and '.join(ways)})" if ways else "an episode that goes on"


class Twins:
    """A single env for each env of a vector, made when it is first asked for."""

    def __init__(self, source: EnvSource) -> None:
        self._source = source
        self._envs: dict[int, AnyEnv] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for env in self._envs.values():
            with suppress(*CONTAINED):  # what an env's close() raises is judged where it is checked by itself
                env.close()

    def __getitem__(self, index: int) -> AnyEnv:
        if index not in self._envs:
            self._envs[index] = self._source.single(index)
        return self._envs[index]

    @property
    def spaces(self) -> tuple[Space, Space]:
        """The first twin's observation and action space."""
        env = self[0]
        return from_gymnasium(env.observation_space, "observation"), from_gymnasium(env.action_space, "action")

    def seeded(self, lives: Sequence[Sequence[Episode]], seed: int) -> bool:
        """Tell whether a vector env that was reset with `seed` gave env i the `seed + i`; the lives then say so.

        Believed only where the first observations show it: they are the twins', and another seed gives another one;
        or where no seed makes a difference to the twins.
        """
        space, actions = self.spaces
        for i, life in enumerate(lives):
            if not life or not self._begins(i, seed + i, life[0], space):
                return False
        other = seed + len(lives)
        alike = all(self._begins(i, other, life[0], space) for i, life in enumerate(lives))
        if alike and not all(self._heeds_no_seed(i, life, seed, space, actions) for i, life in enumerate(lives)):
            return False
        for i, life in enumerate(lives):
            life[0].seed = seed + i
        return True

    def _begins(self, i: int, seed: int, episode: Episode, space: Space) -> bool:
        observation, _ = self[i].reset(seed=seed)
        began = episode.observations[0]
        return difference(space, arrays(space, observation), began, tolerance=ROUNDING) is None

    def _heeds_no_seed(self, i: int, life: Sequence[Episode], seed: int, space: Space, actions: Space) -> bool:
        first, second = (
            list(replay(self[i], [replace(episode, seed=root + k) for k, episode in enumerate(life)], space, actions))
            for root in (seed, seed + len(life))
        )
        return first == second
