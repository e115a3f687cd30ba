"""Views of a store as a dataset of torch's."""

from __future__ import annotations

import inspect
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from penstock_consumers.replay.arguments import condition, number, whole
from penstock_consumers.replay.replay import Replay
from penstock_consumers.replay.torch.share import Share
from penstock_consumers.replay.torch.shipped import Shipped
from penstock_consumers.replay.torch.tensors import tensors
from penstock_consumers.store.bucket import is_remote, open_bucket
from penstock_consumers.store.cache import Cache
from penstock_schemas.errors import SettingsError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A forked process has a copy of this, a spawned one its own.
_PROCESS = os.getpid()

_LOG = logging.getLogger(__name__)

_DRAWN = ("transitions", "sequences")
_READ_ONCE = ("scan", "episodes")
_VIEWS = (*_DRAWN, *_READ_ONCE)


class ReplayDataset(IterableDataset[Any]):
    """A view of a store, as tensors, in any number of `DataLoader` workers and on any number of ranks.

    For a `ReplayLoader`, or a `DataLoader` with `batch_size=None`: batches come ready, and without it torch makes
    batches of one batch, each tensor (1, B, …).

    Each batch is what the view of `Replay` gives, with tensors in place of arrays, as `tensors` makes them; where a
    space is a Tuple, a `DataLoader` makes a list of it. What is kept and travels to workers are the arguments; the
    store is opened where it is read, whenever this is iterated over.

    `transitions` and `sequences` have no end, and an error ends nothing: the next batch is drawn anew. Each worker of
    each rank draws by itself, from a seed of its own: their draws are independent, and one seed gives one order for a
    given number of workers and ranks. `scan` and `episodes` are divided among them: each reads a stretch of the store
    of about as many steps, all together everything once.

    Args:
        store: a folder, or any URL that obstore opens.
        view: which method of `Replay`.
        snapshot: the name of one, or its commits, as `Replay.open` takes them; the newest where there is none. Where
            `scan` and `episodes` are divided among workers, it is the newest when this was made; over ranks, it must be
            given.
        cache: where segments of an object store are kept on this machine; in the user's own folder by default.
        verify: hold each segment against its checksum when it is opened.
        refresh_seconds: go on to the newest snapshot between two batches, where the last time is so long ago; in each
            worker by itself. Never by default.
        seed: of `transitions` and `sequences`: the same draws whenever this is iterated over, also after a restart.
            None, the default here, takes it from torch's own generator, as a `DataLoader` seeds its workers: other
            draws each time, the same ones again after `torch.manual_seed`, but not from workers that persist, which are
            seeded when they start. The methods of `Replay` have 0 as their default: the same draws each time.
        rank: of this process among `world_size`; those of `torch.distributed` by default, where it is initialized.
        world_size: how many processes read.
        **arguments: those of the view, such as `batch_size`, `where` or `connectors`.

    Raises:
        SettingsError: one of these makes no sense.
        StoreError: there is no store, where `scan` and `episodes` look for the newest snapshot.
    """

    def __init__(
        self,
        store: str | Path,
        view: Literal["transitions", "sequences", "scan", "episodes"] = "transitions",
        *,
        snapshot: str | Mapping[int, int] | None = None,
        cache: Cache | None = None,
        verify: bool = False,
        refresh_seconds: float | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if view not in _VIEWS:
            raise SettingsError(f"view {view!r}: there are {', '.join(_VIEWS)}")
        # What is given may be of any type, whatever is declared.
        if not isinstance(store, str | Path):
            raise SettingsError(f"store {store!r}: a folder or a URL, for each worker opens the store by itself")
        if not isinstance(cache, Cache | None):
            raise SettingsError(f"cache {cache!r}: a Cache, as in cache=Cache(folder, max_bytes)")
        _check_arguments(view, arguments)
        condition(arguments.get("where"))
        self._store = str(store)
        self._view = view
        self._snapshot: str | Mapping[int, int] | None = snapshot
        # A cache knows what its process has mapped: workers make their own, of the same folder.
        self._cache = None if cache is None else (cache.folder, cache.max_bytes)
        self._verify = verify
        self._refresh_seconds = refresh_seconds
        self._seed = None if seed is None else whole("seed", seed, 0, "a seed is at least 0")
        self._rank, self._world_size = _place(rank, world_size)
        self._arguments = arguments
        if refresh_seconds is not None:
            self._check_refresh(refresh_seconds)
        if view in _READ_ONCE:
            if seed is not None:
                raise SettingsError(f"seed {seed}: {view} draws nothing")
            if snapshot is None:
                self._snapshot = self._newest()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, of = (worker.id, worker.num_workers) if worker else (0, 1)
        if worker and _learns(self._arguments.get("choose")):
            raise SettingsError(
                f"choose {self._arguments['choose']}: new priorities do not reach a worker's process: "
                "use num_workers=0, and Prefetch or to_device to draw ahead"
            )
        batches = self._drawn(number) if self._view in _DRAWN else self._shared(number, of)
        # An error ends a generator; what has no end is none, and nor are these.
        given = map(tensors, batches)
        return map(Shipped, given) if worker else given

    def _drawn(self, worker: int) -> Iterator[Any]:
        replay = self._open()
        # In a worker, torch's generator has a seed that the loader drew when it started it.
        seed = int(torch.randint(2**63 - 1, ())) if self._seed is None else self._seed
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(self._rank, worker)))
        batches = getattr(replay, self._view)(seed=rng, **self._arguments)
        return batches if self._refresh_seconds is None else _Refreshing(replay, batches, self._refresh_seconds)

    def _shared(self, worker: int, workers: int) -> Iterator[Any]:
        replay = self._open()
        where = condition(self._arguments.get("where"))
        share = Share.of_where(where, self._rank * workers + worker, self._world_size * workers)
        batches: Iterator[Any] = getattr(replay, self._view)(**{**self._arguments, "where": share})
        return batches

    def _open(self) -> Replay:
        bucket = open_bucket(self._store)
        if os.getpid() != _PROCESS and is_remote(bucket):
            # It would wait for ever for threads that were not forked with it.
            raise SettingsError(
                f"store {bucket.url}: the client of an object store does not survive a fork: "
                'give the DataLoader multiprocessing_context="spawn"'
            )
        cache = None if self._cache is None else Cache(*self._cache)
        return Replay(bucket, self._snapshot, cache=cache, verify=self._verify)

    def _check_refresh(self, seconds: float) -> None:
        # NaN would never pass.
        if not number("refresh_seconds", seconds) >= 0.0:
            raise SettingsError(f"refresh_seconds {seconds}: 0 or more")
        if self._view in _READ_ONCE:
            raise SettingsError(f"refresh_seconds {seconds}: {self._view} reads one snapshot")
        if self._snapshot is not None:
            raise SettingsError(
                f"refresh_seconds {seconds}: snapshot {self._snapshot!r} was asked for and stays as it is"
            )

    def _newest(self) -> dict[int, int]:
        if self._world_size > 1:
            raise SettingsError(
                f"{self._view} over {self._world_size} ranks: each would read another snapshot: give them one "
                "as snapshot=, by its name (`Replay.name`) or by its commits (`Replay.snapshot`)"
            )
        return Replay.open(self._store).snapshot


