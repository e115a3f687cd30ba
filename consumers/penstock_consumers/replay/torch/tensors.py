"""Arrays as tensors, in whatever structure they come."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_consumers.replay.episodes import Episode

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Stands behind the name of what may be absent.
_PRESENT = ".present"


def tensors(values: Any) -> Any:
    """Give a batch or an episode with tensors in place of its arrays, in the same dtypes and structure.

    Tensors share the memory of arrays that may be written to, as those of batches may; others are copied. A masked
    array becomes two tensors: `name` has its values, `name.present` is bool, of the same shape, and False where there
    was none (the value there means nothing). An episode becomes a dict of its attributes, `id` among them. Text stays
    an object array of str, and whatever is no array stays what it is.
    """
    if isinstance(values, Episode):
        return tensors({field.name: getattr(values, field.name) for field in fields(values)} | {"id": values.id})
    if isinstance(values, dict):
        return {name: tensors(value) for name, value in values.items()} | {
            f"{name}{_PRESENT}": torch.from_numpy(~np.ma.getmaskarray(value))
            for name, value in values.items()
            if isinstance(value, np.ma.MaskedArray)
        }
    if isinstance(values, tuple):
        return tuple(map(tensors, values))
    return _tensor(values) if isinstance(values, np.ndarray) else values


def mapped(function: Callable[[Any], Any], values: Any, of: type = torch.Tensor) -> Any:
    """Apply a function to each tensor, or to what is `of` another type, of a structure of dicts, tuples and lists."""
    if isinstance(values, of):
        return function(values)
    if isinstance(values, dict):
        return {name: mapped(function, value, of) for name, value in values.items()}
    # Subclasses are made in ways of their own.
    if type(values) in {tuple, list}:
        return type(values)(mapped(function, value, of) for value in values)
    return values


def _tensor(array: NDArray[Any]) -> torch.Tensor | NDArray[Any]:
    if array.dtype.hasobject:
        return array
    plain = np.ma.getdata(array)
    return torch.from_numpy(plain if plain.flags.writeable else plain.copy())
