"""The judge: one verdict on each record of a partition, in offset order, from the log alone.

No clock, no poll, no commit has a say: the same records give the same verdicts, wherever they are cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.store.commits import Envs, ProducerEntry
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import RejectedError
from penstock_schemas.messages import Kind, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_consumers.store.commits import Limits
    from penstock_schemas.chunks import ChunkRows
    from penstock_schemas.log import Record

_NONE = -1
# The share of the idle limit that one record can add to the log's clock: a record after a long outage does not
# make everyone idle who had no chance to speak.
_LARGEST_STEP = 4
# What a decoded message takes of memory for each of its columns, however few bytes those have.
_COLUMN_BYTES = 1024


class AbortReason(StrEnum):
    """Why the judge aborts episodes; a producer's end record brings a reason of its own."""

    RESTARTED = "restarted"
    GAP = "gap"
    IDLE = "idle"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Chunk rows that belong to episodes; `uid` names each row's episode within this judge."""

    rows: ChunkRows
    uid: NDArray[np.int64]
    producer: str
    incarnation: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """Open episodes that a record ended."""

    uid: NDArray[np.int64]
    reason: str
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Verdicts:
    """What was judged since the last commit, in offset order."""

    accepted: list[Accepted] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)
    bytes: int = 0


class _Producer:
    """What is known of one producer: where its sequence stands, and the newest episode of each of its envs.

    The arrays have an item an env, in the order of `env`: the newest episode's number, -1 before the first; its uid
    while it is open, else -1; the chunk and the step with which it goes on, and its bytes so far. Memory is for envs
    that were heard of: an index is the producer's to choose.
    """

    _COLUMNS = ("uid", "episode", "chunk", "step", "bytes")

    def __init__(self, incarnation: int, sequence: int, seen_ms: int, start: str) -> None:
        self.incarnation = incarnation
        self.sequence = sequence
        self.seen_ms = seen_ms
        self.start = start
        self.env = np.empty(0, np.int64)
        self.uid = np.empty(0, np.int64)
        self.episode = np.empty(0, np.int64)
        self.chunk = np.empty(0, np.int64)
        self.step = np.empty(0, np.int64)
        self.bytes = np.empty(0, np.int64)

    def at(self, env: NDArray[Any]) -> NDArray[np.intp]:
        """Find the places of envs, and make some for those that are new; older places are void then."""
        place = np.searchsorted(self.env, env)
        known = place < len(self.env)
        known[known] = self.env[place[known]] == env[known]
        if known.all():
            return place
        new = np.unique(env[~known])
        where = np.searchsorted(self.env, new)
        self.env = np.insert(self.env, where, new)
        for name in self._COLUMNS:
            setattr(self, name, np.insert(getattr(self, name), where, _NONE))
        return np.searchsorted(self.env, env)

    def open_uids(self) -> NDArray[np.int64]:
        uids: NDArray[np.int64] = self.uid[self.uid != _NONE]
        return uids


