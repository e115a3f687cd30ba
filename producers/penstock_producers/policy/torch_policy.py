"""A torch module as a policy: one batched forward a vector step, without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_producers.fragment import Recording
from penstock_producers.policy.base import Actions
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.policy.actor_critic import Forward
    from penstock_producers.policy.base import Inputs
    from penstock_producers.policy.distributions import Distribution
    from penstock_producers.policy.inputs import Inputs as MakeInputs
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.spaces import Leaves, Space

_FLOAT32 = np.dtype(np.float32)
# How far two float32 forwards of one function lie apart at most, relative to the largest answer: rounding only.
_TOLERANCE = 1e-3


class TorchPolicy:
    """A module whose forward maps what `inputs` makes of n observations to action parameters (n, k) and values (n,).

    Version 0 are the weights that the module came with. `make_forward` makes a function of the weights as they are
    then that acts in the module's stead, and must be the same function as the module's own forward.

    Raises `PolicyError` for a module whose weights are not all tensors that numpy has a dtype for.
    """

    exploration = Exploration.ON
    states: tuple[Column, ...] = ()
    absent: frozenset[str] = frozenset()

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: MakeInputs,
        pipeline: Pipeline,
        action: Space,
        distribution: Distribution,
        rng: np.random.Generator,
        *,
        make_forward: Callable[[], Forward] | None = None,
    ) -> None:
        self._module = module.eval()
        self._make_forward = make_forward
        self._inputs = inputs
        self.pipeline = pipeline
        (leaf,) = leaves(action)
        self._action = Column.of(leaf, "action")
        self._distribution = distribution
        self._rng = rng
        self.version = 0
        weights = self._weights()
        self.digest = digest(weights, {})
        self._expected = {name: (value.shape, value.dtype) for name, value in weights.items()}
        self._forward = self._module_forward if make_forward is None else make_forward()

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

    def act(self, inputs: Inputs) -> Actions:
        """Choose actions for n envs."""
        parameters, value = self._forward(self._inputs(inputs.observation))
        action = self._distribution.draw(parameters, self._rng)
        return Actions((action, parameters, value), (self._distribution.send(action),))

    def _finish(self, drawn: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        action, parameters, value = drawn
        finished = [action, self._distribution.log_prob(parameters, action), value]
        return [*finished, self._distribution.send(action)] if self._distribution.columns else finished

    def probe(self, observation: Leaves) -> None:
        """Raise `PolicyError` unless the module answers n observations as it must, and acts by its answer."""
        given = self._inputs(observation)
        what = f"module {type(self._module).__name__}"
        try:
            with torch.inference_mode():
                answer = self._module(_tensor(given))
        except Exception as error:
            arrays = ", ".join(f"{leaf.shape} of {leaf.dtype}" for leaf in observation)
            told = f"{arrays}: {type(error).__name__}: {error}"
            raise PolicyError(f"{what}: forward raised for observations {told}") from error
        n, k = len(observation[0]), self._distribution.parameters
        if not (isinstance(answer, tuple) and [type(part) for part in answer] == [torch.Tensor] * 2):
            raise PolicyError(f"{what}: forward must answer (parameters, value), two tensors")
        for name, tensor, shape in zip(("parameters", "value"), answer, ((n, k), (n,)), strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                found = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise PolicyError(f"{what}: {name} {found}, not {shape} of float32")
        if self._make_forward is None:
            return
        for name, acted, tensor in zip(("parameters", "value"), self._forward(given), answer, strict=True):
            expected = tensor.numpy()
            distance = np.abs(acted - expected).max()
            # Not the other way round: a distance that is no number is too far as well.
            if not distance <= _TOLERANCE * max(1.0, np.abs(expected).max()):
                raise PolicyError(
                    f"{what}: the function that acts answers {name} {distance:g} off the module's forward"
                )

    def value(self, inputs: Inputs) -> NDArray[Any]:
        """Value n observations, shape (n,)."""
        return self._forward(self._inputs(inputs.observation))[1]

    def check(self, record: PolicyRecord) -> None:
        """Raise `PolicyRejectedError` unless a version's weights have the module's names, shapes and dtypes."""
        _check_weights(record, self._expected)

    def load(self, record: PolicyRecord) -> None:
        """Load a version's weights; the digest is computed from what was loaded."""
        self.check(record)
        self._module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in record.weights.items()})
        if self._make_forward is not None:
            self._forward = self._make_forward()
        self.version = record.version
        self.digest = digest(self._weights(), record.settings)

    def _weights(self) -> dict[str, NDArray[Any]]:
        weights: dict[str, NDArray[Any]] = {}
        for name, value in self._module.state_dict().items():
            try:
                weights[name] = _numpy(value)
            except (AttributeError, TypeError) as error:
                kind = getattr(value, "dtype", type(value).__name__)
                raise PolicyError(
                    f"module {type(self._module).__name__}: weight {name!r} is of {kind}, which numpy does not have: "
                    "keep weights in float32, and cast in forward"
                ) from error
        return weights

    def _module_forward(self, given: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        with torch.inference_mode():
            parameters, value = self._module(given)
        # Copies: a module may answer a view of the observation, which is the env's to overwrite.
        return _numpy(parameters).copy(), _numpy(value).copy()


def _tensor(given: Any) -> Any:
    return torch.from_numpy(given) if isinstance(given, np.ndarray) else given


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
