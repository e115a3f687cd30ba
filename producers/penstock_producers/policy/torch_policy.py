"""A torch module as a policy: one batched forward a vector step, without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.fragment import Recording
from penstock_producers.policy.base import Actions, Recomputed
from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.device import device_of
from penstock_producers.policy.distributions import check_behaviour
from penstock_producers.policy.forward import ModuleForward
from penstock_producers.policy.inputs import examples
from penstock_producers.policy.mask import mask_among
from penstock_producers.policy.probe import compare, not_finite, probe, state_columns
from penstock_producers.policy.weights import check_loaded, check_weights, load_weights, weights_of
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from penstock_producers.policy.base import Inputs
    from penstock_producers.policy.distributions import Distribution
    from penstock_producers.policy.forward import Forward, Forwarded
    from penstock_producers.policy.inputs import Layout
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.spaces import Leaves, Space

FINAL_VALUE, LOG_PROB, PARAMETERS, VALUE = "final_value", "log_prob", "parameters", "value"
_FLOAT32 = np.dtype(np.float32)
_PROBED = 2


class TorchPolicy:
    """Acts by a module, whose forward answers parameters of a distribution, and perhaps a value and states.

    Version 0 are the weights that the module came with.

    Args:
        module: `forward(inputs)` answers (parameters (n, k), value (n,) or None), float32 tensors. Where it has
            `state_shapes`, shapes by name, `forward(inputs, states)` answers (parameters, value, next states), the
            states being tuples of float32 tensors (n, *shape) in that order.
        layout: how inputs are made of the observations that leave the pipeline.
        pipeline: the connectors before it.
        action: the space that the distribution draws from.
        distribution: of the parameters.
        behaviour: what acts before the first version, and what is recorded.
        rng: draws the actions.
        infos: the columns of the infos that come with observations.
        device: where the module computes, by torch's name.
        action_values: whether the parameters are what actions are worth. When ON it then explores by epsilon, and
            records as the value what the best allowed action is worth.
        numpy_forward: makes a function of the weights as they are then that acts in the module's stead, and is the
            same function as the module's own forward.

    Raises `PolicyError` for a module that answers something else, or has weights that numpy has no dtype for.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        pipeline: Pipeline,
        action: Space,
        distribution: Distribution,
        *,
        behaviour: Behaviour | None = None,
        rng: np.random.Generator,
        infos: Sequence[Column] = (),
        device: str = "cpu",
        action_values: bool = False,
        numpy_forward: Callable[[], Forward] | None = None,
    ) -> None:
        torch_device, mover = device_of(device)
        self._module = module.to(torch_device).eval()
        self._gather = layout.gather
        # Where a module computes elsewhere, it does so for its speed.
        self._numpy_forward = numpy_forward if torch_device.type == "cpu" else None
        self.pipeline = pipeline
        self._action = tuple(Column.of(leaf, "action") for leaf in leaves(action))
        self._distribution = distribution
        self._own = self._behaviour = behaviour or Behaviour()
        self._mask = None if self._own.mask is None else mask_among(self._own.mask, infos, distribution.choices)
        self._action_values = action_values
        self._on = Exploration.EPSILON if action_values else Exploration.ON
        self._exploration = self._on
        self._rng = rng
        self.states = state_columns(module)
        self._module_forward = ModuleForward(module, layout.structure, mover, recurrent=bool(self.states))
        weights = self._weights()
        self._expected = {name: (value.shape, value.dtype) for name, value in weights.items()}
        self._valued = self._probe()
        self._forward = self._made_forward()
        self.version = 0
        self.digest = digest(weights, {})

    @property
    def module(self) -> torch.nn.Module:
        """The module, with the weights that act."""
        return self._module

    @property
    def behaviour(self) -> Behaviour:
        """What acts now, the settings of the version among it."""
        return self._behaviour

    @property
    def exploration(self) -> Exploration:
        """How it chooses now."""
        return self._exploration

    @exploration.setter
    def exploration(self, wanted: Exploration) -> None:
        if wanted is Exploration.EPSILON and not self._action_values:
            raise PolicyError(
                "exploration EPSILON: this policy's parameters are not what actions are worth; set ON, and an epsilon "
                "in its behaviour"
            )
        self._exploration = self._on if wanted is Exploration.ON else wanted

    @property
    def extras(self) -> tuple[Column, ...]:
        """The log-probability, the value, the parameters, what was sent, the last value: those that there are."""
        nullable = not self._distribution.discrete
        extras = [Column(LOG_PROB, (), _FLOAT32, nullable=nullable)]
        if self._valued:
            extras.append(Column(VALUE, (), _FLOAT32))
        if self._own.parameters:
            extras.append(Column(PARAMETERS, (self._distribution.parameters,), _FLOAT32, nullable=nullable))
        extras += self._distribution.columns
        if self._own.final_value:
            extras.append(Column(FINAL_VALUE, (), _FLOAT32, nullable=True))
        return tuple(extras)

    @property
    def absent(self) -> frozenset[str]:
        """A density is that of what is drawn by it; and what is uniform is drawn by no parameters."""
        if self._distribution.discrete or self._exploration in {Exploration.ON, Exploration.EPSILON}:
            return frozenset()
        drawn_without = {PARAMETERS} if self._own.parameters and self._exploration is Exploration.RANDOM else set()
        return frozenset({LOG_PROB} | drawn_without)

    @property
    def mapping(self) -> str:
        """How the action sent follows from the one drawn."""
        return self._distribution.mapping

    @property
    def recording(self) -> Recording:
        """The action, what it was drawn from, the value: the log-probability and what was sent follow from these."""
        columns = [*self._action, Column(PARAMETERS, (self._distribution.parameters,), _FLOAT32)]
        if self._valued:
            columns.append(Column(VALUE, (), _FLOAT32))
        return Recording(tuple(columns), self._finish, FINAL_VALUE if self._own.final_value else None)

    def act(self, inputs: Inputs) -> Actions:
        """Choose actions for n envs."""
        parameters, value, state = self._choose(inputs, self._exploration)
        drawn = self._distribution.draw(parameters, self._rng, self._exploration)
        recorded = (*drawn, parameters) if value is None else (*drawn, parameters, value)
        return Actions(recorded, self._distribution.send(drawn), state)

    def recompute(self, inputs: Inputs, exploration: Exploration) -> Recomputed:
        """Compute again what actions were drawn from, as `act` did when the same weights and settings were loaded."""
        return Recomputed(*self._choose(inputs, exploration))

    def log_prob(self, parameters: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Give the log-probabilities (n,) of actions as recorded, which were drawn from parameters (n, k)."""
        return self._distribution.log_prob(parameters, action)

    def value(self, inputs: Inputs) -> NDArray[np.float32]:
        """Value n observations, shape (n,); NaN where no action is allowed."""
        parameters, value, _ = self._forward(self._gather(inputs.observation), inputs.state)
        if self._action_values:
            value = _best(parameters, None if self._mask is None else self._mask(inputs.infos))
            value[np.isneginf(value)] = np.nan
        if value is None:
            raise PolicyError(f"module {type(self._module).__name__}: it answers no values")
        return value

    def check(self, record: PolicyRecord) -> None:
        """Raise `PolicyRejectedError` unless names, shapes and dtypes are the policy's, and all numbers can act."""
        check_weights(record, self._expected)
        self.pipeline.check(record.weights)
        self._with(record.settings)

    def load(self, record: PolicyRecord) -> None:
        """Load a version's weights, connectors' parameters and settings; the digest is that of what was loaded.

        Raises `PolicyRejectedError` too for weights that the module does not take, or with which it raises or answers
        NaN or infinity for the observations that it was tried on when it was made: those before then act on.
        """
        self.check(record)
        self._forward = self._loaded(record)
        self.pipeline.load({name: record.weights[name].copy() for name in self.pipeline.weights})
        self._behaviour = self._with(record.settings)
        self.version = record.version
        self.digest = digest(self._weights(), record.settings)

    def _loaded(self, record: PolicyRecord) -> Forward:
        """Load the module's weights, and make what acts of them; or put back those before, and refuse the version."""
        what = f"policy version {record.version}: module {type(self._module).__name__}"
        before = {name: value.copy() for name, value in weights_of(self._module).items()}
        try:
            load_weights(self._module, {name: record.weights[name] for name in before})
            # Before the module runs, which may write to weights of its own.
            check_loaded(self._module, record.weights)
            forward = self._made_forward()
            with np.errstate(all="ignore"):
                answered = forward(*self._examples())
        except Exception as error:
            load_weights(self._module, before)
            raise PolicyRejectedError("load", f"{what}: {type(error).__name__}: {error}") from error
        if infinite := not_finite(answered):
            load_weights(self._module, before)
            told = f"{what}: {infinite} with NaN or infinity for observations of their space"
            raise PolicyRejectedError("not_finite", told)
        return forward

    def _choose(self, inputs: Inputs, exploration: Exploration) -> Forwarded:
        parameters, value, state = self._forward(self._gather(inputs.observation), inputs.state)
        mask = None if self._mask is None else self._mask(inputs.infos)
        behaved = self._distribution.behave(parameters, mask, self._behaviour, exploration)
        if self._action_values:
            value = _best(parameters, mask)
        return behaved, value, state

    def _finish(self, drawn: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        count = len(self._action)
        action, (parameters, *value) = tuple(drawn[:count]), drawn[count:]
        recorded = [*action, self._distribution.log_prob(parameters, action), *value]
        if self._own.parameters:
            recorded.append(parameters)
        return [*recorded, *self._distribution.send(action)] if self._distribution.columns else recorded

    def _probe(self) -> bool:
        """Try the module, and the function that acts in its stead; tell whether observations are valued."""
        module = self._module
        given, state = self._examples()
        answered = probe(module, self._module_forward, given, state, self._distribution.parameters)
        if self._numpy_forward is not None:
            compare(module, self._numpy_forward(), given, state, answered)
        valued = self._action_values or answered[1] is not None
        if self._own.final_value and not valued:
            raise PolicyError(
                f"behaviour: final_value: module {type(module).__name__} answers None for values; have it answer them, "
                "or leave final_value out"
            )
        return valued

    def _examples(self) -> tuple[Leaves, Leaves]:
        """Inputs that the module is tried on, and the states before them."""
        state = tuple(np.zeros((_PROBED, *column.shape), column.dtype) for column in self.states)
        return self._gather(examples(self.pipeline.space, _PROBED)), state

    def _made_forward(self) -> Forward:
        return self._module_forward if self._numpy_forward is None else self._numpy_forward()

    def _with(self, settings: Mapping[str, Any]) -> Behaviour:
        behaviour = self._own.with_settings(settings)
        if self._action_values and behaviour.epsilon is None:
            raise PolicyRejectedError("settings", "epsilon None: what actions are worth is explored by one; publish it")
        try:
            check_behaviour(self._distribution, behaviour)
        except PolicyError as error:
            raise PolicyRejectedError("settings", str(error)) from error
        return behaviour

    def _weights(self) -> dict[str, NDArray[Any]]:
        weights, parameters = weights_of(self._module), self.pipeline.weights
        if twice := sorted(weights.keys() & parameters.keys()):
            raise PolicyError(
                f"module {type(self._module).__name__}: weights {twice} are named as connectors' parameters are; "
                "rename them"
            )
        return weights | parameters


def _best(values: NDArray[np.float32], mask: NDArray[Any] | None) -> NDArray[np.float32]:
    """What the best allowed action is worth, shape (n,); -inf where none is allowed."""
    most: NDArray[np.float32] = (values if mask is None else np.where(mask != 0, values, -np.inf)).max(axis=1)
    return most
