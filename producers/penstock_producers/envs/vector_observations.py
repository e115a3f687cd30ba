"""The observations of a vector environment: checked against its space, parted into leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.contained import told
from penstock_producers.envs.casting import cast
from penstock_producers.spaces import batch_reader
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import Dict, Text, Tuple, bounded, flatten, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaves, Space


class VectorObservations:
    """Reads batches of N observations, as gymnasium's vector environments hold them.

    Args:
        space: of one env.
        num_envs: N.
        name: of the environment, for errors.
    """

    def __init__(self, space: Space, num_envs: int, name: str) -> None:
        self._space = space
        self._name = name
        self._read = batch_reader(space)
        self._leaves = tuple((leaf.name(""), leaf.space.dtype, (num_envs, *leaf.space.shape)) for leaf in leaves(space))
        self._most = {i: leaf.space.max_length for i, leaf in enumerate(leaves(space)) if isinstance(leaf.space, Text)}
        self._texts = tuple(i for i, (_, dtype, _) in enumerate(self._leaves) if dtype.kind == "O")
        _, self._dtype, self._shape = self._leaves[0]
        is_array = not isinstance(space, Dict | Tuple | Text)
        self._bounded = {i: leaves(space)[i].space for i in bounded(space)}
        read = self._read_array if is_array else self._read_tree
        self.read: Callable[[Any], Leaves] = self._bounded_read(read) if self._bounded else read
        """Part a batch into its leaves, without a copy; raises `EnvError` where it is not of its space."""

    def _bounded_read(self, read: Callable[[Any], Leaves]) -> Callable[[Any], Leaves]:
        def checked(batch: Any) -> Leaves:
            observation = read(batch)
            for i in self._bounded:
                self._check_inside("observation", i, observation[i])
            return observation

        return checked

    def _check_inside(self, what: str, i: int, values: NDArray[Any]) -> None:
        # Stored in fewer bits it would become another value.
        if outside := self._bounded[i].outside(values):
            raise EnvError(
                f"environment {self._name}: {what}{self._leaves[i][0]} has {outside}; mend the environment or its space"
            )

    def _read_array(self, batch: Any) -> Leaves:
        # Every step of every plain space passes here.
        if not isinstance(batch, np.ndarray) or batch.dtype != self._dtype or batch.shape != self._shape:
            raise misfit(self._name, "observation", batch, self._shape, self._dtype)
        return (batch,)

    def _read_tree(self, batch: Any) -> Leaves:
        try:
            observation = self._read(batch)
        except (TypeError, LookupError, ValueError) as error:
            raise self._other_structure("observation", error) from error
        for (path, dtype, shape), leaf in zip(self._leaves, observation, strict=True):
            if not isinstance(leaf, np.ndarray) or leaf.dtype != dtype or leaf.shape != shape:
                raise misfit(self._name, f"observation{path}", leaf, shape, dtype)
        for i in self._texts:
            self._check_text("observation", i, observation[i])
        return observation

    def with_final(self, observation: Leaves, done: NDArray[np.bool_], infos: Mapping[str, Any]) -> Leaves:
        """Put the last observations of the envs that are `done`, from `infos["final_obs"]`, into a copy.

        Raises `EnvError` where one of them is missing, or is not of its space.
        """
        final = infos.get("final_obs")
        given = infos.get("_final_obs", np.full_like(done, final is not None))
        missing = done & ~np.asarray(given, dtype=np.bool_)
        if missing.any():
            raise EnvError(
                f"environment {self._name}: autoreset mode SAME_STEP, but envs {np.flatnonzero(missing).tolist()} "
                "are done without an infos['final_obs'], so their last observations are lost; "
                "give them, or use NEXT_STEP"
            )
        try:
            if isinstance(final, np.ndarray) and final.dtype == object:  # gymnasium's own: an item for each env
                items = [flatten(self._space, final[i]) for i in np.flatnonzero(done).tolist()]
                # As objects where they are strings: numpy's own end at a NUL.
                dtypes = [object if dtype.kind == "O" else None for _, dtype, _ in self._leaves]
                columns = zip(zip(*items, strict=True), dtypes, strict=True)
                last = tuple(np.asarray(column, dtype) for column, dtype in columns)
            else:
                last = tuple(np.asarray(leaf)[done] for leaf in self._read(final))
        except (TypeError, LookupError, ValueError) as error:
            raise self._other_structure("final_obs", error) from error
        return tuple(self._replaced(i, values, last[i], done) for i, values in enumerate(observation))

    def _replaced(self, i: int, values: NDArray[Any], last: NDArray[Any], done: NDArray[np.bool_]) -> NDArray[Any]:
        path, dtype, shape = self._leaves[i]
        whole = values.copy()
        if dtype.kind == "O":
            last = last.astype(object)
            self._check_text("final_obs", i, last)
        elif last.dtype.kind not in "biuf" or (dtype.kind != "f" and cast(last, dtype) is None):
            raise misfit(self._name, f"final_obs{path}", last, (len(last), *shape[1:]), dtype)
        if last.shape[1:] != shape[1:]:
            raise misfit(self._name, f"final_obs{path}", last, (len(last), *shape[1:]), dtype)
        if i in self._bounded:
            self._check_inside("final_obs", i, last)
        # An env's own array may be of a wider dtype than its space: cast, as gymnasium casts observations.
        whole[done] = last
        return whole

    def _check_text(self, what: str, i: int, values: NDArray[Any]) -> None:
        try:
            texts = values.tolist()
            "".join(texts).encode()
        except (TypeError, ValueError) as error:
            raise EnvError(
                f"environment {self._name}: {what}{self._leaves[i][0]} must be strings that can be written as UTF-8: "
                f"{error}; mend the environment or its space"
            ) from error
        longest = max(map(len, texts), default=0)
        if longest > self._most[i]:
            raise EnvError(
                f"environment {self._name}: {what}{self._leaves[i][0]} has {longest} characters, its space has "
                f"{self._most[i]} at most; mend the environment or its space"
            )

    def _other_structure(self, what: str, error: Exception) -> EnvError:
        return EnvError(
            f"environment {self._name}: {what} is not of its space's structure: {told(error)}; "
            "mend the environment or its space"
        )


def misfit(name: str, what: str, value: Any, shape: tuple[int, ...], dtype: object) -> EnvError:
    """Tell that `what` the environment of this name gave is no array of this shape and dtype."""
    if isinstance(value, np.ndarray):
        found = f"shape {value.shape} and dtype {value.dtype}"
    else:
        found = f"a {type(value).__name__}"
    return EnvError(
        f"environment {name}: {what} must be an array of shape {shape} and dtype {dtype}, but is {found}; mend the "
        "environment or its space"
    )


def same_rows(before: Leaves, after: Leaves) -> NDArray[np.bool_]:
    """Tell which rows of two batches of n observations are the same, shape (n,), a NaN being the same as a NaN."""
    rows = [
        ((one == other) | (one != one)).astype(np.bool_).reshape(len(one), -1).all(axis=1)  # noqa: PLR0124 - NaN differs from itself
        for one, other in zip(before, after, strict=True)
    ]
    same: NDArray[np.bool_] = np.logical_and.reduce(rows)
    return same
