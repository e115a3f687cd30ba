"""Connectors one after the other, and the parameters that a version of the policy brings for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_schemas.connectors.acting import ActingPipeline
from penstock_schemas.errors import PolicyRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors.connector import Connector
    from penstock_schemas.spaces import Space

    Parameters = Mapping[str, NDArray[Any]]

PREFIX = "connectors."


class Pipeline:
    """Connectors in order; immutable, but for the parameters that a version of the policy brings.

    The parameters of connector i travel among a version's weights as "connectors.<i>.<name>".

    Attributes:
        observation: the space that comes in.
        connectors: in order.
        space: the space that comes out.
        lookback: how many observations back what comes out depends on, at most.
        reach: how many steps back: one more where a connector is told what led to an observation.
        parameters: those that act, of each connector by name.
    """

    def __init__(self, observation: Space, connectors: Sequence[Connector] = ()) -> None:
        self.observation = observation
        self.connectors = tuple(connectors)
        self.space = connectors[-1].space if connectors else observation
        self.lookback = sum(connector.lookback for connector in self.connectors)
        self.reach = self.lookback + any(map(_recalls, self.connectors))
        self.parameters: tuple[Parameters, ...] = tuple(dict(connector.parameters) for connector in self.connectors)

    def __bool__(self) -> bool:
        return bool(self.connectors)

    @property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The parameters that act, by the names under which they travel."""
        return {
            f"{PREFIX}{at}.{name}": value
            for at, parameters in enumerate(self.parameters)
            for name, value in parameters.items()
        }

    def check(self, weights: Parameters) -> None:
        """Raise `PolicyRejectedError` unless `load` would take these, which have the right names, shapes and dtypes."""
        for at, (connector, parameters) in enumerate(zip(self.connectors, self.parameters_of(weights), strict=True)):
            try:
                connector.check(parameters)
            except ValueError as error:
                raise PolicyRejectedError("connectors", f"parameters of connector {at}: {error}") from error

    def load(self, weights: Parameters) -> None:
        """Act with these parameters from now on."""
        self.parameters = self.parameters_of(weights)

    def parameters_of(self, weights: Parameters) -> tuple[Parameters, ...]:
        """Find each connector's parameters among a version's weights; raises `KeyError` where one is missing."""
        return tuple(
            {name: weights[f"{PREFIX}{at}.{name}"] for name in connector.parameters}
            for at, connector in enumerate(self.connectors)
        )

    def inputs(self, at: int) -> Space:
        """The space that comes into a connector."""
        return self.connectors[at - 1].space if at else self.observation

    def acting(self, num_envs: int) -> ActingPipeline:
        """Make what runs the connectors while N envs are stepped."""
        return ActingPipeline(self, num_envs)


def _recalls(connector: Connector) -> bool:
    """Tell whether a connector is to be given what led to an observation, as it says itself; else it may use all."""
    for of in type(connector).__mro__:
        if "recalls" in vars(of):
            return bool(vars(of)["recalls"])
        # What a class says of itself does not hold for one that is derived from it and does otherwise.
        if "__call__" in vars(of):
            break
    return True
