"""Trying a module before it acts: that it answers what it must, and that what acts in its stead does the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError
from penstock_schemas.stream import STATE

if TYPE_CHECKING:
    from penstock_producers.policy.forward import Forward, Forwarded, ModuleForward
    from penstock_schemas.spaces import Leaves

_FLOAT32 = np.dtype(np.float32)
# How far two float32 forwards of one function lie apart at most, relative to the largest answer: rounding only.
_TOLERANCE = 1e-3


def state_columns(module: torch.nn.Module) -> tuple[Column, ...]:
    """The columns of a recurrent module's `state_shapes`, in their order; none for other modules.

    Raises `PolicyError` where these are no shapes by name.
    """
    shapes = getattr(module, "state_shapes", {})
    if not isinstance(shapes, Mapping) or not all(isinstance(name, str) and _is_shape(shapes[name]) for name in shapes):
        raise PolicyError(
            f"module {type(module).__name__}: state_shapes {shapes!r}: a mapping from the name of each state to its "
            "shape, a tuple of whole numbers above 0"
        )
    return tuple(Column(STATE + name, tuple(shape), _FLOAT32) for name, shape in shapes.items())


def probe(module: torch.nn.Module, forward: ModuleForward, given: Leaves, state: Leaves, parameters: int) -> Forwarded:
    """Give a module's answer; raises `PolicyError` unless it is what a policy needs, naming what is wrong."""
    what = f"module {type(module).__name__}"
    n = len(given[0])
    try:
        answer = forward.answer(given, state)
    except Exception as error:
        told = f"{_told(given)}: {type(error).__name__}: {error}"
        raise PolicyError(f"{what}: forward raised for observations {told}") from error
    for name, found, shape in _named(answer, getattr(module, "state_shapes", {}), state, what, n, parameters):
        if tuple(found.shape) != shape or found.dtype != torch.float32:
            raise PolicyError(f"{what}: {name} {tuple(found.shape)} of {found.dtype}, not {shape} of float32")
    answered = forward.arrays(answer)
    if infinite := not_finite(answered):
        raise PolicyError(f"{what}: {infinite} with NaN or infinity for observations of their space: {_told(given)}")
    return answered


def not_finite(answered: Forwarded) -> str | None:
    """Name what of an answer has NaN or infinity; a parameter may be -inf, as the logit of what is never chosen."""
    parameters, value, after = answered
    if np.isnan(parameters).any() or np.isposinf(parameters).any():
        return "parameters"
    if value is not None and not np.isfinite(value).all():
        return "value"
    return None if all(np.isfinite(part).all() for part in after) else "states"


def compare(module: torch.nn.Module, forward: Forward, given: Leaves, state: Leaves, expected: Forwarded) -> None:
    """Raise `PolicyError` unless a function that acts in a module's stead answers the same."""
    parameters, value, after = forward(given, state)
    named = [("parameters", parameters, expected[0]), ("value", value, expected[1])]
    for name, one, other in (*named, *(("state", *pair) for pair in zip(after, expected[2], strict=True))):
        if one is None or other is None:
            continue
        distance = np.abs(one - other).max()
        # Not the other way round: a distance that is no number is too far as well.
        if not distance <= _TOLERANCE * max(1.0, np.abs(other).max()):
            raise PolicyError(
                f"module {type(module).__name__}: the function that acts answers {name} {distance:g} off the module's "
                "forward"
            )


def _named(
    answer: Any, shapes: Iterable[str], state: Leaves, what: str, n: int, parameters: int
) -> list[tuple[str, torch.Tensor, tuple[int, ...]]]:
    """Name the tensors of an answer, and say which shape each must have."""
    wanted = "(parameters, value, states), two tensors and a tuple of them" if state else "(parameters, value)"
    refused = PolicyError(
        f"{what}: forward must answer {wanted}{'' if state else ', two tensors'}; the value may be None"
    )
    if not isinstance(answer, tuple) or len(answer) != (3 if state else 2):
        raise refused
    found, value, *rest = answer
    named: list[tuple[str, torch.Tensor, tuple[int, ...]]] = [("parameters", found, (n, parameters))]
    if value is not None:
        named.append(("value", value, (n,)))
    if state:
        (after,) = rest
        if not isinstance(after, tuple) or len(after) != len(state):
            raise refused
        named += [
            (f"state {name!r}", part, before.shape) for name, part, before in zip(shapes, after, state, strict=True)
        ]
    if not all(isinstance(tensor, torch.Tensor) for _, tensor, _ in named):
        raise refused
    return named


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(isinstance(extent, int) and extent > 0 for extent in shape)


def _told(given: Leaves) -> str:
    return ", ".join(f"{leaf.shape} of {leaf.dtype}" for leaf in given)
