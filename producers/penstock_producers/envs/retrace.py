"""Stepping an env again through an episode that was recorded, to see whether it does the same."""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.casting import cast
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import flatten, leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping

    import gymnasium
    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaves, Space


@dataclass(frozen=True)
class Divergence:
    """Where an env first did something else than what was recorded; its text says it in one line.

    Attributes:
        step: How many steps had been taken: 0 for the reset's observation, t for what the t-th step gave, the last
            one included.
        what: What differs.
        column: Its column, "observation.position" for example.
        expected: What was recorded: an array, a number, a text; False for an end that was not recorded.
        found: What the env gave, whatever that is; True for an end that was not recorded.
    """

    step: int
    what: Literal["observation", "reward", "ended early"]
    column: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        if self.what == "ended early":
            return f"step {self.step}: the env ended the episode ({self.column}), but more steps were recorded"
        return f"step {self.step}: {self.column} differs{_difference(self.expected, self.found)}"


def retrace(
    env: gymnasium.Env[Any, Any],
    *,
    seed: int | None,
    options: Mapping[str, Any] | None,
    observation: Leaves,
    action: Leaves,
    reward: NDArray[Any],
    observation_space: Space,
    action_space: Space,
) -> Divergence | None:
    """Step `env` from `seed` with the actions of an episode, and find the first thing that comes out otherwise.

    Everything is compared bit for bit, NaN and the sign of zero included, in the dtype that was recorded. An episode
    that was cut is stepped as a whole, since only its first part has a seed: join the observations of the parts
    without the first one of each later part, and the actions and rewards as they are.

    Args:
        env: One env, made as the recorded one was, in its wrappers.
        seed: The one that was recorded with the episode.
        options: The reset options that were recorded with it, None where there were none.
        observation: An array (T + 1, *shape) for each leaf of the observation space.
        action: An array (T, *shape) for each leaf of the action space: what was sent, which is `action_sent` where the
            stream has it.
        reward: (T,), in the dtype that was recorded.
        observation_space: Of one env.
        action_space: Of one env.

    Returns:
        The first divergence, None where all is the same.

    Raises:
        EnvError: an episode without a seed, or an env that raises.
    """
    if seed is None:
        raise EnvError(
            "the episode has no seed, so it cannot be retraced: a part that continues a cut episode belongs behind the "
            "part that it continues, and a ready-made vector environment cannot be seeded by episode; use lanes"
        )
    steps = len(reward)
    if any(len(column) != steps + 1 for column in observation) or any(len(column) != steps for column in action):
        lengths = (
            f"{[len(column) for column in observation]} observations, {[len(column) for column in action]} actions"
        )
        raise ValueError(f"{steps} rewards with {lengths}: an episode of T steps has T + 1 observations and T actions")
    recorded = _in_their_dtypes("observation", observation_space, observation)
    actions = _in_their_dtypes("action", action_space, action)
    try:
        found, _ = env.reset(seed=seed, options=None if options is None else dict(options))
    except CONTAINED as error:
        raise _failure("reset", 0, error) from error
    divergence = _compare_observation(0, observation_space, recorded, found)
    for t, expected in enumerate(reward, start=1):
        if divergence is not None:
            break
        try:
            answer = env.step(unflatten(action_space, (column[t - 1] for column in actions.values())))
        except CONTAINED as error:
            raise _failure("step", t, error) from error
        found, given, terminated, truncated, _ = answer
        divergence = _compare_observation(t, observation_space, recorded, found)
        if divergence is None and not _same(expected, given):
            divergence = Divergence(t, "reward", "reward", expected, given)
        if divergence is None and (terminated or truncated) and t < steps:
            end = "terminated" if terminated else "truncated"
            divergence = Divergence(t, "ended early", end, expected=False, found=True)
    return divergence


def _in_their_dtypes(root: str, space: Space, values: Leaves) -> dict[str, NDArray[Any]]:
    """Name the columns, in the dtypes that the env gives and takes: what is stored may be narrower."""
    # Copies, since an env may keep or change the actions that it is given.
    columns = zip(leaves(space), values, strict=True)
    return {leaf.name(root): column.astype(leaf.space.dtype) for leaf, column in columns}


def _compare_observation(
    step: int, space: Space, recorded: dict[str, NDArray[Any]], observation: Any
) -> Divergence | None:
    try:
        parts = flatten(space, observation)
    except (TypeError, KeyError, IndexError, ValueError):  # it has another structure
        expected = unflatten(space, (column[step] for column in recorded.values()))
        return Divergence(step, "observation", "observation", expected, observation)
    for (name, column), found in zip(recorded.items(), parts, strict=True):
        if not _same(column[step], found):
            return Divergence(step, "observation", name, column[step], found)
    return None


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, str):
        return isinstance(found, str) and expected == found
    made = _cast(found, expected.dtype)
    return made is not None and made.shape == expected.shape and made.tobytes() == expected.tobytes()


def _cast(found: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    # As it was cast when it was recorded: to an integer only where it is one.
    try:
        array = np.asarray(found)
        if dtype.kind in "iu" and array.dtype.kind in "biuf":
            return cast(array, dtype)
        with np.errstate(all="ignore"):
            return array.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return None


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, np.ndarray) and expected.ndim:
        made = _cast(found, expected.dtype)
        if made is None or made.shape != expected.shape:
            return f": expected shape {expected.shape} and dtype {expected.dtype}, found {_text(found)}"
        items = [np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1) for array in (expected, made)]
        places = np.flatnonzero((items[0] != items[1]).any(axis=1))
        first = tuple(map(int, np.unravel_index(places[0], expected.shape)))
        many = f" in {len(places)} of {expected.size} elements, first" if len(places) > 1 else ""
        return f"{many} at {list(first)}: expected {_text(expected[first])}, found {_text(made[first])}"
    return f": expected {_text(expected)}, found {_text(found)}"


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return short(value.item() if isinstance(value, np.ndarray | np.generic) else value)


def _failure(call: str, step: int, error: BaseException) -> EnvError:
    return EnvError(
        f"the env cannot be stepped again: {call}() raised {told(error)} at step {step}; mend the "
        "environment, its own traceback comes with this error"
    )
