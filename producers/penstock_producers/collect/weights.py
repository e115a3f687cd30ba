"""Versions of a policy from what a trainer has at hand."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import torch

from penstock_schemas.errors import PolicyRejectedError
from penstock_schemas.policies import PolicyRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_producers.policy import Policy


_LIMIT = 1 << 63


def record_of(given: PolicyRecord | Mapping[str, Any], policy: Policy, settings: Mapping[str, Any]) -> PolicyRecord:
    """Take a version, or make the next one of weights, which are arrays or tensors by name; of copies, either way.

    Connectors' parameters that are not among them stay as they are. Raises `PolicyRejectedError` for a number that no
    version has.
    """
    if isinstance(given, PolicyRecord):
        return PolicyRecord(_number(given.version), _copied(given.weights), dict(given.settings))
    return PolicyRecord(_number(policy.version + 1), {**policy.pipeline.weights, **_copied(given)}, settings)


def _number(version: Any) -> int:
    # True is an index too.
    known = isinstance(version, SupportsIndex) and not isinstance(version, bool)
    if not (known and 0 <= index(version) < _LIMIT):
        told = f"policy version {version!r}: a version is an integer from 0 to 2**63 - 1; give it such a number"
        raise PolicyRejectedError("version", told)
    return index(version)


def _copied(weights: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: _array(value) for name, value in weights.items()}


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    # A trainer goes on with its own.
    return np.array(value)
