"""The infos of a vector environment, as gymnasium holds them: an array for each key, a mask for who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs.casting import cast
from penstock_producers.envs.infos import InfoBuffer, Unstorable
from penstock_schemas.errors import EnvError
from penstock_schemas.stream import INFO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Info
    from penstock_schemas.columns import Column


class VectorInfos:
    """Reads the recorded infos of n rows out of a vector environment's infos.

    `infos[key]` is an array with a row for each env, `infos["_" + key]` tells which envs have it; without that, all
    have. A value that its column cannot hold is left out, counted, and the first of each key logged; a mask of another
    shape is an `EnvError`.

    Args:
        columns: of the recorded infos.
        num_envs: how many rows there are at most.

    Attributes:
        unstorable: how many values were left out, by key.
    """

    def __init__(self, columns: tuple[Column, ...], num_envs: int) -> None:
        self.unstorable = Unstorable()
        self._columns = tuple(
            (column.name.removeprefix(INFO), column, InfoBuffer((column,), num_envs)) for column in columns
        )

    def read(self, infos: Mapping[str, Any], n: int) -> tuple[Info, ...]:
        """Read the infos of n rows; the arrays may be the environment's own."""
        rows = tuple(_read(key, column, buffer, infos, n) for key, column, buffer in self._columns)
        for _, _, buffer in self._columns:
            self.unstorable.add(buffer.take_left_out())
        return rows

    def with_final(
        self, recorded: tuple[Info, ...], done: NDArray[np.bool_], final: Mapping[str, Any]
    ) -> tuple[Info, ...]:
        """Put the infos of the envs that are `done`, from `final`, into copies of what `read` gave."""
        finals = self.read(final, len(done))
        replaced = []
        for (values, valid), (last, last_valid) in zip(recorded, finals, strict=True):
            whole, whole_valid = values.copy(), valid.copy()
            whole[done], whole_valid[done] = last[done], last_valid[done]
            replaced.append((whole, whole_valid))
        return tuple(replaced)


def final_infos(infos: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Find the infos that came with last observations; none where there are none.

    What else an env that is done gives as `infos` belongs to its next episode. Raises `EnvError` for final infos of
    another form, as vector environments gave them before gymnasium 1.0.
    """
    final = infos.get("final_info")
    if final is None or isinstance(final, dict):
        return final or {}
    raise EnvError(
        f"environment {name}: infos['final_info'] must be a dict with an array for each key, but is a "
        f"{type(final).__name__}; mend the environment"
    )


def each_info(infos: Mapping[str, Any], num_envs: int) -> Iterator[dict[str, Any]]:
    """Part a vector environment's infos into those of each of its envs; a dict stands for itself.

    An env that lacks what another has is given what stands in its place: None, or zeros of the same dtype.
    """
    for i in range(num_envs):
        yield {
            key: values if isinstance(values, dict) else values[i]
            for key, values in infos.items()
            if isinstance(values, dict) or (_has_rows(values, num_envs) and not _is_mask(key, infos))
        }


def _read(key: str, column: Column, buffer: InfoBuffer, infos: Mapping[str, Any], n: int) -> Info:
    values = infos.get(key)
    mask = infos.get("_" + key)
    valid = np.ones(n, np.bool_) if mask is None else np.asarray(mask, np.bool_)
    if valid.shape != (n,):
        raise EnvError(
            f"infos[{'_' + key!r}] must tell of each of {n} envs whether it has {key!r}, but has shape {valid.shape}; "
            "mend the environment"
        )
    if values is None or not valid.any():
        return np.full((n, *column.shape), None if column.is_text else 0, column.dtype), np.zeros(n, np.bool_)
    numbers = isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and not column.is_text
    if numbers and values.shape == (n, *column.shape):
        kept = cast(values, column.dtype) if np.can_cast(values.dtype, column.dtype) else None
        if kept is not None:
            return kept, valid
    has_rows = _has_rows(values, n)
    for i in range(n):
        buffer.put(i, {key: values[i] if has_rows else values} if valid[i] else {})
    ((stored, there),) = buffer.rows(n)
    return stored.copy(), there.copy()


def _has_rows(values: Any, n: int) -> bool:
    return isinstance(values, np.ndarray) and values.shape[:1] == (n,)


def _is_mask(key: str, infos: Mapping[str, Any]) -> bool:
    return key.startswith("_") and key[1:] in infos
