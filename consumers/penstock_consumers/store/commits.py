"""Commits: the numbered steps of a partition's history, and how the newest is found.

A commit holds, atomically, all that its partition's consumer needs to go on. It is one object, created only if
absent: whoever creates number N + 1 was the partition's owner, and whoever comes second learns here that it is not.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock_consumers.store import layout
from penstock_consumers.store.bucket import create_once
from penstock_schemas.errors import CorruptStoreError, FencedError, StoreFormatError
from penstock_schemas.messages import MAX_MESSAGE_BYTES, MAX_RAW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock_consumers.store.bucket import Bucket

# Every such commit lists all segments that live, so that opening a store reads at most this many commits.
FULL_EVERY = 50
# Whole episodes are assembled in memory, and what one of them holds of text must fit into one array of Arrow's.
MAX_EPISODE_BYTES = 1 << 30
KEYS_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Ranges:
    """What there is among the episodes of a segment: who looks for something else need not open it.

    A pair is the least and the largest value. Returns and metrics that are not a number are left out: no bounds hold
    them; where no return is a number, both are NaN.

    Attributes:
        ends: the values of `penstock_schemas.chunks.Ends` that occur, ascending.
        policy_version: of the chunks that have a step; where none has, of all.
        producers: their names, in order; None where there are more than 64.
        metrics: by name; one that has no number is absent.
    """

    closed_offset: tuple[int, int]
    closed_ms: tuple[int, int]
    length: tuple[int, int]
    return_: tuple[float, float]
    policy_version: tuple[int, int]
    ends: tuple[int, ...]
    producers: tuple[str, ...] | None
    metrics: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment as a commit names it; `rows` are episodes, or, in an open segment, chunks.

    `ranges` are of episodes only. `keys` is the sum, modulo 2^64, of the hashes of the episodes' names, or the chunks':
    once the segment is gone, it tells which it held from any others; and chunks, when their keys alone are read.
    """

    name: str
    rows: int
    steps: int
    bytes: int
    crc32c: int
    ranges: Ranges | None = None
    keys: int = 0


@dataclass(frozen=True, slots=True)
class Retired:
    """What retention has removed from a partition since its beginning; `keys` as in `SegmentEntry`."""

    episodes: int = 0
    steps: int = 0
    keys: int = 0

    def plus(self, entry: SegmentEntry) -> Retired:
        """Count a segment in."""
        keys = (self.keys + entry.keys) % KEYS_MODULUS
        return Retired(self.episodes + entry.rows, self.steps + entry.steps, keys)


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record that was judged: what tells a log that was cut or replaced from the one that was read."""

    offset: int
    timestamp_ms: int
    digest: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a partition's consumer takes, and when it gives up on an episode.

    A commit names the limits by which its records were judged, so that whoever recounts it judges alike.
    """

    idle_limit_ms: int = 600_000
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_raw_bytes: int = MAX_RAW_BYTES
    max_episode_bytes: int = MAX_EPISODE_BYTES


@dataclass(frozen=True, slots=True)
class Envs:
    """A producer's envs, an item each: its newest episode, the chunk and step with which that goes on, and its bytes.

    The last three are 0 where the episode has ended.
    """

    env: list[int] = field(default_factory=list)
    episode: list[int] = field(default_factory=list)
    chunk: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len({len(column) for column in (self.env, self.episode, self.chunk, self.step, self.bytes)}) > 1:
            raise ValueError("lists of envs are not equally long")


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """What is known of a producer.

    Its incarnation, the sequence number expected next, the log's clock when it was last seen, and the identity of its
    begin record, by which copies of that are known.
    """

    incarnation: int
    sequence: int
    seen_ms: int
    start: str = ""
    envs: Envs = field(default_factory=Envs)


@dataclass(frozen=True, slots=True)
class Live:
    """The segments that live at a commit."""

    segments: tuple[SegmentEntry, ...] = ()
    open: tuple[SegmentEntry, ...] = ()

    @property
    def names(self) -> set[str]:
        """The names of all of them."""
        return {entry.name for entry in (*self.segments, *self.open)}

    @classmethod
    def from_json(cls, read: dict[str, Any]) -> Live:
        """Read what `dataclasses.asdict` wrote; raises `KeyError`, `TypeError` or `ValueError` where it is not that."""
        return cls(_entries(read["segments"]), _entries(read["open"]))

    def after(self, *commits: Commit) -> Live:
        """What lives once commits are applied, one after the other."""
        segments, still_open = _Named(self.segments), _Named(self.open)
        for commit in commits:
            segments.apply(commit.segments_added, commit.segments_removed)
            still_open.apply(commit.open_added, commit.open_removed)
        return Live(segments.entries, still_open.entries)


