"""A torch module as a policy: one batched forward a vector step, without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock_producers.fragment import Recording
from penstock_producers.policy.actor_critic import ActorCritic
from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.stream import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.policy.actor_critic import Forward
    from penstock_producers.policy.distributions import Distribution
    from penstock_schemas.spaces import Space

_FLOAT32 = np.dtype(np.float32)


class Actions(NamedTuple):
    """What a policy answers for a batch of observations: what is recorded, and what the env is sent."""

    drawn: tuple[NDArray[Any], ...]
    """In the order of the columns of `Policy.recording`; the action as it was drawn comes first."""
    sent: NDArray[Any]


class Policy(Protocol):
    """Chooses actions; its weights can be replaced while it runs."""

    version: int
    digest: bytes

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

    def act(self, observation: NDArray[Any]) -> Actions:
        """Choose actions for observations of shape (n, *shape)."""
        ...

    def load(self, record: PolicyRecord) -> None:
        """Act with another version from now on; raises `PolicyRejectedError`, and nothing has changed then."""
        ...


class TorchPolicy:
    """A module whose forward maps observations (n, *shape) to action parameters (n, k) and values (n,).

    The built-in network acts by its own function in numpy. Version 0 are the weights that the module came with.
    """

    def __init__(
        self, module: torch.nn.Module, action: Space, distribution: Distribution, rng: np.random.Generator
    ) -> None:
        self._module = module.eval()
        self._action = Column("action", action.shape, action.wire_dtype)
        self._distribution = distribution
        self._rng = rng
        self._forward = _forward_of(module)
        self.version = 0
        self.digest = digest(self._weights(), {})

    @property
    def module(self) -> torch.nn.Module:
        """The module, with the weights that act."""
        return self._module

    @property
    def extras(self) -> tuple[Column, ...]:
        """The log-probability of the action drawn, the value, and what the distribution adds."""
        recorded = (Column("log_prob", (), _FLOAT32), Column("value", (), _FLOAT32))
        return (*recorded, *self._distribution.columns)

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn."""
        return self._distribution.mapping

    @property
    def recording(self) -> Recording:
        """The action, its distribution's parameters, the value: the log-probability follows from these."""
        parameters = Column("parameters", (self._distribution.parameters,), _FLOAT32)
        return Recording((self._action, parameters, Column("value", (), _FLOAT32)), self._finish)

    def act(self, observation: NDArray[Any]) -> Actions:
        """Choose actions for observations of shape (n, *shape)."""
        parameters, value = self._forward(observation)
        action = self._distribution.draw(parameters, self._rng)
        return Actions((action, parameters, value), self._distribution.send(action))

    def _finish(self, drawn: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        action, parameters, value = drawn
        finished = [action, self._distribution.log_prob(parameters, action), value]
        return [*finished, self._distribution.send(action)] if self._distribution.columns else finished

    def probe(self, observation: NDArray[Any]) -> None:
        """Raise `PolicyError` unless the module's answer to observations (n, *shape) is of the right shapes."""
        what = f"module {type(self._module).__name__}"
        try:
            with torch.inference_mode():
                answer = self._module(torch.from_numpy(observation))
        except Exception as error:
            told = f"{observation.shape} of {observation.dtype}: {type(error).__name__}: {error}"
            raise PolicyError(f"{what}: forward raised for observations {told}") from error
        n, k = len(observation), self._distribution.parameters
        if not (isinstance(answer, tuple) and [type(part) for part in answer] == [torch.Tensor] * 2):
            raise PolicyError(f"{what}: forward must answer (parameters, value), two tensors")
        for name, tensor, shape in zip(("parameters", "value"), answer, ((n, k), (n,)), strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                found = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise PolicyError(f"{what}: {name} {found}, not {shape} of float32")

    def load(self, record: PolicyRecord) -> None:
        """Load a version's weights; the digest is computed from what was loaded."""
        own = self._module.state_dict()
        _check_weights(record, {name: (tuple(value.shape), _numpy(value).dtype) for name, value in own.items()})
        self._module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in record.weights.items()})
        self._forward = _forward_of(self._module)
        self.version = record.version
        self.digest = digest(self._weights(), record.settings)

    def _weights(self) -> dict[str, NDArray[Any]]:
        return {name: _numpy(value) for name, value in self._module.state_dict().items()}


def _forward_of(module: torch.nn.Module) -> Forward:
    # The exact class: a subclass may compute otherwise.
    if type(module) is ActorCritic:
        return module.numpy_forward()

    def forward(observation: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        with torch.inference_mode():
            parameters, value = module(torch.from_numpy(observation))
        # A view of a parameter keeps its gradient even here.
        return _numpy(parameters), _numpy(value)

    return forward


def _numpy(value: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().numpy()
    return array


def _check_weights(record: PolicyRecord, own: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
    what = f"policy version {record.version}"
    missing, unknown = sorted(own.keys() - record.weights.keys()), sorted(record.weights.keys() - own.keys())
    if missing or unknown:
        raise PolicyRejectedError("names", f"{what}: weights missing {missing}, unknown {unknown}")
    for name, value in record.weights.items():
        shape, dtype = own[name]
        if value.shape != shape or value.dtype != dtype:
            detail = f"{what}: weight {name!r} is {value.shape} of {value.dtype}, the module's is {shape} of {dtype}"
            raise PolicyRejectedError("shapes", detail)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise PolicyRejectedError("not_finite", f"{what}: weight {name!r} is not finite")
