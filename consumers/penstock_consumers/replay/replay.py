"""The reader of a store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_consumers.progress import Progress, bar, watched
from penstock_consumers.replay import arguments, episodes, snapshot
from penstock_consumers.replay.blocks import Batches
from penstock_consumers.replay.choosing import Uniform
from penstock_consumers.replay.choosing.chooser import chooser
from penstock_consumers.replay.scan import scan
from penstock_consumers.replay.seen import Lens
from penstock_consumers.replay.sequences import Sequences
from penstock_consumers.replay.transitions import Transitions
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import numpy as np

    from penstock_consumers.replay.blocks import Batch, View
    from penstock_consumers.replay.choosing import Chooser
    from penstock_consumers.replay.episodes import Episode
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.replay.where import Where
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.cache import Cache
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.stream import StreamSpec


def _a_second() -> bool:
    time.sleep(1.0)
    return True


class _Later(Progress):
    """Counts for a bar that is shown from when the first batch is asked for."""

    def __init__(self) -> None:
        self.shown = Progress()

    def expect(self, count: int) -> None:
        self.shown.expect(count)

    def advance(self, count: int) -> None:
        self.shown.advance(count)


def _shown(scanned: Iterator[Batch], progress: _Later) -> Iterator[Batch]:
    with bar("scan", shown=True) as progress.shown:
        yield from scanned


class Replay:
    """Reads a store at a snapshot: the newest commit of each partition when it was opened, or last refreshed.

    A snapshot does not change and is whole: what a consumer writes meanwhile is not seen before `refresh`. A segment
    is opened when it is first read: mapped where the store is a folder, through a `Cache` where it is an object store.
    What is open stays readable though it is deleted from the store; what is not may be collected `--collect-seconds`
    after it was joined or retired, unless the snapshot has a name.
    """

    def __init__(
        self,
        bucket: Bucket,
        at: str | Mapping[int, int] | None = None,
        *,
        cache: Cache | None = None,
        verify: bool = False,
    ) -> None:
        self._bucket = bucket
        self._stays = at is not None
        self._spec = snapshot.existing(bucket).spec
        if at is None:
            self._snapshot = snapshot.take(bucket, self._spec, cache=cache, verify=verify)
        elif isinstance(at, str):
            self._snapshot = snapshot.named(bucket, self._spec, at, cache=cache, verify=verify)
        else:
            self._snapshot = snapshot.numbered(bucket, self._spec, at, cache=cache, verify=verify)

    @classmethod
    def open(
        cls,
        store: str | Path | Bucket,
        *,
        snapshot: str | Mapping[int, int] | None = None,
        cache: Cache | None = None,
        verify: bool = False,
    ) -> Replay:
        """Open a store at its newest snapshot, or at one that is given, where it stays.

        Args:
            store: a folder, any URL that obstore opens, or a bucket.
            snapshot: the name of one, as `name` or `penstock-store snapshot` gave it; or the commits of one, by
                partition, as `snapshot` of another reader has them, for as long as nothing that it holds is collected.
            cache: where segments of an object store are kept on this machine; in the user's own folder by default.
            verify: hold each segment against its checksum when it is opened, which reads all of it.

        Raises:
            SettingsError: an argument makes no sense.
            StoreError: there is no store, or no such snapshot or commit, or it changes faster than it opens.
            StoreFormatError: another version of Penstock wrote it.
            CorruptStoreError: its objects contradict each other.
        """
        # What is given may be of any type, whatever is declared.
        if not (isinstance(store, str | Path) or callable(getattr(store, "read", None))):
            raise SettingsError(f"store {store!r}: a folder, a URL or a bucket")
        bucket = open_bucket(store) if isinstance(store, str | Path) else store
        return cls(bucket, snapshot, cache=cache, verify=verify)

    def __repr__(self) -> str:
        held = f"steps={self.steps}, episodes={self.episodes_stored}, snapshot={self.snapshot}"
        return f"Replay({self._bucket.url!r}, {held})"

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
    def steps_ever(self) -> int:
        """How many steps were stored until this snapshot, with those that retention has removed since."""
        retired = sum(at.commit.retired.steps for at in self._snapshot.partitions.values())
        return self.steps + retired

    @property
    def episodes_stored(self) -> int:
        """How many episodes the snapshot holds, aborted ones and parts of cut ones included."""
        return int(self._snapshot.first_episode[-1])

    def refresh(self) -> bool:
        """Go on to the newest snapshot; tell whether there was a newer one. One that was asked for stays.

        `episodes()` and `scan()` in progress stay at their snapshot; `transitions()` and `sequences()` in progress draw
        their next batch from the new one. Raises `StoreError` where the store was deleted and begun anew meanwhile.
        """
        if self._stays:
            return False
        before, self._snapshot = self._snapshot, snapshot.take(self._bucket, self._spec, self._snapshot)
        return self._snapshot is not before

    def files(self) -> list[str]:
        """Name the Arrow files of the snapshot's segments, for other tools.

        They are paths where the store is a folder, else URLs, in the order of `episodes()`. Beside them lie files that
        no commit names any more, or none names yet: who reads all there are reads episodes twice. They stay as long as
        a segment that is not open.
        """
        root = self._bucket.url.rstrip("/")
        return [f"{root}/{entry.name}" for entry in self._snapshot.entries]

    def name(self, name: str) -> None:
        """Give this snapshot a name, under which it can be opened again and stays readable until that is removed.

        Equal seeds give equal batches then, whatever has become of the store. Raises `StoreError` where the name is
        taken or is none, or where something that the snapshot holds was joined or retired already.
        """
        self._snapshot.hold(name)

    def episodes(
        self,
        *,
        where: Where | None = None,
        columns: Collection[str] | None = None,
        connectors: Pipeline | bool | None = None,
        progress: bool = False,
    ) -> Iterator[Episode]:
        """Give every episode of the snapshot once, partition by partition, in the order in which they ended.

        Of those that one commit stored, the order is the snapshot's.

        Args:
            where: those of which every step fulfils this; all by default.
            columns: which of `observation`, `action`, `reward`, the extras, `info.<key>`, `state.<name>` and
                `metric.<name>` are wanted; all by default. What an episode always has may be named as well.
            connectors: which show the observations, as in `transitions`.
            progress: show a bar on stderr.

        Raises:
            SettingsError: `where` or `columns` make no sense.
            StoreError: with the first episode, where none fulfils `where`, or none of those can be shown.
        """
        lens = Lens.of(connectors, self._spec, self._bucket)
        where = arguments.condition(where)
        found = episodes.stored_in(self._snapshot, self._spec, where, columns, lens)
        if not progress:
            return found
        condition = where.at(self._snapshot)
        steps = sum(entry.steps for entry in self._snapshot.entries if condition.may_hold(entry))
        return watched(found, lambda episode: episode.length, steps, "episodes")

    def episode(self, name: str, *, connectors: Pipeline | bool | None = None) -> Episode:
        """Find one episode by its `Episode.id`: producer/incarnation/env/episode.

        Args:
            name: the id.
            connectors: which show its observations, as in `transitions`.

        Raises:
            SettingsError: `name` is no text, or `connectors` make no sense.
            StoreError: the snapshot holds none of that id; or the episode continues another one, and the snapshot does
                not hold the steps before it that the connectors look back at; or a version that acted is not stored.
            CorruptStoreError: a version that acted is not what its name says.
        """
        # What is given may be of any type, whatever is declared.
        if not isinstance(name, str):
            raise SettingsError(f"name {name!r}: an episode's id, as `Episode.id` has it")
        found = episodes.named(self._snapshot, self._spec, name, Lens.of(connectors, self._spec, self._bucket))
        if found is None:
            raise StoreError(
                f"store {self._bucket.url}: no episode {name!r} in it (commits read, by partition: {self.snapshot}): "
                "an id is producer/incarnation/env/episode, as `Episode.id` has it"
            )
        return found

    def follow(
        self,
        wait: Callable[[], bool] = _a_second,
        *,
        where: Where | None = None,
        columns: Collection[str] | None = None,
        connectors: Pipeline | bool | None = None,
    ) -> Iterator[Episode]:
        """Give every episode that is stored from now on once, refreshing as commits come.

        From now on means: after the snapshot at this call, so that `episodes()` and then `follow()` give everything
        once. Whenever there is nothing new, `wait` is called and decides: True to look again, False to end. It
        waits a second by default; `lambda: not stop.wait(1.0)` makes a `threading.Event` end it. At a snapshot
        that was asked for there never is anything new. `where`, `columns` and `connectors` are those of `episodes`.
        """
        where = arguments.condition(where)
        return self._follow(self._snapshot, wait, where, columns, Lens.of(connectors, self._spec, self._bucket))

    def scan(
        self,
        batch_size: int | None = None,
        *,
        where: Where | None = None,
        columns: Collection[str] | None = None,
        connectors: Pipeline | bool | None = None,
        progress: bool = False,
    ) -> Iterator[Batch]:
        """Give every step of the snapshot once, partition by partition, in the order in which they lie.

        Args:
            batch_size: steps in a batch, of which the last may be shorter; 65,536 by default, fewer where steps are
                large.
            where: which steps; all by default.
            columns: as in `transitions`, of which a batch has the names.
            connectors: which show the observations, as in `transitions`.
            progress: show a bar on stderr.

        Raises:
            SettingsError: an argument makes no sense.
            StoreError: with the first batch, where no step fulfils `where`, or none of those can be shown.
        """
        lens = Lens.of(connectors, self._spec, self._bucket)
        where = arguments.condition(where)
        later = _Later() if progress else None
        scanned = scan(
            self._snapshot, self._spec, where, batch_size=batch_size, columns=columns, lens=lens, progress=later
        )
        return _shown(scanned, later) if later else scanned

    def transitions(
        self,
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        choose: Chooser | None = None,
        where: Where | None = None,
        columns: Collection[str] | None = None,
        connectors: Pipeline | bool | None = None,
        seed: int | np.random.Generator = 0,
    ) -> Iterator[Batch]:
        """Draw batches of steps without end, with replacement; uniformly over the steps by default.

        A batch maps names to arrays, one item a transition, in the dtypes of the spaces. Where a space is a Dict or
        Tuple, observations and actions are dicts or tuples of arrays; text is an object array of str.

        - `observation`, `action`: what the policy acted on, and what it drew. The policy's extras stand beside them by
          their names, `action_sent` among them where the action that was sent differs.
        - `reward`: the sum of `n_step` rewards, each later one discounted by `gamma` once more; of fewer where the
          episode ends before.
        - `discount`: what the value of `next_observation` counts, float32: `gamma` to the power of how many rewards
          were summed, 0 where the env terminated. Where an episode was truncated, aborted or cut, it goes on being
          worth something.
        - `next_observation`: the one that the environment answered to the last of those steps, also where the episode
          ended.
        - `terminated`, `truncated`: whether that last step ended the episode so, bool.
        - `info.<key>`, `next_info.<key>`: the recorded infos, masks of actions among them, that came with the
          observation and with the next one; masked arrays.
        - `policy_version`, which chose the action; `episode`, its place in the order of `episodes()`; `step`, the
          step's place in it: int64.
        - only where `columns` asks for it, `id`: the episode's `Episode.id`, an object array.

        Args:
            batch_size: transitions in a batch.
            n_step: rewards that are summed.
            gamma: the discount of a step.
            choose: the distribution; see `penstock_consumers.replay.choosing`.
            where: which steps there are to draw from; all by default.
            columns: the names that are wanted: what is not, is not read. All by default.
            connectors: what observations are given: as they are stored by default; True for what the policy saw, by
                the stream's own connectors with the parameters of the version that acted; or what `make_pipeline`
                made, to show all of them with its parameters. Batches have the structure of its space then, and
                episodes that continue others are left out where the steps before them are not in the store.
            seed: equal seeds give equal batches on equal snapshots; 0 by default, so that a learner that is restarted
                draws in the same order again.

        Returns:
            Batches; each is the caller's own. A refreshed snapshot is drawn from with the next one.

        Raises:
            SettingsError: an argument makes no sense.
            StoreError: there is no such step.
        """
        lens = Lens.of(connectors, self._spec, self._bucket)
        where = arguments.condition(where)
        view = Transitions(self._spec, where, n_step=n_step, gamma=gamma, columns=columns, lens=lens)
        return self._drawn(view, choose, batch_size, seed)

    def sequences(
        self,
        batch_size: int = 64,
        length: int = 32,
        *,
        burn_in: int = 0,
        overlap: int = 0,
        packed: bool = False,
        choose: Chooser | None = None,
        where: Where | None = None,
        columns: Collection[str] | None = None,
        connectors: Pipeline | bool | None = None,
        seed: int | np.random.Generator = 0,
    ) -> Iterator[Batch]:
        """Draw batches of sequences without end, with replacement; uniformly over the sequences by default.

        A sequence is a window of `length` steps of one episode; windows begin every `length - overlap` steps, from the
        first step of each stretch of steps that fulfils `where`, and the last of a stretch may be shorter. Up to
        `burn_in` steps before it come with it, as many as the episode has there: they are context, whether or not they
        fulfil `where`. So a sequence has T <= `burn_in + length` steps: those of burn-in, then those to learn from.
        Padding follows up to `burn_in + length`: zeros, False, empty text, masked items.

        A batch maps names to arrays (B, `burn_in + length`, …), in the dtypes and structures of `transitions`:

        - `action`, `reward`, the policy's extras; `observation` has one more along the second axis, so that T + 1 are
          there, the last being the one that the environment answered to the last step, also where the episode ended.
          `info.<key>` likewise; masked arrays.
        - `terminated`, `truncated`: True at the step that ended the episode so.
        - `mask`: the steps to learn from. `valid`: those and the ones of burn-in; what is not valid is padding.
        - `policy_version`, which chose each action.
        - `episode`, its place in the order of `episodes()`, and `step`, the place in it of the first step that is
          given, burn-in included: int64, shape (B,); where `columns` asks for it, `id`: the episode's `Episode.id`.
        - `state.<name>`, shape (B, …), where the policy is recurrent: its state before the first step that is given.

        States are stored where chunks begin. Without burn-in, the sequences of a recurrent policy are therefore its
        chunks, and `overlap` has no effect; with it, windows are laid as ever, and each is burnt in from the earliest
        chunk that begins within `burn_in` steps before it. Where `columns` leaves the states out, sequences begin
        anywhere, as those of other policies do.

        Where `packed`, there is no padding: `observation` and the infos are arrays (sum of T + 1, …), what is of each
        step is (sum of T, …), one sequence after the other. In place of `valid`, `lengths` are their T and `burn_in`
        how many of those are burn-in: int64, shape (B,).

        Args:
            batch_size: sequences in a batch.
            length: steps to learn from, at most; it may be longer than any episode.
            burn_in: steps before them, at most.
            overlap: how many steps a window has in common with the next, less than `length`.
            packed: whether sequences are given end to end.
            choose: the distribution over the windows; see `penstock_consumers.replay.choosing`.
            where: which steps are covered; all by default.
            columns: the names that are wanted: what is not, is not read. All by default.
            connectors: what observations are given: as they are stored by default; True for what the policy saw, by
                the stream's own connectors with the parameters of the version that acted; or what `make_pipeline`
                made. As in `transitions`; over burn-in too.
            seed: equal seeds give equal batches on equal snapshots; 0 by default, so that a learner that is restarted
                draws in the same order again.

        Returns:
            Batches; each is the caller's own. A refreshed snapshot is drawn from with the next one.

        Raises:
            SettingsError: an argument makes no sense; or a sequence has no stored state near enough, with the length
                or the burn-in that would do. The latter too with the first batch of a refreshed snapshot.
            StoreError: there is no such step.
        """
        view = Sequences(
            self._spec,
            arguments.condition(where),
            length=length,
            burn_in=burn_in,
            overlap=overlap,
            packed=packed,
            columns=columns,
            lens=Lens.of(connectors, self._spec, self._bucket),
        )
        return self._drawn(view, choose, batch_size, seed)

    def _follow(
        self,
        before: Snapshot,
        wait: Callable[[], bool],
        where: Where | None,
        columns: Collection[str] | None,
        lens: Lens | None,
    ) -> Iterator[Episode]:
        while True:
            self.refresh()
            now = self._snapshot
            if now is not before:
                yield from episodes.stored_since(before, now, self._spec, where, columns, lens)
                before = now
            elif not wait():
                return

    def _drawn(
        self, view: View, choose: Chooser | None, batch_size: int, seed: int | np.random.Generator
    ) -> Iterator[Batch]:
        choose = Uniform() if choose is None else chooser(choose)
        rng = arguments.generator(seed)
        return Batches(lambda: self._snapshot, view, choose, arguments.batch_size(batch_size), rng)
