"""What a policy is to the rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.fragment import Recording
    from penstock_schemas.chunks import Exploration
    from penstock_schemas.columns import Column
    from penstock_schemas.policies import PolicyRecord
    from penstock_schemas.spaces import Leaves


class Actions(NamedTuple):
    """What a policy answers for a batch of observations: what is recorded, and what the env is sent."""

    drawn: tuple[NDArray[Any], ...]
    """In the order of the columns of `Policy.recording`; the leaves of the action as it was drawn come first."""
    sent: Leaves
    """The action that the env is sent, an array (n, *shape) for each leaf of its space."""


class Policy(Protocol):
    """Chooses actions; its weights can be replaced while it runs."""

    version: int
    digest: bytes
    exploration: Exploration

    @property
    def extras(self) -> tuple[Column, ...]:
        """The columns recorded beside the action."""
        ...

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn."""
        ...

    @property
    def recording(self) -> Recording:
        """What `Actions.drawn` holds, and how the action and the extras come of it."""
        ...

    def act(self, observation: Leaves) -> Actions:
        """Choose actions for n observations: an array (n, *shape) for each leaf of their space."""
        ...

    def check(self, record: PolicyRecord) -> None:
        """Raise `PolicyRejectedError` unless `load` would take this version; may be called from any thread."""
        ...

    def load(self, record: PolicyRecord) -> None:
        """Act with another version from now on; raises `PolicyRejectedError`, and nothing has changed then."""
        ...
