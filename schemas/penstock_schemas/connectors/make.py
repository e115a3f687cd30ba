"""Making connectors by name, each for what comes out of the one before it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock_schemas.connectors.cast import Cast
from penstock_schemas.connectors.flatten import Flatten
from penstock_schemas.connectors.normalize import Normalize
from penstock_schemas.connectors.one_hot import OneHot
from penstock_schemas.connectors.pipeline import Pipeline
from penstock_schemas.connectors.previous import PreviousAction, PreviousReward
from penstock_schemas.connectors.probe import probe
from penstock_schemas.connectors.scale import Scale
from penstock_schemas.connectors.stack import Stack
from penstock_schemas.errors import PolicyError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock_schemas.connectors.connector import Connector
    from penstock_schemas.spaces import Space

BUILT_IN: Mapping[str, Callable[..., Connector]] = {
    "cast": Cast,
    "flatten": Flatten,
    "normalize": Normalize,
    "one_hot": OneHot,
    "previous_action": PreviousAction,
    "previous_reward": PreviousReward,
    "scale": Scale,
    "stack": Stack,
}
_KEYS = {"name", "arguments"}


def make_pipeline(described: Sequence[Mapping[str, Any]], observation: Space, action: Space) -> Pipeline:
    """Make connectors in order, each described as {"name": …, "arguments": {…}}; arguments may be left out.

    A name is that of a built-in connector or "module:factory"; what such a factory returns is tried on a few rows.
    Raises `PolicyError` for one that cannot be made so, `SpaceError` for one that does not take what comes in; either
    names the connector and its place.
    """
    if not isinstance(described, list | tuple):
        raise PolicyError(f"connectors {described!r}: a list, in order, of objects with a name and arguments")
    connectors: list[Connector] = []
    space = observation
    for at, one in enumerate(described):
        name, arguments = _parts(at, one)
        try:
            connectors.append(_make(name, space, action, arguments))
        except SpaceError as error:
            raise SpaceError(f"connector {at} {name!r}: {error}") from error
        except PolicyError as error:
            raise PolicyError(f"connector {at} {name!r}: {error}") from error
        space = connectors[-1].space
    return Pipeline(observation, connectors)


def _parts(at: int, described: Any) -> tuple[str, dict[str, Any]]:
    if not hasattr(described, "keys") or not described.keys() <= _KEYS or not isinstance(described.get("name"), str):
        raise PolicyError(f"connector {at}: {described!r} is no object with a name, and arguments where it has any")
    arguments = described.get("arguments", {})
    if not hasattr(arguments, "keys"):
        raise PolicyError(
            f"connector {at} {described['name']!r}: arguments {arguments!r} are no object of them by name"
        )
    return described["name"], dict(arguments)


def _make(name: str, observation: Space, action: Space, arguments: Mapping[str, Any]) -> Connector:
    factory = BUILT_IN.get(name) or _factory(name)
    try:
        connector = factory(observation, action, **arguments)
    except (PolicyError, SpaceError):
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise PolicyError(f"it cannot be made with {dict(arguments)}: {told}") from error
    if name not in BUILT_IN:
        probe(connector, observation, action)
    return connector


def _factory(name: str) -> Callable[..., Connector]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise PolicyError(f"there are {', '.join(BUILT_IN)}, and a user's own of the form module:factory")
    try:
        factory: Callable[..., Connector] = getattr(import_module(module), attribute)
    except Exception as error:
        raise PolicyError(f"it cannot be imported: {type(error).__name__}: {error}") from error
    return factory
