"""Priorities in a file: safetensors, written whole or not at all.

Its arrays are those of `Slots`, what each item weighs, and which were never updated; its metadata, texts all, the
settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialized

from penstock_consumers.replay.choosing.slots import Layout, Slots
from penstock_consumers.store.folder import Folder
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = "penstock.priorities.1"
_DTYPES = {
    "keys": np.uint64,
    "bases": np.int64,
    "first": np.int64,
    "slot": np.int64,
    "weights": np.float32,
    "fresh": np.bool_,
}


@dataclass(frozen=True)
class State:
    """What a `Prioritized` goes on from."""

    alpha: float
    beta: float
    ahead: float
    largest: float
    slots: Slots
    weights: NDArray[np.float32]
    fresh: NDArray[np.bool_]


def save(path: str | Path, state: State) -> None:
    """Write a state by a rename of a synced temporary file; raises `StoreError` where that cannot be done."""
    slots = state.slots
    arrays: dict[str, NDArray[Any]] = {
        "keys": slots.keys,
        "bases": slots.bases,
        "first": slots.first,
        "slot": slots.slot,
    }
    settings = {"format": _FORMAT, "alpha": state.alpha, "beta": state.beta, "ahead": state.ahead}
    told = {**settings, "largest": state.largest, **slots.layout._asdict(), "behind": slots.behind}
    at = Path(path).absolute()
    arrays |= {"weights": state.weights, "fresh": state.fresh}
    data = serialized(arrays, {name: str(value) for name, value in told.items()})
    Folder(at.parent).put(at.name, data)


def load(path: str | Path) -> State:
    """Read a state; raises `SettingsError` where there is none, or something else."""
    try:
        with safe_open(path, "numpy") as file:
            return _state(file.metadata() or {}, {name: file.get_tensor(name) for name in _DTYPES})
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: no such file: give the path that save() was given") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise SettingsError(f"{path}: does not read as priorities ({error}): give what save() wrote") from error


def _state(told: dict[str, str], arrays: dict[str, NDArray[Any]]) -> State:
    """Make a state of what was read; raises `KeyError` or `ValueError` where it is not one."""
    if told.get("format") != _FORMAT:
        raise ValueError(f"format {told.get('format')!r}, not {_FORMAT!r}")
    keys, bases, first, slot, weights, fresh = arrays.values()
    if (
        {name: array.dtype for name, array in arrays.items()} != _DTYPES
        or not (len(keys) == len(bases) and len(first) == len(slot) + 1 and first[-1] == len(weights) == len(fresh))
        or not ((keys[1:] >= keys[:-1]).all() and (first[1:] > first[:-1]).all())
        or not (np.isfinite(weights).all() and (weights >= 0.0).all())
    ):
        raise ValueError("its arrays contradict each other")
    slots = Slots(Layout(int(told["stride"]), int(told["overlap"])), keys, bases, int(told["behind"]), first, slot)
    return State(
        float(told["alpha"]), float(told["beta"]), float(told["ahead"]), float(told["largest"]), slots, weights, fresh
    )
