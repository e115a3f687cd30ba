"""Episodes, one by one, as views of their segment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_consumers.replay.frozen import frozen
from penstock_consumers.replay.segment import KEY, episode_id, given_dtypes, masked, parsed_id
from penstock_consumers.replay.transitions import chosen
from penstock_consumers.replay.where import Where
from penstock_consumers.store import layout
from penstock_consumers.store.commits import ranges_of
from penstock_schemas.chunks import Ends
from penstock_schemas.spaces import unflatten
from penstock_schemas.stream import INFO, METRIC, STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock_consumers.replay.seen import Lens
    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Space
    from penstock_schemas.stream import StreamSpec

_FIXED = ("incarnation", "env", "episode", "length", "return", "ends", "opened_offset", "closed_offset", "closed_ms")
_OTHER = ("producer", "abort_reason", "seed", "reset_options", "continues")


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One episode of T steps; its arrays are read-only.

    They are views of the store where the stored dtype is the given one, else the episode's own. What was not asked for
    is not there: None in place of observations and actions, no item among extras, infos, metrics and states. All else
    is always there. The `repr` has no arrays.

    `opened_offset` and `closed_offset` are the records in which it began and with which it ended, `closed_ms` the
    log's time of the latter, in milliseconds since 1970. `reset_options` is JSON. `continues` is the number of
    the env's episode that was cut where this one begins, None where it began with a reset; one that ends with
    `Ends.CUT` has a continuation. A cut is no end of the env's own: returns add up over the parts, bootstrapping goes
    on.
    """

    producer: str
    incarnation: int
    env: int
    episode: int
    length: int
    return_: float
    ends: Ends
    abort_reason: str | None
    seed: int | None
    reset_options: str | None
    continues: int | None
    opened_offset: int
    closed_offset: int
    closed_ms: int
    policy_version: NDArray[np.int64] = field(repr=False)
    """The version that chose each action, shape (T,)."""
    exploration: NDArray[np.uint8] = field(repr=False)
    """How each action was chosen, as `penstock_schemas.chunks.Exploration`, shape (T,)."""
    observation: Any = field(repr=False)
    """In the structure of the observation space: arrays of shape (T + 1, *leaf), in dicts and tuples where it is one.

    Dtypes are the environment's; text is an object array of str. None where other columns were asked for.
    """
    action: Any = field(repr=False)
    """In the structure of the action space, arrays of shape (T, *leaf); None where other columns were asked for."""
    reward: NDArray[Any] = field(repr=False)
    """Shape (T,)."""
    extras: dict[str, NDArray[Any]] = field(repr=False)
    """What the policy declared beside the action, by name, each of shape (T, *its own).

    A nullable one is a masked array, masked at the steps at which there was none.
    """
    infos: dict[str, np.ma.MaskedArray[Any, Any]] = field(repr=False)
    """The recorded infos by key, one with each observation, shape (T + 1, *its own); masked where there was none."""
    chunk_first_step: NDArray[np.int64] = field(repr=False)
    """The step at which each of the C chunks begins in which the episode travelled, shape (C,).

    The last chunk of an aborted episode may have no step: it begins at T then.
    """
    policy_digest: tuple[bytes, ...] = field(repr=False)
    """The digest of the weights that acted in each chunk, C items."""
    chunk_state: dict[str, NDArray[Any]] = field(repr=False)
    """The policy's recurrent state before the first step of each chunk, by name, each of shape (C, *its own).

    Zeros where a chunk has no step.
    """
    metrics: dict[str, float | None]
    """What was measured of the episode, by name; None where it was not, or where the env did not end the episode."""

    @property
    def id(self) -> str:
        """The name by which `Replay.episode` finds it: producer/incarnation/env/episode."""
        return episode_id(self.producer, self.incarnation, self.env, self.episode)


# What holds columns by their names.
_HELD = ("extras", "infos", "chunk_state", "metrics")
# What may be asked for by its own name; all but observations and actions is there in any case.
_FIRST = ("observation", "action", "reward")
_OWN = (*(of.name for of in fields(Episode) if of.name not in {*_FIRST, *_HELD}), "id")


def stored_in(
    snapshot: Snapshot,
    spec: StreamSpec,
    where: Where | None = None,
    columns: Collection[str] | None = None,
    lens: Lens | None = None,
) -> Iterator[Episode]:
    """Give the episodes of a snapshot of which every step fulfils `where`; all by default.

    Observations are as `lens` shows them, and episodes that it cannot show are left out; as they are stored by default.
    Raises `SettingsError` at once, and `StoreError` with the first episode where no episode fulfils `where`; a store
    without episodes gives nothing.
    """
    return _stored_in(_Asked(snapshot, spec, where, columns, lens))


