"""The canonical rows: what an environment gives, in one order, whatever its autoreset mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Rows(NamedTuple):
    """What one answer of the environment gives, one row per env named; n is the number of rows.

    The arrays may be the environment's own buffers and are never to be written to. They hold until the next
    `step` or `reset`: whoever keeps them copies.

    A named tuple, since one is made per step and a frozen dataclass takes four times as long to make.
    """

    env: NDArray[np.int32]
    """(n,) env indices, ascending, each at most once."""
    observation: NDArray[Any]
    """(n, *shape) in the observation space's dtype: after the step, or of the reset where `first`."""
    reward: NDArray[Any]
    """(n,) in the env's `reward_dtype`; meaningless where `first`."""
    terminated: NDArray[np.bool_]
    """(n,) False where `first`."""
    truncated: NDArray[np.bool_]
    """(n,) False where `first`."""
    first: NDArray[np.bool_]
    """(n,) True where the row is a reset's: it begins an episode and is no step."""
    seed: NDArray[np.int64] | None
    """(n,) the seeds with which the envs were reset, where each has its own generator and was seeded; else None."""
