"""What a policy is to whoever acts with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Info
    from penstock_producers.fragment import Recording
    from penstock_schemas.chunks import Exploration
    from penstock_schemas.columns import Column
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.policies import PolicyRecord
    from penstock_schemas.spaces import Leaves


class Inputs(NamedTuple):
    """What a policy is given of n envs; the arrays are never to be written to, and hold until the envs go on."""

    observation: Leaves
    """An array (n, *shape) for each leaf of the space that the policy's connectors answer."""
    infos: tuple[Info, ...] = ()
    """The recorded infos that came with the observation, in the order of the stream's (action masks, for one)."""
    state: tuple[NDArray[Any], ...] = ()
    """The recurrent state, an array (n, *shape) for each of the policy's `states`; zeros at an episode's start."""


class Actions(NamedTuple):
    """What a policy answers for n envs: what is recorded, what the env is sent, and what it wants to remember."""

    drawn: tuple[NDArray[Any], ...]
    """In the order of the columns of `Policy.recording`; the leaves of the action as it was drawn come first."""
    sent: Leaves
    """The action that the env is sent, an array (n, *shape) for each leaf of its space."""
    state: tuple[NDArray[Any], ...] = ()
    """The recurrent state behind the observation, which comes with the env's next one."""


class Recomputed(NamedTuple):
    """What a policy's weights make of n observations, before anything is drawn."""

    parameters: NDArray[np.float32]
    """(n, k), of what actions are drawn from: what a network answers, under the whole behaviour."""
    value: NDArray[np.float32] | None
    """(n,), or None where the policy values nothing."""
    state: tuple[NDArray[Any], ...] = ()
    """The recurrent state behind the observation."""


class Policy(Protocol):
    """Chooses actions; its weights can be replaced while it runs.

    Attributes:
        version: of the weights that act; 0 before the first one is loaded.
        digest: of the weights, the connectors' parameters and the settings that act.
        exploration: how it chooses now. May be set to any of ON, OFF and RANDOM, and EPSILON where that is what it
            does when ON; raises `PolicyError` where it cannot.
        pipeline: the connectors before it; `load` replaces their parameters too.
        states: the columns of its recurrent state, "state.<name>"; none for most.
    """

    version: int
    digest: bytes
    exploration: Exploration
    pipeline: Pipeline
    states: tuple[Column, ...]

    @property
    def extras(self) -> tuple[Column, ...]:
        """The columns recorded beside the action."""
        ...

    @property
    def absent(self) -> frozenset[str]:
        """The names of the nullable extras that it has no value for as it chooses now; these are recorded as null."""
        ...

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn."""
        ...

    @property
    def recording(self) -> Recording:
        """What `Actions.drawn` holds, and how the action and the extras come of it."""
        ...

    def act(self, inputs: Inputs) -> Actions:
        """Choose actions for n envs."""
        ...

    def recompute(self, inputs: Inputs, exploration: Exploration) -> Recomputed:
        """Compute again what `act` drew from, when the same weights and settings were loaded and it explored so."""
        ...

    def log_prob(self, parameters: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Give the log-probabilities, or densities, (n,) of actions as recorded that were drawn from parameters."""
        ...

    def value(self, inputs: Inputs) -> NDArray[Any]:
        """Value n observations, shape (n,); asked only where `recording.final` names a column."""
        ...

    def check(self, record: PolicyRecord) -> None:
        """Raise `PolicyRejectedError` unless `load` would take this version; may be called from any thread."""
        ...

    def load(self, record: PolicyRecord) -> None:
        """Act with another version from now on; raises `PolicyRejectedError`, and nothing has changed then."""
        ...
