"""Versions of a policy from what a trainer has at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_schemas.policies import PolicyRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_producers.policy import Policy


def record_of(given: PolicyRecord | Mapping[str, Any], policy: Policy, settings: Mapping[str, Any]) -> PolicyRecord:
    """Take a version, or make the next one of weights, which are arrays or tensors by name; of copies, either way.

    Connectors' parameters that are not among them stay as they are.
    """
    if isinstance(given, PolicyRecord):
        return replace(given, weights=_copied(given.weights))
    return PolicyRecord(policy.version + 1, {**policy.pipeline.weights, **_copied(given)}, settings)


def _copied(weights: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: _array(value) for name, value in weights.items()}


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    # A trainer goes on with its own.
    return np.array(value)
