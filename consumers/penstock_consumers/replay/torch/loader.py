"""Batches from other processes, several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock_consumers.replay.torch.tensors import mapped
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock_consumers.replay.torch.dataset import ReplayDataset

# Batches are handed over together up to so many bytes. Handing over costs as much for many small ones as for one.
_TOGETHER_BYTES = 1 << 18
# What was drawn by the time that a snapshot changes is of the one before: it is not to be very much.
_TOGETHER = 16


class ReplayLoader(DataLoader[Any]):
    """A `DataLoader` for a `ReplayDataset`, whose workers hand over small batches several at a time.

    A learner's process pays for each time that a worker hands something over, more than drawing a small batch would
    cost it. The batches of each worker are those that it gives to a `DataLoader` with `batch_size=None`; only where
    there are several workers, several batches of one come before those of the next.

    Args:
        dataset: what to read.
        **settings: any of `DataLoader`'s that are not about making batches or ordering them: `num_workers`,
            `pin_memory`, `multiprocessing_context`, `prefetch_factor` (in hand-overs), ….

    Raises:
        SettingsError: a setting is about making batches.
    """

    def __init__(self, dataset: ReplayDataset, **settings: Any) -> None:
        of_batches = sorted({"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & set(settings))
        if of_batches:
            raise SettingsError(f"{', '.join(of_batches)}: the dataset makes the batches: give batch_size to it")
        super().__init__(_Together(dataset), batch_size=None, **settings)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a class of its own
        batches: Iterable[list[Any]] = super().__iter__()
        return (batch for together in batches for batch in together)


class _Together(IterableDataset[Any]):
    """Lists of a dataset's batches."""

    def __init__(self, dataset: ReplayDataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[list[Any]]:
        most = _TOGETHER if get_worker_info() else 1
        together, size = [], 0
        try:
            for batch in self._dataset:
                together.append(batch)
                size += _bytes(batch)
                # One more like these would be too much.
                if len(together) == most or size + size // len(together) > _TOGETHER_BYTES:
                    yield together
                    together, size = [], 0
        except Exception:
            # What was drawn before it is given before it.
            if together:
                yield together
            raise
        if together:
            yield together


def _bytes(batch: Any) -> int:
    sizes: list[int] = []
    mapped(lambda tensor: sizes.append(tensor.nbytes), batch)
    return sum(sizes)
