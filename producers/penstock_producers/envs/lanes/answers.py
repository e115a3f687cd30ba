"""From what lanes hold to rows: views where nothing happened but steps of one lane, copies elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.envs.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Block
    from penstock_producers.envs.rows import Info
    from penstock_schemas.spaces import Leaves


class Constants(NamedTuple):
    """Columns of rows that are always the same, as long as there are envs."""

    env: NDArray[np.int32]
    never: NDArray[np.bool_]
    always: NDArray[np.bool_]
    no_reward: NDArray[np.float64]

    @classmethod
    def of(cls, num_envs: int) -> Constants:
        """Make them for so many envs; they cannot be written to."""
        made = cls(
            np.arange(num_envs, dtype=np.int32),
            np.zeros(num_envs, np.bool_),
            np.ones(num_envs, np.bool_),
            np.zeros(num_envs, np.float64),
        )
        for array in made:
            array.flags.writeable = False
        return made


def step_rows(block: Block, count: int, start: int, stop: int, constants: Constants) -> Rows:
    """View the steps that lie in a block of the envs `start … stop - 1`."""
    steps = block.steps
    if count == stop - start:
        env, never = constants.env[start:stop], constants.never[start:stop]
    else:
        env, never = steps.who[:count] + np.int32(start), constants.never[:count]
    return Rows(
        env,
        tuple(leaf[:count] for leaf in steps.observation.leaves),
        steps.reward[:count],
        steps.terminated[:count],
        steps.truncated[:count],
        never,
        None,
        None,
        steps.infos.rows(count),
    )


def reset_rows(
    lanes: Sequence[tuple[Block, int, int]], options: Mapping[int, str], constants: Constants
) -> Rows | None:
    """Copy the resets that lie in blocks, each with their number and the first env's index, lanes ascending.

    `options` are those of the envs that were reset with any, as JSON.
    """
    lanes = [lane for lane in lanes if lane[1]]
    if not lanes:
        return None
    env = _concatenate([block.resets.who[:count] + np.int32(start) for block, count, start in lanes])
    n = len(env)
    given = None
    if options:
        given = np.array([options.get(index) for index in env.tolist()], object)
    blocks = [(block.resets, count) for block, count, _ in lanes]
    never = constants.never[:n]
    return Rows(
        env,
        _join([tuple(leaf[:count] for leaf in resets.observation.leaves) for resets, count in blocks]),
        constants.no_reward[:n],
        never,
        never,
        constants.always[:n],
        _concatenate([resets.seed[:count] for resets, count in blocks]),
        given,
        _join_infos([resets.infos.rows(count) for resets, count in blocks]),
    )


def join(rows: Sequence[Rows]) -> Rows | None:
    """Put steps of several lanes one after the other, lanes ascending; one lane's are handed on as they are."""
    rows = [part for part in rows if len(part.env)]
    if len(rows) <= 1:
        return rows[0] if rows else None
    return Rows(
        np.concatenate([part.env for part in rows]),
        _join([part.observation for part in rows]),
        np.concatenate([part.reward for part in rows]),
        np.concatenate([part.terminated for part in rows]),
        np.concatenate([part.truncated for part in rows]),
        np.concatenate([part.first for part in rows]),
        None,
        None,
        _join_infos([part.infos for part in rows]),
    )


def succeed(steps: Rows | None, done: NDArray[np.bool_], resets: Rows | None) -> tuple[NDArray[np.int32], Leaves]:
    """Tell which envs wait for an action after these rows, ascending, and what they observe.

    They are those whose step was not `done`, and those that were reset; there is one at least of the two rows.
    """
    if steps is None or resets is None:
        rows = steps or resets
        if rows is None:
            raise ValueError("neither steps nor resets")
        if not done.any():
            return rows.env, rows.observation
        return rows.env[~done], tuple(leaf[~done] for leaf in rows.observation)
    ended = steps.env[done]
    if len(ended) == len(resets.env) and (ended == resets.env).all():  # each that ended has begun anew, and no other
        observation = tuple(leaf.copy() for leaf in steps.observation)
        for leaf, begun in zip(observation, resets.observation, strict=True):
            leaf[done] = begun
        return steps.env, observation
    env = np.concatenate([steps.env[~done], resets.env])
    order = np.argsort(env)
    pairs = zip(steps.observation, resets.observation, strict=True)
    return env[order], tuple(np.concatenate([leaf[~done], begun])[order] for leaf, begun in pairs)


def _concatenate(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0].copy() if len(arrays) == 1 else np.concatenate(arrays)


def _join(parts: Sequence[Leaves]) -> Leaves:
    return tuple(map(_concatenate, zip(*parts, strict=True)))


def _join_infos(parts: Sequence[tuple[Info, ...]]) -> tuple[Info, ...]:
    return tuple(
        (_concatenate([values for values, _ in column]), _concatenate([valid for _, valid in column]))
        for column in zip(*parts, strict=True)
    )
