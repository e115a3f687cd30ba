"""The arrays that a lane's envs are read from and stepped into, on the heap or in memory that two processes share."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock_producers.envs.infos import InfoBuffer
from penstock_producers.envs.lanes.containment import INFO, RAISED, REWARD, Fault
from penstock_producers.envs.lanes.observations import Observations
from penstock_schemas.columns import Column
from penstock_schemas.spaces import leaves, space_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.spaces import Space

    Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]

_ALIGNMENT = 64
_STEP_PARTS = 5
_BOOL, _INT32, _INT64, _FLOAT64 = (np.dtype(name) for name in ("bool", "int32", "int64", "float64"))


@dataclass(frozen=True)
class Spaces:
    """What is alike in all envs: their spaces, and the columns of the infos that are recorded."""

    observation: Space
    action: Space
    infos: tuple[Column, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Describe them, for another process."""
        infos = [column.to_json() for column in self.infos]
        return {"observation": self.observation.to_json(), "action": self.action.to_json(), "infos": infos}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Spaces:
        """Read what `to_json` described."""
        infos = (Column.from_json(column, overlap=True, nullable=True) for column in described["infos"])
        return cls(space_from_json(described["observation"]), space_from_json(described["action"]), tuple(infos))


def heap(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Make an array of this process's own; strings are None at first."""
    return np.full(shape, None, object) if dtype.kind == "O" else np.zeros(shape, dtype)


class Arena:
    """Lays arrays end to end in one buffer; without a buffer it only measures them. Strings are each process's own."""

    def __init__(self, buffer: Any = None) -> None:
        self._buffer = buffer
        self.size = 0

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Make the next array."""
        if dtype.kind == "O":
            return heap(shape, dtype)
        array: NDArray[Any] = np.ndarray(shape, dtype, self._buffer, self.size if self._buffer else 0)
        self.size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return array


class _Answers:
    """Rows of one kind, one for each env that answered: row k is of the env whose index is `who[k]`."""

    def __init__(self, spaces: Spaces, n: int, allocate: Allocate, *, first: int, check_bounds: bool) -> None:
        self.count = 0
        self.who = allocate((n,), _INT32)
        self._first = first
        # Whose rows were stored last: mostly they are the same again.
        self._written: Sequence[int] | None = None
        self.observation = Observations(spaces.observation, n, allocate, check_bounds=check_bounds)
        self.infos = InfoBuffer(spaces.infos, n, allocate)
        arrays = (*self.observation.leaves, *self.infos.values)
        self.texts = tuple(array for array in arrays if array.dtype.kind == "O")

    def store(self, places: Sequence[int], answers: Sequence[Any]) -> list[tuple[int, Fault]]:
        """Store what the envs at these places answered; tell which answers are wrong, and how."""
        try:
            self._put(0, answers)
        except Exception:  # noqa: BLE001 - told of the env whose answer it is
            return self._store_each(places, answers)
        self._wrote(places)
        return []

    def _store_each(self, places: Sequence[int], answers: Sequence[Any]) -> list[tuple[int, Fault]]:
        """One of them is wrong: alone, each shows whether it is that one."""
        faults: list[tuple[int, Fault]] = []
        right: list[int] = []
        for place, answer in zip(places, answers, strict=True):
            try:
                self._put(len(right), [answer])
            except Fault as fault:
                faults.append((place, fault))
            except Exception as error:  # noqa: BLE001 - an object of the env's own may raise anything when it is read
                faults.append((place, Fault.raised(error, "reading what it gave")))
            else:
                right.append(place)
        self._wrote(right)
        return faults

    def _wrote(self, places: Sequence[int]) -> None:
        self.count = len(places)
        if places != self._written:
            self.who[: len(places)] = places
            self.who[: len(places)] += self._first
            self._written = list(places)

    def _put(self, start: int, answers: Sequence[Any]) -> None:
        raise NotImplementedError

    def _put_infos(self, start: int, infos: Sequence[Any]) -> None:
        if set(map(type, infos)) != {dict}:
            for info in infos:
                if not isinstance(info, dict):
                    raise Fault(INFO, f"the info is no dict but a {type(info).__name__}")
        if self.infos.values:
            for i, info in enumerate(infos, start):
                self.infos.put(i, info)


class Steps(_Answers):
    """What envs answered to `step`."""

    def __init__(self, spaces: Spaces, n: int, allocate: Allocate, *, first: int, check_bounds: bool) -> None:
        super().__init__(spaces, n, allocate, first=first, check_bounds=check_bounds)
        self.reward = allocate((n,), _FLOAT64)
        self.terminated = allocate((n,), _BOOL)
        self.truncated = allocate((n,), _BOOL)

    def done(self) -> list[int]:
        """The places of the envs whose episodes ended, ascending."""
        n = self.count
        terminated, truncated = self.terminated[:n].tolist(), self.truncated[:n].tolist()
        if not (True in terminated or True in truncated) or self._written is None:
            return []
        ends = zip(self._written, terminated, truncated, strict=True)
        return [place for place, ended, cut in ends if ended or cut]

    def _put(self, start: int, answers: Sequence[Any]) -> None:
        try:
            observations, rewards, terminated, truncated, infos = zip(*answers, strict=True)
        except (TypeError, ValueError):
            raise Fault(RAISED, f"step() gave {_shape_of(answers[0])}, no tuple of {_STEP_PARTS}") from None
        self.observation.put(start, observations)
        rows = slice(start, start + len(answers))
        # Each a float, and their sum finite: so are they, and that is known sooner than from an array of them.
        plain = set(map(type, rewards)) == {float} and isfinite(sum(rewards))
        self.reward[rows] = rewards if plain else _rewards(rewards)
        for flags, given in ((self.terminated, terminated), (self.truncated, truncated)):
            flags[rows] = _flags(given)
        self._put_infos(start, infos)


def _flags(given: Sequence[Any]) -> NDArray[Any]:
    try:
        flags = np.array(given)
    except ValueError:  # some are arrays
        flags = np.empty(len(given), object)
    # The truth of a text or of what is not a number is no end of an episode.
    if flags.dtype.kind not in "biu" or flags.ndim != 1:
        raise Fault(RAISED, f"step() gave a {type(given[0]).__name__} where a bool belongs")
    return flags


class Resets(_Answers):
    """What envs answered to `reset`."""

    def __init__(self, spaces: Spaces, n: int, allocate: Allocate, *, first: int, check_bounds: bool) -> None:
        super().__init__(spaces, n, allocate, first=first, check_bounds=check_bounds)
        self.seed = allocate((n,), _INT64)

    def _put(self, start: int, answers: Sequence[Any]) -> None:
        seeds, answers = zip(*answers, strict=True)
        try:
            observations, infos = zip(*answers, strict=True)
        except (TypeError, ValueError):
            raise Fault(RAISED, f"reset() gave {_shape_of(answers[0])}, no tuple of 2") from None
        self.observation.put(start, observations)
        self.seed[start : start + len(answers)] = seeds
        self._put_infos(start, infos)


class Block:
    """All arrays of n envs, the first of which has the index `first`.

    Attributes:
        action: what each env is to do, by its place: an array (n, *shape) for each leaf of the action space.
        episode: the number of each env's next episode, by its place.
        steps: what the envs answered to their actions.
        resets: what they answered to resets.
        has_texts: whether strings are among all that.
    """

    def __init__(
        self, spaces: Spaces, n: int, allocate: Allocate = heap, *, first: int = 0, check_bounds: bool
    ) -> None:
        self._spaces, self._check_bounds = spaces, check_bounds
        self._arrays: list[NDArray[Any]] = []

        def noted(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
            self._arrays.append(allocate(shape, dtype))
            return self._arrays[-1]

        self.action = tuple(noted((n, *leaf.space.shape), leaf.space.dtype) for leaf in leaves(spaces.action))
        self.episode = noted((n,), _INT64)
        self.steps = Steps(spaces, n, noted, first=first, check_bounds=check_bounds)
        self.resets = Resets(spaces, n, noted, first=first, check_bounds=check_bounds)
        self.has_texts = any(array.dtype.kind == "O" for array in self._arrays)

    def part(self, start: int, stop: int) -> Block:
        """View the rows `start … stop - 1`, those of the envs of one lane."""
        arrays = iter(self._arrays)
        return Block(
            self._spaces,
            stop - start,
            lambda _shape, _dtype: next(arrays)[start:stop],
            first=start,
            check_bounds=self._check_bounds,
        )


def share(spaces: Spaces, num_envs: int, memory: int, *, check_bounds: bool) -> Block:
    """Lay a block of all envs out in memory that processes share, a file descriptor, which is made large enough."""
    measured = Arena()
    Block(spaces, num_envs, measured, check_bounds=check_bounds)
    size = max(measured.size, mmap.PAGESIZE)
    os.ftruncate(memory, size)
    return Block(spaces, num_envs, Arena(mmap.mmap(memory, size)), check_bounds=check_bounds)


def _rewards(rewards: Sequence[Any]) -> NDArray[Any]:
    try:
        array = np.array(rewards)
    except ValueError:  # of unequal shapes
        array = np.empty((), object)
    if array.shape == (len(rewards),) and array.dtype.kind in "fiub":
        if np.isfinite(array).all():
            return array
        raise Fault(REWARD, f"the reward is not finite: {rewards[0]}")
    raise Fault(REWARD, f"the reward is no number but a {type(rewards[0]).__name__}: {rewards[0]!r}")


def _shape_of(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
