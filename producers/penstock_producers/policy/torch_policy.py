"""A torch module as a policy: one batched forward a vector step, without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.stream import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_producers.policy.distributions import Distribution

_FLOAT32 = np.dtype(np.float32)


class Actions(NamedTuple):
    """What a policy answers for a batch of observations: what is recorded, and what the env is sent."""

    drawn: tuple[NDArray[Any], ...]
    """The action, then the extras, in the order of `Policy.extras`."""
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

    def act(self, observation: NDArray[Any]) -> Actions:
        """Choose actions for observations of shape (n, *shape)."""
        ...

    def load(self, record: PolicyRecord) -> None:
        """Act with another version from now on; raises `PolicyRejectedError`, and nothing has changed then."""
        ...


class TorchPolicy:
    """A module whose forward maps observations (n, *shape) to action parameters (n, k) and values (n,).

    Version 0 are the weights that the module came with.
    """

    def __init__(self, module: torch.nn.Module, distribution: Distribution, rng: np.random.Generator) -> None:
        self._module = module.eval()
        self._distribution = distribution
        self._rng = rng
        self.version = 0
        self.digest = digest(self._weights(), {})

    @property
    def extras(self) -> tuple[Column, ...]:
        """The log-probability of the action drawn, the value, and what the distribution adds."""
        recorded = (Column("log_prob", (), _FLOAT32), Column("value", (), _FLOAT32))
        return (*recorded, *self._distribution.columns)

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn."""
        return self._distribution.mapping

    def act(self, observation: NDArray[Any]) -> Actions:
        """Choose actions for observations of shape (n, *shape)."""
        with torch.inference_mode():
            parameters, value = self._module(torch.from_numpy(observation))
        action, log_prob, sent = self._distribution.draw(parameters.numpy(), self._rng)
        drawn = (action, log_prob, value.numpy())
        return Actions((*drawn, sent) if self._distribution.columns else drawn, sent)

    def probe(self, observation: NDArray[Any]) -> None:
        """Raise `PolicyError` unless the module's answer to observations (n, *shape) is of the right shapes."""
        with torch.inference_mode():
            answer = self._module(torch.from_numpy(observation))
        n, k = len(observation), self._distribution.parameters
        if not (isinstance(answer, tuple) and len(answer) == 2):  # noqa: PLR2004  (parameters and value)
            raise PolicyError(f"module {type(self._module).__name__}: forward must answer (parameters, value)")
        for name, tensor, shape in zip(("parameters", "value"), answer, ((n, k), (n,)), strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                found = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise PolicyError(f"module {type(self._module).__name__}: {name} {found}, not {shape} of float32")

    def load(self, record: PolicyRecord) -> None:
        """Load a version's weights; the digest is computed from what was loaded."""
        own = self._module.state_dict()
        _check_weights(record, {name: (tuple(value.shape), _numpy(value).dtype) for name, value in own.items()})
        self._module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in record.weights.items()})
        self.version = record.version
        self.digest = digest(self._weights(), record.settings)

    def _weights(self) -> dict[str, NDArray[Any]]:
        return {name: _numpy(value) for name, value in self._module.state_dict().items()}


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
