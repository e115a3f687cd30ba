"""Batches from other processes, several at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock_consumers.replay.torch.tensors import mapped
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.replay.torch.dataset import ReplayDataset

# Batches are handed over together up to so many bytes. Handing over costs as much for many small ones as for one.
_TOGETHER_BYTES = 1 << 20
# What was drawn by the time that a snapshot changes is of the one before: it is not to be very much.
_TOGETHER = 32

_OF_BATCHES = {
    "batch_size": None,
    "shuffle": False,
    "sampler": None,
    "batch_sampler": None,
    "drop_last": False,
    "collate_fn": None,
}


class ReplayLoader(DataLoader[Any]):
    """A `DataLoader` for a `ReplayDataset`, whose workers hand over small batches several at a time.

    A learner's process pays for each time that a worker hands something over, more than drawing a small batch would
    cost it. The batches of each worker are those that it gives to a `DataLoader` with `batch_size=None`; only where
    there are several workers, several batches of one come before those of the next. To torch, and so to a
    `worker_init_fn`, the dataset is one of lists of batches.

    Args:
        dataset: what to read.
        **settings: any of `DataLoader`'s that do not make batches or order them: `num_workers`, `pin_memory`,
            `multiprocessing_context`, `prefetch_factor` (in hand-overs), ….

    Raises:
        SettingsError: a setting is about making batches.
    """

    def __init__(self, dataset: ReplayDataset, **settings: Any) -> None:
        of_batches = {name: settings.pop(name, default) for name, default in _OF_BATCHES.items()}
        wrong = [name for name, given in of_batches.items() if given is not None and given is not _OF_BATCHES[name]]
        if wrong:
            raise SettingsError(f"{', '.join(wrong)}: the dataset makes the batches: give batch_size to it")
        super().__init__(_Together(dataset), batch_size=None, **settings)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a class of its own
        return _OneByOne(super().__iter__())


class _OneByOne:
    """The batches of lists; an error of one list ends none of those behind it."""

    def __init__(self, lists: Iterator[list[Any]]) -> None:
        self._lists = lists
        self._ready: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._ready:
            self._ready.extend(next(self._lists))
        # Not held here while the learner has it, nor while the next ones are waited for.
        return self._ready.popleft()


class _Together(IterableDataset[Any]):
    """Lists of a dataset's batches; without workers, of one each, since nothing is handed over."""

    def __init__(self, dataset: ReplayDataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[list[Any]]:
        return _Lists(iter(self._dataset), _TOGETHER if get_worker_info() else 1)


class _Lists:
    """Lists of batches, as long as the size of the batches allows; what is drawn before an error comes before it."""

    def __init__(self, batches: Iterator[Any], most: int) -> None:
        self._batches = batches
        self._most = most
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        if self._error:
            error, self._error = self._error, None
            raise error
        together: list[Any] = []
        size = 0
        # Until one more like these would be too much.
        while not together or (len(together) < self._most and size + size // len(together) <= _TOGETHER_BYTES):
            try:
                batch = next(self._batches)
            except Exception as error:
                if not together:
                    raise
                self._error = error
                break
            together.append(batch)
            size += _bytes(batch)
        return together


def _bytes(batch: Any) -> int:
    """About what a batch takes on its way."""
    sizes: list[int] = []
    mapped(lambda tensor: sizes.append(tensor.nbytes), batch)
    mapped(lambda texts: sizes.append(sum(len(text) for text in texts.ravel() if text)), batch, np.ndarray)
    return sum(sizes)
