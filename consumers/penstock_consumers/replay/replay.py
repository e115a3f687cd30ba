"""The reader of a store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.replay import episodes, snapshot, transitions
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_consumers.replay.episodes import Episode
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.transitions import Batch
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec


def _a_second() -> bool:
    time.sleep(1.0)
    return True


class Replay:
    """Reads a store at a snapshot: the newest commit of each partition when it was opened, or last refreshed.

    A snapshot does not change and is whole: what a consumer writes meanwhile is not seen before `refresh`. All its
    segments are open: mapped where the store is a folder, in memory where it is not. So it stays readable though
    they are deleted from the store.
    """

    def __init__(self, bucket: Bucket, named: str | None = None) -> None:
        self._bucket = bucket
        self._named = named
        self._spec = snapshot.existing(bucket).spec
        self._snapshot = (
            snapshot.take(bucket, self._spec) if named is None else snapshot.named(bucket, self._spec, named)
        )

    @classmethod
    def open(cls, store: str | Path | Bucket, *, snapshot: str | None = None) -> Replay:
        """Open a store at its newest snapshot, or at a named one: a folder, any URL that obstore opens, or a bucket.

        Raises `StoreError` where there is no store or no such snapshot, or where it changes faster than it opens;
        `StoreFormatError` where another version wrote it; `CorruptStoreError` where its objects contradict each other.
        """
        return cls(open_bucket(store) if isinstance(store, str | Path) else store, snapshot)

    @property
    def spec(self) -> StreamSpec:
        """What the store is of: the spaces, the columns, the environment and the policy."""
        return self._spec

    @property
    def snapshot(self) -> dict[int, int]:
        """The commit number of each partition."""
        return self._snapshot.numbers

    @property
    def steps(self) -> int:
        """How many steps the snapshot holds."""
        return int(self._snapshot.first_step[-1])

    @property
    def episodes_stored(self) -> int:
        """How many episodes the snapshot holds, aborted ones and parts of cut ones included."""
        return int(self._snapshot.first_episode[-1])

    def refresh(self) -> bool:
        """Go on to the newest snapshot; tell whether there was a newer one. A named snapshot stays as it is.

        `episodes()` in progress stay at their snapshot; `transitions()` in progress go on to the new one as soon as
        the block that they have drawn is used up.
        """
        if self._named is not None:
            return False
        before, self._snapshot = self._snapshot, snapshot.take(self._bucket, self._spec, self._snapshot)
        return self._snapshot is not before

    def episodes(self) -> Iterator[Episode]:
        """Give every episode of the snapshot once, partition by partition, in the order in which they ended.

        Of those that one commit stored, the order is the snapshot's.
        """
        return episodes.stored_in(self._snapshot, self._spec)

    def episode(self, name: str) -> Episode:
        """Find one episode by its `Episode.id`: producer/incarnation/env/episode.

        Raises `StoreError` where the snapshot holds none of that id.
        """
        found = episodes.named(self._snapshot, self._spec, name)
        if found is None:
            raise StoreError(
                f"store {self._bucket.url}: no episode {name!r} in it (commits read, by partition: {self.snapshot}): "
                "an id is producer/incarnation/env/episode, as `Episode.id` has it"
            )
        return found

    def follow(self, wait: Callable[[], bool] = _a_second) -> Iterator[Episode]:
        """Give every episode that is stored from now on once, refreshing as commits come.

        From now on means: after the snapshot at this call, so that `episodes()` and then `follow()` give everything
        once. Whenever there is nothing new, `wait` is called and decides: True to look again, False to end. It
        waits a second by default; `lambda: not stop.wait(1.0)` makes a `threading.Event` end it. At a named snapshot
        there never is anything new.
        """
        return self._follow(self._snapshot, wait)

    def transitions(self, batch_size: int = 256, *, seed: int | np.random.Generator = 0) -> Iterator[Batch]:
        """Draw batches of steps without end, uniformly over the steps of the snapshot, with replacement.

        A batch maps names to arrays, one item a transition, in the dtypes of the spaces: `observation`, `action`,
        `reward`, `next_observation` (the one that the environment really answered, also where the episode ended),
        `terminated` and `truncated` (bool; true only on a last step, and neither where an episode was aborted or
        cut: bootstrap unless terminated), the policy's extras, the recorded infos as masked arrays, `info.<key>` (with
        the observation acted on) and `next_info.<key>` (with the next), `policy_version` (int64, that which chose the
        action) and `episode` (int64, its place in the order of `episodes()`). Where a space is a Dict or Tuple,
        observations and actions are dicts or tuples of such arrays; text is an object array of str. Equal seeds give
        equal batches on equal snapshots. A batch is the caller's own.

        Raises `SettingsError` where `batch_size` is below 1, `StoreError` where the snapshot holds no step.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size {batch_size}: a batch has at least one transition")
        self._not_empty()
        return transitions.uniform(self._not_empty, self._spec, batch_size, np.random.default_rng(seed))

    def _follow(self, before: Snapshot, wait: Callable[[], bool]) -> Iterator[Episode]:
        while True:
            self.refresh()
            now = self._snapshot
            if now is not before:
                yield from episodes.stored_since(before, now, self._spec)
                before = now
            elif not wait():
                return

    def _not_empty(self) -> Snapshot:
        if not self.steps:
            raise StoreError(
                f"store {self._bucket.url}: no steps in it yet (commits read, by partition: {self.snapshot}): "
                "wait until a consumer has stored an episode, then refresh()"
            )
        return self._snapshot
