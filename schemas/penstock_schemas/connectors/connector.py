"""What a connector is: a function from what an env answered to what a policy sees of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaves, Space


class Seen(NamedTuple):
    """n observations on their way through connectors, each with what led to it.

    The arrays are never to be written to; observations and actions are in the dtypes of their spaces.
    """

    observation: Leaves
    """An array (n, *shape) for each leaf of the space that comes in; (n, 1 + lookback, *shape), the oldest first, for
    a connector that looks back. What would lie before an episode's first observation repeats that one."""
    age: NDArray[np.int64]
    """(n,) how many steps of its episode led to the observation: 0 for the first one, also over cuts."""
    action: Leaves
    """An array (n, *shape) for each leaf of the action space: the action drawn just before, 0 where `age` is 0."""
    reward: NDArray[Any]
    """(n,) the reward that came with the observation, 0 where `age` is 0."""
    parameters: Mapping[str, NDArray[Any]]
    """What a version of the policy says for this connector, by name."""


class Connector(Protocol):
    """Maps observations to observations, a row to a row; a pure function, so that actor and reader see the same.

    A factory, called with (observation space, action space, **arguments), makes one; it raises `SpaceError` for spaces
    that it does not take, `PolicyError` for arguments.

    Attributes:
        space: what comes out.
        lookback: how many observations of the same episode before its own each row is made of.
        parameters: what each version of the policy brings for it: an array of the shape and dtype of each of these,
            which act before the first version.

    One that looks at the observations alone, not at the age, the action or the reward, may say so by a class's
    `recalls = False`; it can then be shown rows of which these are not known.
    """

    space: Space
    lookback: int
    parameters: Mapping[str, NDArray[Any]]

    def check(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Raise `ValueError` for parameters, finite and of the right shapes and dtypes, that mean nothing."""
        ...

    def __call__(self, seen: Seen) -> Leaves:
        """Map n rows, to an array (n, *shape) of its space's dtype for each leaf of `space`.

        Each row is made of its own inputs only.
        """
        ...


class Plain:
    """What a connector has that looks at one observation at a time, and that versions bring nothing for."""

    lookback = 0
    recalls = True
    """Whether it looks at the age, the action or the reward: then it cannot be shown where these are not known."""
    parameters: Mapping[str, NDArray[Any]] = MappingProxyType({})

    def check(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Find nothing wrong: there are none."""