def stored_since(
    before: Snapshot,
    snapshot: Snapshot,
    spec: StreamSpec,
    where: Where | None = None,
    columns: Collection[str] | None = None,
    lens: Lens | None = None,
) -> Iterator[Episode]:
    """Give the episodes of a snapshot that an earlier one did not hold, of those that `stored_in` gives; or none.

    What was stored before ended below its high-water mark, in whatever segment it lies now. Raises `SettingsError` at
    once.
    """
    return iter(_Asked(snapshot, spec, where, columns, lens, before))


def named(snapshot: Snapshot, spec: StreamSpec, name: str, lens: Lens | None = None) -> Episode | None:
    """Find the episode that has this id, and show it by a lens; None where the snapshot has none.

    Raises `StoreError` where the lens cannot show it.
    """
    parsed = parsed_id(name)
    if parsed is None:
        return None
    producer, key = parsed
    found = next(_found(snapshot, producer, dict(zip(KEY, key, strict=True))), None)
    if found is None:
        return None
    number, segment, row = found
    return _episode(segment, row, spec, lens.episodes(snapshot, number, np.array([row])) if lens else None)


def of_env(snapshot: Snapshot, spec: StreamSpec, one: Episode) -> Callable[[int], Episode | None]:
    """Look through a snapshot once for the episodes of the env that one is of, from the same start of its producer.

    What is answered finds one by its number; None where the snapshot has none.
    """
    found = _found(snapshot, one.producer, {"incarnation": one.incarnation, "env": one.env})
    places = {int(segment.fixed("episode")[row]): (segment, row) for _, segment, row in found}
    return lambda number: _episode(*places[number], spec) if number in places else None


def new_since(before: Snapshot | None, snapshot: Snapshot) -> dict[int, int]:
    """Find the segments that may hold episodes that an earlier snapshot did not hold; all where there is none.

    What was stored before ended below its high-water mark, in whatever segment it lies now: by the number of each
    segment, the record with which what is new there ended, at least. None is opened.
    """
    if before is None:
        return dict.fromkeys(range(len(snapshot.entries)), 0)
    known = {entry.name for entry in before.entries}
    since = {
        number: before.high_water(layout.partition_of(entry.name))
        for number, entry in enumerate(snapshot.entries)
        if entry.name not in known
    }
    return {number: at for number, at in since.items() if ranges_of(snapshot.entries[number]).closed_offset[1] >= at}


