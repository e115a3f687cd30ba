"""The canonical rows, and the one interface that every kind of vector of environments has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaves, Space

Info: TypeAlias = "tuple[NDArray[Any], NDArray[np.bool_]]"
"""One recorded info of n rows: the values, shape (n, *column shape), and which of them are there, shape (n,)."""


class Rows(NamedTuple):
    """What one answer of the environments gives, one row per env named; n is the number of rows.

    The arrays may be the environments' own buffers and are never to be written to. They hold until the next
    `send` or `reset`: whoever keeps them copies.

    A named tuple, since one is made per step and a frozen dataclass takes four times as long to make.
    """

    env: NDArray[np.int32]
    """(n,) env indices, ascending, each at most once."""
    observation: Leaves
    """An array (n, *shape) for each leaf of the observation space: after the step, or of the reset where `first`."""
    reward: NDArray[Any]
    """(n,) in the envs' `reward_dtype`; meaningless where `first`."""
    terminated: NDArray[np.bool_]
    """(n,) False where `first`."""
    truncated: NDArray[np.bool_]
    """(n,) False where `first`."""
    first: NDArray[np.bool_]
    """(n,) True where the row is a reset's: it begins an episode and is no step."""
    seed: NDArray[np.int64] | None = None
    """(n,) the seeds with which the envs were reset, -1 where there was none; None where no row has one."""
    options: NDArray[Any] | None = None
    """(n,) the options with which the envs were reset, as JSON; None where there were none, in all rows or in one."""
    infos: tuple[Info, ...] = ()
    """The recorded infos, in the order of the envs' `infos`: each belongs to its row's observation."""
    final: NDArray[np.float32] | None = None
    """(n,) the policy's value of the observation where it is an episode's last, NaN elsewhere, and where the weights
    changed while the action that led to it was on its way; the envs give None."""
    metrics: NDArray[np.float64] | None = None
    """(n, metrics) what callbacks measured of the episodes that end here, NaN for what they did not; the envs give
    None."""


class Abort(NamedTuple):
    """An env whose episode ends here without an end of its own."""

    env: int
    reason: str
    """Its kind, and after a colon the details."""

    def __str__(self) -> str:
        return f"{self.env}: {self.reason}"

    @property
    def kind(self) -> str:
        """What kind of fault it was."""
        return self.reason.partition(":")[0]


class Answer(NamedTuple):
    """What some or all of the envs answered: rows to record in this order, and which envs wait for an action."""

    steps: Rows | None
    """The steps; where the envs reset inside their own step, reset rows stand among them."""
    aborts: tuple[Abort, ...]
    """Episodes that a fault ended, after the steps above."""
    resets: Rows | None
    """Reset rows, of episodes that begin after the steps and aborts above."""
    ready: NDArray[np.int32]
    """(m,) the envs that wait for an action, ascending; it may be none."""
    observation: Leaves
    """What to act on: an array (m, *shape) for each leaf of the observation space."""


class Envs(Protocol):
    """N environments of one kind, stepped together or each as it is ready.

    Attributes:
        num_envs: N.
        observation_space: of one env.
        action_space: of one env.
        reward_dtype: the dtype of `Rows.reward`.
        infos: the columns of the recorded infos, named "info.<key>".
    """

    num_envs: int
    observation_space: Space
    action_space: Space
    reward_dtype: np.dtype[Any]
    infos: tuple[Column, ...]

    @property
    def unstorable(self) -> Mapping[str, int]:
        """How many values of infos were left out since their column cannot hold them, by key."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """How many faults there were that the envs go on after, by kind."""
        ...

    @property
    def last_fault(self) -> Mapping[int, str]:
        """Why each env that had such a fault failed last, "kind: detail", by env; the latest one last."""
        ...

    def reset(self, options: Mapping[str, Any] | None = None) -> Answer:
        """Begin a new episode in every env, with options for its reset; whatever was open is left without an end.

        Raises `EnvError` for options that cannot be had or recorded.
        """
        ...

    def send(self, env: NDArray[np.int32], action: Leaves) -> None:
        """Have envs that wait take their actions: an array (m, *shape) for each leaf of the action space."""
        ...

    def recv(self, timeout: float = 1.0) -> Answer:
        """Wait until some env has answered, at most `timeout` seconds: an answer without rows where none has.

        Raises `EnvError` where the envs cannot go on.
        """
        ...

    def close(self) -> None:
        """Close the envs, and end the processes that step them, even those that no longer answer."""
        ...