class Judge:
    """The state of one partition's verdicts; `entries` takes it to a commit, the constructor back from one."""

    def __init__(
        self,
        limits: Limits,
        *,
        producers: Mapping[str, ProducerEntry] | None = None,
        counters: Mapping[str, int] | None = None,
        clock_ms: int = 0,
        timestamp_ms: int | None = None,
    ) -> None:
        self._idle_limit_ms = limits.idle_limit_ms
        self._max_episode_bytes = limits.max_episode_bytes
        self._producers: dict[str, _Producer] = {}
        self._clock_ms = clock_ms
        self._timestamp_ms = timestamp_ms
        self._next_uid = 0
        self._next_expiry_ms = 0
        self.counters: Counter[str] = Counter(counters or {})
        for name, entry in (producers or {}).items():
            self._producers[name] = self._restored(entry)

    @property
    def clock_ms(self) -> int:
        """The log's clock: its records' append times, each step counted as at most a quarter of the idle limit."""
        return self._clock_ms

    @property
    def open_episodes(self) -> int:
        """The number of open episodes."""
        return sum(len(producer.open_uids()) for producer in self._producers.values())

    def open_uids(self) -> NDArray[np.int64]:
        """The uids of all open episodes."""
        uids = [producer.open_uids() for producer in self._producers.values()]
        return np.concatenate(uids) if uids else np.empty(0, np.int64)

    def uids_of(self, producer: str, incarnation: int, env: NDArray[Any], episode: NDArray[Any]) -> NDArray[np.int64]:
        """Find the uids of one incarnation's episodes by env and number; -1 where one is not open."""
        known = self._producers.get(producer)
        if known is None or known.incarnation != incarnation or not len(env):
            return np.full(len(env), _NONE, np.int64)
        at = known.at(env)
        uid: NDArray[np.int64] = np.where(known.episode[at] == episode, known.uid[at], _NONE)
        return uid

    def entries(self) -> dict[str, ProducerEntry]:
        """What a commit holds of every producer."""
        return {name: _entry(producer) for name, producer in self._producers.items()}

    def judge(self, record: Record, message: Message, verdicts: Verdicts) -> None:
        """Judge a valid message, and add what follows to `verdicts`.

        Raises `RejectedError` where its rows contradict what the same producer said before; nothing has changed then,
        and `reject` is to be called, as for any message that is not valid.
        """
        if message.kind is Kind.CHUNKS:
            self._chunks(record, message, verdicts)
        else:
            self._advance(record)
            self.counters["messages_valid"] += 1
            self.counters[f"messages_{message.kind}"] += 1
            if message.kind is Kind.BEGIN:
                self._begin_unless_repeated(record, message, verdicts)
            elif message.kind is Kind.END:
                self._end(record, message, verdicts)
        self._expire(record, verdicts)

    def reject(self, record: Record, verdicts: Verdicts) -> None:
        """Count a record that is not valid: it changes nothing but the log's time."""
        self._advance(record)
        self.counters["messages_quarantined"] += 1
        self._expire(record, verdicts)

    def _chunks(self, record: Record, message: Message, verdicts: Verdicts) -> None:
        rows = message.rows
        if rows is None:
            raise ValueError("a chunk message without rows")
        producer = self._producers.get(message.producer)
        if producer is not None and producer.incarnation == message.incarnation:
            _check_episodes(producer, rows, message.sequence)
        self._advance(record)
        count, length = len(rows), int(rows.steps.sum())
        self._count(messages_valid=1, messages_chunks=1, rows_read=count, steps_read=length)
        producer = self._newest(record, message, verdicts)
        if message.incarnation < producer.incarnation:
            self._count(messages_superseded=1, rows_superseded=count, steps_superseded=length)
            return
        producer.seen_ms = self._clock_ms
        if message.sequence < producer.sequence:
            self._count(messages_duplicate=1, rows_duplicate=count, steps_duplicate=length)
            return
        self._expect(record, producer, message.sequence, verdicts)
        self._accept(record, message, producer, rows, verdicts)

    def _accept(
        self, record: Record, message: Message, producer: _Producer, rows: ChunkRows, verdicts: Verdicts
    ) -> None:
        chunk = rows.chunk
        new_env = _heads(rows.env)
        place = producer.at(rows.env)
        # A run is what a message holds of one episode.
        new_run = new_env[:-1] | (chunk == 0)
        run = np.flatnonzero(new_run)
        begins = chunk[run] == 0
        uid = np.where(begins, self._next_uid + np.cumsum(begins) - 1, producer.uid[place[run]])
        self._next_uid += int(begins.sum())
        run_of_row = np.cumsum(new_run) - 1
        row_uid = uid[run_of_row]
        size = np.add.reduceat(rows.bytes, run) + np.where(begins, 0, producer.bytes[place[run]])
        orphan = row_uid == _NONE
        last = np.flatnonzero(new_env[1:] & ~orphan)
        at = place[last]
        producer.uid[at] = np.where(rows.ends[last] == Ends.OPEN.value, row_uid[last], _NONE)
        producer.episode[at] = rows.episode[last]
        producer.chunk[at] = chunk[last] + 1
        producer.step[at] = rows.first_step[last] + rows.steps[last]
        producer.bytes[at] = size[run_of_row[last]]
        if orphan.any():
            self._count(rows_orphan=int(orphan.sum()), steps_orphan=int(rows.steps[orphan].sum()))
            rows, row_uid = rows.where(~orphan), row_uid[~orphan]
        verdicts.accepted.append(
            Accepted(rows, row_uid, message.producer, message.incarnation, record.offset, record.timestamp_ms)
        )
        memory = max(record.size, rows.batch.get_total_buffer_size())
        verdicts.bytes += memory + _COLUMN_BYTES * rows.batch.num_columns
        too_large = at[producer.bytes[at] > self._max_episode_bytes]
        if len(too_large):
            self._abort(record, producer, AbortReason.TOO_LARGE, verdicts, too_large)

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counters[name] += count

    def _begin_unless_repeated(self, record: Record, message: Message, verdicts: Verdicts) -> None:
        """Begin an incarnation, but not with another copy of the begin record of the one that runs.

        A begin record whose acknowledgement was lost is sent again, and the first copy may come last. Which of them
        the producer took for its incarnation is told by its messages.
        """
        producer = self._producers.get(message.producer)
        if producer is not None and producer.start == message.start:
            self.counters["begins_repeated"] += 1
            return
        self._begin(record, message.producer, message.incarnation, message.start, verdicts)

    def _begin(self, record: Record, name: str, incarnation: int, start: str, verdicts: Verdicts) -> _Producer:
        older = self._producers.get(name)
        if older is not None:
            self._abort(record, older, AbortReason.RESTARTED, verdicts)
        self._producers[name] = _Producer(incarnation, 0, self._clock_ms, start)
        return self._producers[name]

    def _newest(self, record: Record, message: Message, verdicts: Verdicts) -> _Producer:
        """Know the newest incarnation of a message's producer, the message's own included."""
        producer = self._producers.get(message.producer)
        if producer is None or message.incarnation > producer.incarnation:
            # Its begin record was quarantined or lost with the log's beginning; the incarnation speaks for itself.
            start = producer.start if producer else ""
            return self._begin(record, message.producer, message.incarnation, start, verdicts)
        return producer

    def _end(self, record: Record, message: Message, verdicts: Verdicts) -> None:
        if message.producer not in self._producers:
            # It has nothing open, and who only ends is not worth a place in every commit.
            return
        producer = self._newest(record, message, verdicts)
        if message.incarnation < producer.incarnation or message.sequence < producer.sequence:
            return
        self._expect(record, producer, message.sequence, verdicts)
        self._abort(record, producer, message.reason, verdicts)

    def _expect(self, record: Record, producer: _Producer, sequence: int, verdicts: Verdicts) -> None:
        if sequence > producer.sequence:
            self.counters["gaps"] += 1
            self.counters["messages_missing"] += sequence - producer.sequence
            self._abort(record, producer, AbortReason.GAP, verdicts)
        producer.sequence = sequence + 1

    def _abort(
        self,
        record: Record,
        producer: _Producer,
        reason: str,
        verdicts: Verdicts,
        at: NDArray[np.intp] | slice = slice(None),
    ) -> None:
        """Abort what is open of the envs in the places `at`, all of them by default."""
        uids = producer.uid[at]
        uids = uids[uids != _NONE]
        if len(uids):
            verdicts.aborted.append(Aborted(uids, str(reason), record.offset, record.timestamp_ms))
            producer.uid[at] = _NONE

    def _advance(self, record: Record) -> None:
        self.counters["messages_read"] += 1
        if self._timestamp_ms is not None:
            step = record.timestamp_ms - self._timestamp_ms
            self._clock_ms += min(max(step, 0), self._idle_limit_ms // _LARGEST_STEP)
        self._timestamp_ms = record.timestamp_ms

    def _expire(self, record: Record, verdicts: Verdicts) -> None:
        if self._clock_ms < self._next_expiry_ms:
            return
        with_open = [producer for producer in self._producers.values() if len(producer.open_uids())]
        for producer in with_open:
            if self._clock_ms - producer.seen_ms >= self._idle_limit_ms:
                self._abort(record, producer, AbortReason.IDLE, verdicts)
        # Nobody is seen earlier than now from here on: until this passes there is no need to look at anyone.
        seen = [producer.seen_ms for producer in with_open if len(producer.open_uids())]
        self._next_expiry_ms = min(seen, default=self._clock_ms) + self._idle_limit_ms

    def _restored(self, entry: ProducerEntry) -> _Producer:
        producer = _Producer(entry.incarnation, entry.sequence, entry.seen_ms, entry.start)
        envs = entry.envs
        producer.env, producer.episode, producer.chunk, producer.step, producer.bytes = (
            np.array(column, np.int64) for column in (envs.env, envs.episode, envs.chunk, envs.step, envs.bytes)
        )
        is_open = producer.chunk > 0
        producer.uid = np.where(is_open, self._next_uid + np.cumsum(is_open) - 1, _NONE)
        self._next_uid += int(is_open.sum())
        return producer


def _heads(env: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Tell which rows are the first of their env, and that whatever follows the last would be, shape (rows + 1,)."""
    heads = np.ones(len(env) + 1, np.bool_)
    np.not_equal(env[1:], env[:-1], out=heads[1:-1])
    return heads


def _check_episodes(producer: _Producer, rows: ChunkRows, sequence: int) -> None:
    """Refuse rows that contradict what the same incarnation said before, unless the message comes too late anyway.

    An env's episodes are numbered upwards, so that no two have one name. Where no message is missing, an open episode
    goes on where it stood.
    """
    if sequence < producer.sequence:
        return
    env, episode, chunk, step = rows.env, rows.episode, rows.chunk, rows.first_step
    at = producer.at(env)
    # Not at heads alone: behind an orphan there may begin one of a lower number.
    wrong = (chunk == 0) & (episode <= producer.episode[at])
    if sequence == producer.sequence:
        follows = (producer.episode[at] == episode) & (producer.chunk[at] == chunk) & (producer.step[at] == step)
        wrong |= _heads(env)[:-1] & (producer.uid[at] != _NONE) & ~follows
    if wrong.any():
        first = int(wrong.argmax())
        what = f"env {env[first]}, episode {episode[first]}, chunk {chunk[first]}"
        raise RejectedError("rows", f"{what} does not follow the env's episode {producer.episode[at[first]]}")


def _entry(producer: _Producer) -> ProducerEntry:
    known = producer.episode != _NONE
    is_open = producer.uid != _NONE
    columns = (
        producer.env,
        producer.episode,
        np.where(is_open, producer.chunk, 0),
        np.where(is_open, producer.step, 0),
        np.where(is_open, producer.bytes, 0),
    )
    envs = Envs(*(column[known].tolist() for column in columns))
    return ProducerEntry(producer.incarnation, producer.sequence, producer.seen_ms, producer.start, envs)
