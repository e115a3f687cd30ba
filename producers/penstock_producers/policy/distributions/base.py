"""What an action distribution is to the policy that draws from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock_producers.policy.behaviour import Behaviour
    from penstock_schemas.chunks import Exploration
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaves


class Distribution(Protocol):
    """Draws actions from a network's answers: `behave`, then `draw`, then `send`; `log_prob` whenever it is wanted.

    What is drawn is recorded; what is sent to the env may differ.
    """

    @property
    def parameters(self) -> int:
        """How many numbers the network answers for one action."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """In what `send` answers is recorded, a column a leaf; none where nothing that is sent differs."""
        ...

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn: "identity", "clip", "rescale" or "squash"."""
        ...

    @property
    def discrete(self) -> bool:
        """Whether `log_prob` is that of a probability: then it is there however actions are chosen.

        Else it is that of a density, which there is none of where exploration is OFF or RANDOM.
        """
        ...

    @property
    def choices(self) -> int:
        """How long a mask is: the choices of all components side by side; 0 where there are none."""
        ...

    def behave(
        self,
        parameters: NDArray[np.float32],
        mask: NDArray[Any] | None,
        behaviour: Behaviour,
        exploration: Exploration,
    ) -> NDArray[np.float32]:
        """Make the parameters of what is drawn from, shape (n, `parameters`), of those that the network answered.

        The mask, shape (n, `choices`) or what can be reshaped to it, is not 0 where a choice is allowed; None allows
        all. An epsilon acts where exploration is ON or EPSILON. Equal to the last bit for equal rows, however many
        there are. May answer `parameters` itself, which it never writes to.

        Raises `PolicyError` for a mask of another length, or one with a row that allows no choice; and where
        exploration is EPSILON without an epsilon.
        """
        ...

    def draw(self, behaved: NDArray[np.float32], rng: np.random.Generator, exploration: Exploration) -> Leaves:
        """Draw actions, an array (n, *shape) for each leaf of the action space."""
        ...

    def send(self, action: Leaves) -> Leaves:
        """Map actions drawn to those that the env is sent; leaves that do not differ are the same arrays."""
        ...

    def log_prob(self, behaved: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Give the logs of the probabilities, or densities, with which actions were drawn, shape (n,).

        The actions may be in the dtypes in which they are recorded; a density is that of the value as recorded.
        """
        ...
