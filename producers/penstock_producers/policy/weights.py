"""A module's weights as arrays, and whether a version's are of their names, shapes and dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_schemas.errors import PolicyError, PolicyRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_schemas.policies import PolicyRecord

    Expected = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


def weights_of(module: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Give a module's weights by name; raises `PolicyError` for one that numpy has no dtype for."""
    weights: dict[str, NDArray[Any]] = {}
    for name, value in module.state_dict().items():
        try:
            weights[name] = value.detach().cpu().numpy()
        except (AttributeError, TypeError) as error:
            kind = getattr(value, "dtype", type(value).__name__)
            raise PolicyError(
                f"module {type(module).__name__}: weight {name!r} is of {kind}, which numpy does not have: "
                "keep weights in float32, and cast in forward"
            ) from error
    return weights


def load_weights(module: torch.nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy weights of the right names, shapes and dtypes into a module, wherever it is."""
    # Copied twice, since torch warns of arrays that cannot be written to, as those of a file are.
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})


def check_loaded(module: torch.nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Raise `ValueError` unless a module has the weights that it was given: two that are one have one value."""
    for name, value in weights_of(module).items():
        if not np.array_equal(value, weights[name]):
            raise ValueError(f"{name!r} is one with another of its weights, which the version has two values for")


def check_weights(record: PolicyRecord, expected: Expected) -> None:
    """Raise `PolicyRejectedError` unless a version has the expected names, shapes and dtypes, and finite numbers."""
    what = f"policy version {record.version}"
    missing, unknown = sorted(expected.keys() - record.weights.keys()), sorted(record.weights.keys() - expected.keys())
    if missing or unknown:
        raise PolicyRejectedError("names", f"{what}: weights missing {missing}, unknown {unknown}")
    for name, value in record.weights.items():
        shape, dtype = expected[name]
        if value.shape != shape or value.dtype != dtype:
            detail = f"{what}: weight {name!r} is {value.shape} of {value.dtype}, the policy's is {shape} of {dtype}"
            raise PolicyRejectedError("shapes", detail)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise PolicyRejectedError("not_finite", f"{what}: weight {name!r} is not finite")
