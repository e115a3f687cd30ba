"""From what lies in the block to rows: views where it is the steps of all envs, copies elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_producers.envs.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Block, Resets, Steps
    from penstock_producers.envs.rows import Info
    from penstock_schemas.spaces import Leaves


class Constants(NamedTuple):
    """Columns of rows that are always the same, as long as there are envs."""

    never: NDArray[np.bool_]
    always: NDArray[np.bool_]
    no_reward: NDArray[np.float64]

    @classmethod
    def of(cls, num_envs: int) -> Constants:
        """Make them for so many envs; they cannot be written to."""
        made = cls(
            np.zeros(num_envs, np.bool_),
            np.ones(num_envs, np.bool_),
            np.zeros(num_envs, np.float64),
        )
        for array in made:
            array.flags.writeable = False
        return made


def rows_at(lanes: Iterable[tuple[int, int]]) -> NDArray[np.intp] | None:
    """Tell where the rows of lanes lie in the block, of each the first and how many; None where there are none."""
    at = [row for start, count in lanes for row in range(start, start + count)]
    return np.array(at, np.intp) if at else None


def step_rows(block: Block, at: NDArray[np.intp] | slice, constants: Constants) -> Rows:
    """Copy the steps that lie in a block, or view them where they are a slice."""
    steps = block.steps
    env = steps.who[at]
    return Rows(
        env,
        tuple(leaf[at] for leaf in steps.observation.leaves),
        steps.reward[at],
        steps.terminated[at],
        steps.truncated[at],
        constants.never[: len(env)],
        None,
        None,
        _infos(steps, at),
    )


def reset_rows(block: Block, at: NDArray[np.intp], options: Mapping[int, str], constants: Constants) -> Rows:
    """Copy the resets that lie in a block; `options` are those of the envs that were reset with any, as JSON."""
    resets = block.resets
    env, n = resets.who[at], len(at)
    given = None
    if options:
        given = np.array([options.get(index) for index in env.tolist()], object)
    never = constants.never[:n]
    return Rows(
        env,
        tuple(leaf[at] for leaf in resets.observation.leaves),
        constants.no_reward[:n],
        never,
        never,
        constants.always[:n],
        resets.seed[at],
        given,
        _infos(resets, at),
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


def _infos(rows: Steps | Resets, at: NDArray[np.intp] | slice) -> tuple[Info, ...]:
    return tuple((values[at], valid[at]) for values, valid in zip(rows.infos.values, rows.infos.valid, strict=True))