def _check_arguments(view: str, arguments: dict[str, Any]) -> None:
    """Raise `SettingsError` unless a view takes these."""
    known = [name for name in inspect.signature(getattr(Replay, view)).parameters if name not in {"self", "seed"}]
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise SettingsError(f"arguments {unknown}: {view} takes {', '.join(known)}")


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Find this process among those that read."""
    if rank is None and world_size is None:
        together = distributed.is_available() and distributed.is_initialized()
        return (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
    if rank is None or world_size is None:
        raise SettingsError(f"rank {rank} of world_size {world_size}: give both")
    rank = whole("rank", rank, 0, "ranks begin at 0")
    world_size = whole("world_size", world_size, 1, "at least one process reads")
    if rank >= world_size:
        raise SettingsError(f"rank {rank} of world_size {world_size}: ranks end at world_size - 1")
    return rank, world_size


def _learns(chooser: Any) -> bool:
    """Whether a chooser, or one that is mixed in it, is told things while it chooses."""
    return hasattr(chooser, "update") or any(_learns(part) for part, _ in getattr(chooser, "parts", ()))


class _Refreshing:
    """Batches of a reader that goes on to the newest snapshot between two of them; an error ends nothing."""

    def __init__(self, replay: Replay, batches: Iterator[Any], seconds: float) -> None:
        self._replay = replay
        self._batches = batches
        self._seconds = seconds
        self._refreshed: float | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._refreshed is None:
            # The first is of what was just opened.
            self._refreshed = time.monotonic()
        elif time.monotonic() - self._refreshed >= self._seconds:
            self._refresh()
        return next(self._batches)

    def _refresh(self) -> None:
        try:
            self._replay.refresh()
        except StoreUnavailableError as error:
            # What it has is readable, or says itself that it is not.
            _LOG.warning("no newer snapshot, and on with the last one: %s", error)
        finally:
            self._refreshed = time.monotonic()