class _Asked:
    """What is asked of a snapshot: iterable once or more, segment by segment.

    Attributes:
        snapshot: of which.
        condition: what episodes must fulfil.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        spec: StreamSpec,
        where: Where | None,
        columns: Collection[str] | None,
        lens: Lens | None,
        before: Snapshot | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._spec = spec
        self._names = chosen(columns, _names(spec))
        self._lens = lens if "observation" in self._names else None
        condition = (where or Where()).at(snapshot)
        self._since = {
            number: since
            for number, since in new_since(before, snapshot).items()
            if condition.may_hold(snapshot.entries[number])
        }
        self.condition = self._lens.condition(condition, snapshot, self._since) if self._lens else condition

    def __iter__(self) -> Iterator[Episode]:
        for number, since in self._since.items():
            yield from self._of(number, since)

    def _of(self, number: int, since: int) -> Iterator[Episode]:
        """Give the episodes of a segment that ended with the record `since` or later."""
        segment = self.snapshot.segment(number)
        rows = self.condition.rows(segment)
        rows = rows[segment.fixed("closed_offset")[rows] >= since]
        shown = self._lens.episodes(self.snapshot, number, rows) if self._lens else None
        return _episodes(segment, self._spec, rows, self._names, shown)


def _names(spec: StreamSpec) -> dict[str, bool]:
    """The columns that may be asked for; all of them are there by default."""
    others = (*spec.extras, *spec.infos, *spec.metric_columns, *spec.states)
    return dict.fromkeys((*_FIRST, *(column.name for column in others), *_OWN), True)


def _stored_in(asked: _Asked) -> Iterator[Episode]:
    given = False
    for episode in asked:
        given = True
        yield episode
    if not given:
        asked.condition.check_found(asked.snapshot, "episode")


def _found(snapshot: Snapshot, producer: str, wanted: Mapping[str, int]) -> Iterator[tuple[int, Segment, int]]:
    """Find a producer's episodes that have these values: the segment's number, the segment and the row of each."""
    for number, entry in enumerate(snapshot.entries):
        producers = ranges_of(entry).producers
        if producers is not None and producer not in producers:
            continue
        segment = snapshot.segment(number)
        found = np.ones(segment.entry.rows, np.bool_)
        for column, value in wanted.items():
            found &= segment.fixed(column) == value
        owners = segment.batch.column("producer")
        rows = (row for row in np.flatnonzero(found).tolist() if owners[row].as_py() == producer)
        yield from ((number, segment, row) for row in rows)


def _episode(segment: Segment, row: int, spec: StreamSpec, shown: Iterator[Any] | None = None) -> Episode:
    return next(_episodes(segment, spec, np.array([row]), chosen(None, _names(spec)), shown))


def _episodes(
    segment: Segment,
    spec: StreamSpec,
    rows: NDArray[np.intp],
    names: Collection[str],
    shown: Iterator[Any] | None = None,
) -> Iterator[Episode]:
    """Give the episodes of some rows, with the observations that are `shown`, or those that are stored."""
    fixed = {name: segment.fixed(name)[rows].tolist() for name in _FIXED}
    other = {name: segment.batch.column(name).take(pa.array(rows)).to_pylist() for name in _OTHER}
    metrics = {
        column.name.removeprefix(METRIC): segment.batch.column(column.name).take(pa.array(rows)).to_pylist()
        for column in spec.metric_columns
        if column.name in names
    }
    extras, infos, states = (
        [column for column in columns if column.name in names] for columns in (spec.extras, spec.infos, spec.states)
    )
    dtypes = given_dtypes(spec)
    begins, ends = segment.step_offsets[rows], segment.step_offsets[rows + 1]
    chunk_steps = np.diff(segment.chunk_start, append=segment.entry.steps)
    digests = segment.batch.column("policy_digest")

    def items(column: Column, at: slice) -> NDArray[Any]:
        return frozen(segment.items(column.name).view(at).astype(dtypes[column.name], copy=False))

    def nullable(column: Column, at: slice) -> np.ma.MaskedArray[Any, Any]:
        valid = segment.items(column.name).valid
        return masked(items(column, at), None if valid is None else valid[at])

    def by_step(values: NDArray[Any], at: slice) -> NDArray[Any]:
        return frozen(np.repeat(values[at], chunk_steps[at]))

    def structured(name: str, space: Space, columns: tuple[Column, ...], at: slice) -> Any:
        return unflatten(space, [items(column, at) for column in columns]) if name in names else None

    for place, row in enumerate(rows.tolist()):
        steps = slice(int(begins[place]), int(ends[place]))
        # Each episode before has one more observation than it has steps.
        observations = slice(steps.start + row, steps.stop + row + 1)
        in_chunks = slice(int(segment.chunk_offsets[row]), int(segment.chunk_offsets[row + 1]))
        yield Episode(
            producer=other["producer"][place],
            incarnation=fixed["incarnation"][place],
            env=fixed["env"][place],
            episode=fixed["episode"][place],
            length=fixed["length"][place],
            return_=fixed["return"][place],
            ends=Ends(fixed["ends"][place]),
            abort_reason=other["abort_reason"][place],
            seed=other["seed"][place],
            reset_options=other["reset_options"][place],
            continues=other["continues"][place],
            opened_offset=fixed["opened_offset"][place],
            closed_offset=fixed["closed_offset"][place],
            closed_ms=fixed["closed_ms"][place],
            policy_version=by_step(segment.policy_version, in_chunks),
            exploration=by_step(segment.exploration, in_chunks),
            observation=next(shown)
            if shown
            else structured("observation", spec.observation, spec.observation_columns, observations),
            action=structured("action", spec.action, spec.action_columns, steps),
            reward=items(spec.reward_column, steps),
            extras={extra.name: (nullable if extra.nullable else items)(extra, steps) for extra in extras},
            infos={column.name.removeprefix(INFO): nullable(column, observations) for column in infos},
            chunk_first_step=segment.chunk_first_step[in_chunks],
            policy_digest=tuple(digests[row].as_py()),
            chunk_state={state.name.removeprefix(STATE): segment.items(state.name).view(in_chunks) for state in states},
            metrics={name: values[place] for name, values in metrics.items()},
        )
