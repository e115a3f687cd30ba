"""What a run is to go on with: components of numbers and arrays, in one file, whole or one by one.

The file is a safetensors file: the arrays are its tensors, named "<component>.<name>", and all else stands as JSON in
its metadata. Nothing is pickled.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

_METADATA = "penstock_state"
_FORMAT = 1
_ARRAY = "array"
Generator: TypeAlias = "np.random.Generator | torch.Generator"


@dataclass(frozen=True)
class Component:
    """A part of a state that can be saved and loaded by itself."""

    values: Mapping[str, Any]
    """Plain JSON."""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Of dtypes that safetensors has."""


State: TypeAlias = "Mapping[str, Component]"


def save_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a state to a file that holds all of it or what was there before, whenever this process ends.

    Raises `SettingsError` for values that are not plain JSON, and `OSError` where the file cannot be written.
    """
    for name, component in state.items():
        try:
            json.dumps(dict(component.values), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"state {name!r} cannot be saved: no plain JSON: {error}") from error
    described = {"format": _FORMAT, "components": {name: dict(of.values) for name, of in state.items()}}
    arrays = {
        f"{name}.{key}": np.asarray(value, order="C")
        for name, component in state.items()
        for key, value in component.arrays.items()
    }
    _replace(Path(path), save(arrays, {_METADATA: json.dumps(described, sort_keys=True)}))


def load_state(path: str | os.PathLike[str], components: Iterable[str] | None = None) -> dict[str, Component]:
    """Read a state, or some of its components.

    Raises `SettingsError` where the file is none, is damaged, or has not all of the components.
    """
    try:
        with safe_open(path, "numpy") as file:
            described = json.loads((file.metadata() or {})[_METADATA])
            if described["format"] != _FORMAT:
                raise SettingsError(f"state {path}: of format {described['format']!r}, this version reads {_FORMAT}")
            there = described["components"]
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping, but a file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"state {path}: it cannot be read: {error!r}; save it again") from error
    wanted = list(there) if components is None else list(components)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise SettingsError(f"state {path}: it has no {', '.join(missing)}, but {', '.join(there)}")
    return {
        name: Component(
            there[name],
            {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")},
        )
        for name in wanted
    }


def describe_generator(generator: Generator) -> dict[str, Any]:
    """Describe where a generator stands, as plain JSON; `restore_generator` takes one there."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state().numpy().tobytes()
        return {"torch": base64.b64encode(state).decode(), "device": str(generator.device)}
    described: dict[str, Any] = _plain(generator.bit_generator.state)
    return described


def restore_generator(generator: Generator, described: Mapping[str, Any]) -> None:
    """Take a generator to where another of its kind stood; raises `SettingsError` where it is of another kind."""
    try:
        if isinstance(generator, torch.Generator):
            state = np.frombuffer(base64.b64decode(described["torch"]), np.uint8)
            generator.set_state(torch.from_numpy(state.copy()))
        else:
            generator.bit_generator.state = _unplain(described)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        kind = "torch" if isinstance(generator, torch.Generator) else type(generator.bit_generator).__name__
        raise SettingsError(
            f"the state of a generator is not that of one of {kind}: {error}; make the generator as it was"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return {_ARRAY: value.tolist(), "dtype": value.dtype.name}
    return value.item() if isinstance(value, np.generic) else value


def _unplain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return np.array(value[_ARRAY], value["dtype"])
    return {key: _unplain(inner) for key, inner in value.items()}


def _replace(path: Path, data: bytes) -> None:
    """Write a file next to the one that is meant, and put it in its place when it is on the disk."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