class _Named(dict[str, list[SegmentEntry]]):
    """Segments by their names, of which a commit that is wrong may name one twice: whoever verifies it is to see."""

    def __init__(self, entries: Sequence[SegmentEntry]) -> None:
        super().__init__()
        self.apply(entries, ())

    def apply(self, added: Sequence[SegmentEntry], removed: Sequence[str]) -> None:
        """Add segments, then remove some."""
        for entry in added:
            self.setdefault(entry.name, []).append(entry)
        for name in removed:
            self.pop(name, None)

    @property
    def entries(self) -> tuple[SegmentEntry, ...]:
        """All of them, in the order in which their names came."""
        return tuple(entry for of in self.values() for entry in of)


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of one partition; `high_water` is the next offset to judge."""

    partition: int
    number: int
    writer: str
    high_water: int
    topic_id: str
    cluster_id: str
    last: LastRecord | None
    log_clock_ms: int
    limits: Limits
    producers: dict[str, ProducerEntry]
    counters: dict[str, int]
    segments_added: tuple[SegmentEntry, ...] = ()
    segments_removed: tuple[str, ...] = ()
    open_added: tuple[SegmentEntry, ...] = ()
    open_removed: tuple[str, ...] = ()
    retired: Retired = Retired()
    live: Live | None = None

    @property
    def name(self) -> str:
        """The name of the commit's object."""
        return layout.commit(self.partition, self.number)

    def to_json(self) -> bytes:
        """Write the commit."""
        return json.dumps({"format": layout.FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Commit:
        """Read a commit; raises `StoreFormatError` or `CorruptStoreError`, naming it."""
        try:
            read = json.loads(data)
            version = read.pop("format")
            if version != layout.FORMAT:
                raise StoreFormatError(
                    f"commit {name}: format version {version}, this Penstock reads {layout.FORMAT}: "
                    "use the version of Penstock that wrote it"
                )
            commit = cls(**{**read, **_parts(read)})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptStoreError(f"commit {name}: does not read: {error!r}") from error
        if commit.name != name:
            raise CorruptStoreError(f"commit {name}: it says that it is {commit.name}: restore it")
        return commit


def in_log_order(segments: Iterable[SegmentEntry]) -> list[SegmentEntry]:
    """Sort segments of whole episodes by the records with which those ended, which no two segments share."""
    return sorted(segments, key=lambda entry: entry.ranges.closed_offset if entry.ranges else (-1, -1))


def ranges_of(entry: SegmentEntry) -> Ranges:
    """The ranges of a segment of whole episodes; raises `CorruptStoreError` where its commit names none."""
    if entry.ranges is None:
        raise CorruptStoreError(f"segment {entry.name}: its commit does not name its ranges: restore the commit")
    return entry.ranges


def newest(bucket: Bucket, partition: int, *, known: int = -1) -> Commit | None:
    """Find a partition's newest commit after `known`, a number that exists; None where there is none.

    A listing is only a hint: numbers are asked for one by one from the newest listed until one is absent. Only the last
    folder of commits is listed, so that it costs the same however many there are.
    """
    number = max(known, _listed(bucket, partition) - 1)
    found: Commit | None = None
    while True:
        number += 1
        name = layout.commit(partition, number)
        try:
            found = Commit.from_json(bucket.read(name).to_pybytes(), name)
        except FileNotFoundError:
            return found


def partitions(bucket: Bucket) -> list[int]:
    """Name the partitions that have commits, as a listing shows them."""
    found = map(layout.partition_folder, bucket.folders(layout.COMMITS))
    return sorted(partition for partition in found if partition is not None)


def newest_of_each(bucket: Bucket) -> Iterator[Commit]:
    """Find the newest commit of each partition that has one, in the order of partitions."""
    found = (newest(bucket, partition) for partition in partitions(bucket))
    return (commit for commit in found if commit is not None)


def read(bucket: Bucket, partition: int, number: int) -> Commit:
    """Read one commit; raises `CorruptStoreError` where it is missing."""
    name = layout.commit(partition, number)
    try:
        return Commit.from_json(bucket.read(name).to_pybytes(), name)
    except FileNotFoundError as error:
        raise CorruptStoreError(f"commit {name}: it is missing, though a later one exists: restore it") from error


def live_at(bucket: Bucket, commit: Commit) -> Live:
    """Tell which segments live at a commit: from the last full listing, and the commits since."""
    if commit.live is not None:
        return commit.live
    full = commit.number - commit.number % FULL_EVERY
    first = read(bucket, commit.partition, full)
    if first.live is None:
        raise CorruptStoreError(f"commit {first.name}: it lists no segments, though every {FULL_EVERY}th must")
    since = (read(bucket, commit.partition, number) for number in range(full + 1, commit.number))
    return first.live.after(*since, commit)


def create(bucket: Bucket, commit: Commit, live: Live) -> Commit:
    """Create a commit: the fence. `live` is what lives once it is applied.

    Raises `FencedError` where another writer's commit has the number. If it raises anything else, the commit may
    have been made or not: reload.
    """
    if commit.number % FULL_EVERY == 0:
        commit = replace(commit, live=live)
    if not create_once(bucket, commit.name, commit.to_json()):
        raise _fenced(commit.name)
    return commit


def check_newest(bucket: Bucket, partition: int, number: int) -> None:
    """Raise `FencedError` where a partition has a commit after `number`: what it no longer needs may be gone."""
    if newest(bucket, partition, known=number) is not None:
        raise _fenced(layout.commit(partition, number + 1))


def rewrite(
    bucket: Bucket,
    newest: Commit,
    live: Live,
    *,
    added: Sequence[SegmentEntry] = (),
    removed: Sequence[str] = (),
    retired: Sequence[SegmentEntry] = (),
) -> tuple[Commit, Live]:
    """Make a commit after `newest` that judges nothing: `added` holds the episodes of `removed`, or `retired` go.

    Answers the commit, and what lives then. Raises `FencedError` where another writer's commit has its number: nothing
    has changed then, and what was written for it is garbage.
    """
    if retired and (added or removed):
        raise ValueError("segments that are replaced and others that are retired: take a commit for each")
    gone = reduce(Retired.plus, retired, newest.retired)
    commit = replace(
        newest,
        number=newest.number + 1,
        writer=uuid.uuid4().hex,
        segments_added=tuple(added),
        segments_removed=(*removed, *(entry.name for entry in retired)),
        open_added=(),
        open_removed=(),
        retired=gone,
        live=None,
    )
    after = live.after(commit)
    return create(bucket, commit, after), after


def _fenced(name: str) -> FencedError:
    return FencedError(f"commit {name}: another consumer made it; this one's work is discarded")


def _listed(bucket: Bucket, partition: int) -> int:
    """The highest commit number that a listing shows; 0 where it shows none."""
    folders = filter(layout.is_commit_folder, bucket.folders(layout.commits(partition)))
    for folder in sorted(folders, reverse=True):
        numbers = [at for _, at in filter(None, map(layout.commit_named, bucket.list(folder)))]
        # A folder is made before the first commit in it, and whoever made it may have died in between.
        if numbers:
            return max(numbers)
    return 0


def _parts(read: dict[str, Any]) -> dict[str, Any]:
    live = read["live"]
    return {
        "last": read["last"] and LastRecord(**read["last"]),
        "limits": Limits(**read["limits"]),
        "producers": {
            name: ProducerEntry(**{**entry, "envs": Envs(**entry["envs"])}) for name, entry in read["producers"].items()
        },
        "segments_added": _entries(read["segments_added"]),
        "segments_removed": tuple(read["segments_removed"]),
        "open_added": _entries(read["open_added"]),
        "open_removed": tuple(read["open_removed"]),
        "retired": Retired(**read["retired"]),
        "live": live and Live.from_json(live),
    }


def _entries(read: list[dict[str, Any]]) -> tuple[SegmentEntry, ...]:
    return tuple(SegmentEntry(**{**entry, "ranges": _ranges(entry["ranges"])}) for entry in read)


def _ranges(read: dict[str, Any] | None) -> Ranges | None:
    if read is None:
        return None
    ends, producers, metrics = read.pop("ends"), read.pop("producers"), read.pop("metrics")
    return Ranges(
        **_spans(read),
        ends=tuple(ends),
        producers=None if producers is None else tuple(producers),
        metrics=_spans(metrics),
    )


def _spans(read: dict[str, list[Any]]) -> dict[str, tuple[Any, Any]]:
    return {name: (least, most) for name, (least, most) in read.items()}
