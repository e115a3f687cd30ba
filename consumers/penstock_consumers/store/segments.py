"""Segments: immutable Arrow IPC files, of whole episodes or of chunk rows whose episodes are open.

A segment of episodes has a row an episode: where it came from, how it ended, what was measured of it, which policies
acted in it, with which recurrent state each chunk began, and its T steps and T + 1 observations as lists. The files are
uncompressed, so that a reader on a disk maps them.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock_consumers.store.commits import KEYS_MODULUS, Ranges, SegmentEntry
from penstock_consumers.store.pieces import Pieces
from penstock_schemas.chunks import fixed, steps
from penstock_schemas.columns import list_offsets
from penstock_schemas.errors import CorruptStoreError
from penstock_schemas.stream import METRIC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec


# A commit names the producers of a segment where there are no more than so many.
MOST_PRODUCERS = 64
# By which name a batch of an open segment says what its checksum is.
_CHECKSUM = b"crc32c"
# What to do about one that is damaged.
RESTORE = "restore it; `penstock-store verify --quick` names all that are damaged"


def _list(name: str, item: pa.DataType) -> pa.Field:
    return pa.field(name, pa.list_(pa.field("item", item, nullable=False)), nullable=False)


# Where the rows of an open segment came from, beside the columns of a message, and how many bytes they are.
PROVENANCE_FIELDS = (
    pa.field("producer", pa.string(), nullable=False),
    pa.field("incarnation", pa.int64(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("bytes", pa.int64(), nullable=False),
)
EPISODE_FIELDS = (
    pa.field("producer", pa.string(), nullable=False),
    pa.field("incarnation", pa.int64(), nullable=False),
    pa.field("env", pa.int32(), nullable=False),
    pa.field("episode", pa.int64(), nullable=False),
    pa.field("length", pa.int64(), nullable=False),
    pa.field("return", pa.float64(), nullable=False),
    pa.field("ends", pa.uint8(), nullable=False),
    pa.field("abort_reason", pa.string()),
    pa.field("seed", pa.int64()),
    pa.field("reset_options", pa.string()),
    # The number of the env's episode that was cut where this one begins.
    pa.field("continues", pa.int64()),
    # The records in which its first chunk lies and with which it ended, and the log's time of the latter.
    pa.field("opened_offset", pa.int64(), nullable=False),
    pa.field("closed_offset", pa.int64(), nullable=False),
    pa.field("closed_ms", pa.int64(), nullable=False),
    # An item a chunk.
    _list("chunk_first_step", pa.int64()),
    _list("policy_version", pa.int64()),
    _list("policy_digest", pa.binary(32)),
    _list("exploration", pa.uint8()),
)


def episode_schema(spec: StreamSpec) -> pa.Schema:
    """The schema of a segment of whole episodes."""
    fields = (
        *EPISODE_FIELDS,
        *(metric.row_field for metric in spec.metric_columns),
        *(column.field for column in (*spec.states, *spec.columns)),
    )
    return pa.schema(fields, spec.schema.metadata)


def open_schema(spec: StreamSpec) -> pa.Schema:
    """The schema of an open segment: a message's rows, and where they came from."""
    return pa.schema([*spec.schema, *PROVENANCE_FIELDS], spec.schema.metadata)


def write_episodes(bucket: Bucket, name: str, batch: pa.RecordBatch) -> SegmentEntry:
    """Write a segment of whole episodes, at least one; durable when this returns."""
    entry = _write(bucket, name, [(batch, None)], int(fixed(batch, "length").sum()))
    return replace(entry, ranges=_ranges(batch), keys=key_sum(batch))


def write_rows(bucket: Bucket, name: str, batches: Sequence[pa.RecordBatch]) -> SegmentEntry:
    """Write an open segment, each batch with its checksum, for each is read by itself; durable when this returns."""
    checked = [(batch, {_CHECKSUM: _checksum(batch)}) for batch in batches]
    entry = _write(bucket, name, checked, sum(int(steps(batch).sum()) for batch in batches))
    return replace(entry, keys=sum(map(row_key_sum, batches)) % KEYS_MODULUS)


def _write(
    bucket: Bucket, name: str, batches: Sequence[tuple[pa.RecordBatch, dict[bytes, bytes] | None]], steps: int
) -> SegmentEntry:
    file = Pieces()
    with pa.ipc.new_file(pa.PythonFile(file, "w"), batches[0][0].schema) as writer:
        for batch, metadata in batches:
            writer.write_batch(batch, custom_metadata=metadata)
    bucket.put(name, *file.pieces)
    checksum = 0
    for piece in file.pieces:
        checksum = crc32c(piece, checksum)
    return SegmentEntry(name, sum(batch.num_rows for batch, _ in batches), steps, file.size, checksum)


def _checksum(batch: pa.RecordBatch) -> bytes:
    # Of its buffers as they are written; how they are described may differ between versions of Arrow.
    return b"%d" % crc32c(pa.ipc.read_message(batch.serialize()).body)


def episode_keys(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Hash the names of episodes, each with its length, shape (E,): what an episode is known by, wherever it lies."""
    return _hashed(batch, *(fixed(batch, name) for name in ("incarnation", "env", "episode", "length")))


def key_sum(batch: pa.RecordBatch) -> int:
    """Sum the keys of episodes, modulo 2^64; in no order, so that parts add up to the whole."""
    return int(episode_keys(batch).sum(dtype=np.uint64))


def row_key_sum(batch: pa.RecordBatch) -> int:
    """Sum the same of an open segment's rows: of the chunk that each is, with its steps and bytes."""
    names = ("incarnation", "env", "episode", "chunk", "bytes")
    return int(_hashed(batch, *(fixed(batch, name) for name in names), steps(batch)).sum(dtype=np.uint64))


def _hashed(batch: pa.RecordBatch, *numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Hash rows, by their producer and these numbers.

    They are mixed by the finisher of splitmix64 (Steele, Lea and Flood, 2014), one after the other.
    """
    owners = batch.column("producer").dictionary_encode()
    names = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in owners.dictionary.to_pylist()]
    mixed: NDArray[np.uint64] = np.frombuffer(b"".join(names), np.uint64)[owners.indices.to_numpy()]
    for number in numbers:
        mixed = _mix(mixed ^ number.astype(np.uint64))
    return mixed


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _ranges(batch: pa.RecordBatch) -> Ranges:
    producers = sorted(batch.column("producer").unique().to_pylist())
    metrics = {
        name.removeprefix(METRIC): batch.column(name).drop_null().to_numpy()
        for name in batch.schema.names
        if name.startswith(METRIC)
    }
    return Ranges(
        closed_offset=_span(fixed(batch, "closed_offset")),
        closed_ms=_span(fixed(batch, "closed_ms")),
        length=_span(fixed(batch, "length")),
        return_=_span(fixed(batch, "return")),
        policy_version=_span(_acting(batch)),
        ends=tuple(np.unique(fixed(batch, "ends")).tolist()),
        producers=tuple(producers) if len(producers) <= MOST_PRODUCERS else None,
        metrics={name: _span(values) for name, values in metrics.items() if not np.isnan(values).all()},
    )


def _acting(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """The versions of the chunks that have a step; of all of them where none has.

    The last chunk of an aborted episode may have none: its version chose nothing.
    """
    first = batch.column("chunk_first_step")
    begun = first.flatten().to_numpy() < np.repeat(fixed(batch, "length"), np.diff(list_offsets(first)))
    versions: NDArray[np.int64] = batch.column("policy_version").flatten().to_numpy()
    return versions[begun] if begun.any() else versions


def _span(values: NDArray[Any]) -> tuple[Any, Any]:
    """The least and the largest of the values that are numbers, 0 for -0; NaN where none is."""
    zero = values.dtype.type(0)
    return (np.fmin.reduce(values) + zero).item(), (np.fmax.reduce(values) + zero).item()


def read(bucket: Bucket, entry: SegmentEntry, schema: pa.Schema) -> pa.RecordBatch:
    """Read a segment, mapped where it can be, and joined where it was written in batches.

    Raises `CorruptStoreError` where it is missing or not as written.
    """
    try:
        return parsed(entry, bucket.read(entry.name), schema)
    except OSError as error:
        raise _unreadable(entry, error) from error


def read_intact(bucket: Bucket, entry: SegmentEntry, schema: pa.Schema) -> pa.RecordBatch | None:
    """Read a segment as `read` does; None where its bytes are not those that were written."""
    try:
        data = bucket.read(entry.name)
    except FileNotFoundError:
        return None
    return parsed(entry, data, schema) if is_intact(entry, data) else None


def parsed(entry: SegmentEntry, data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Read a segment from its bytes, without a copy where it was written in one batch.

    Raises `CorruptStoreError` where they are not as its commit names them.
    """
    _check_size(entry, data.size)
    try:
        with pa.ipc.open_file(data) as reader:
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            # What is joined is copied.
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(entry, error) from error
    _check(entry, schema, batch.schema, batch.num_rows)
    return batch


def columns(bucket: Bucket, entry: SegmentEntry, schema: pa.Schema, names: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Read some columns of a segment, batch by batch, without mapping it.

    No more of it is in memory than the batch at hand. Raises `CorruptStoreError` where it is missing, or does not read.
    """
    with _opened(bucket, entry, schema, names) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            yield batch


def rows(bucket: Bucket, entry: SegmentEntry, schema: pa.Schema, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Read batches of an open segment, likewise. Raises `CorruptStoreError` also where one is not as written."""
    with _opened(bucket, entry, schema, schema.names) as reader:
        for number in numbers:
            batch, metadata = reader.get_batch_with_custom_metadata(number)
            batch.validate(full=True)
            if (metadata or {}).get(_CHECKSUM) != _checksum(batch):
                raise CorruptStoreError(f"segment {entry.name}: batch {number} was altered: {RESTORE}")
            yield batch


@contextmanager
def _opened(
    bucket: Bucket, entry: SegmentEntry, schema: pa.Schema, names: Collection[str]
) -> Iterator[pa.ipc.RecordBatchFileReader]:
    wanted = [at for at, name in enumerate(schema.names) if name in names]
    try:
        with bucket.open(entry.name) as file:
            _check_size(entry, file.size())
            with pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=wanted)) as reader:
                _check(entry, pa.schema([schema.field(at) for at in wanted]), reader.schema, entry.rows)
                yield reader
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(entry, error) from error


def _check_size(entry: SegmentEntry, size: int) -> None:
    if size != entry.bytes:
        raise CorruptStoreError(
            f"segment {entry.name}: {size} bytes, its commit names {entry.bytes}: it was cut or altered: {RESTORE}"
        )


def _check(entry: SegmentEntry, schema: pa.Schema, found: pa.Schema, rows: int) -> None:
    if rows != entry.rows:
        raise CorruptStoreError(
            f"segment {entry.name}: {rows} rows, its commit names {entry.rows}: it was altered: {RESTORE}"
        )
    if not found.equals(schema):
        raise CorruptStoreError(f"segment {entry.name}: its schema is not the store's: it was altered: {RESTORE}")


def _unreadable(entry: SegmentEntry, error: Exception) -> CorruptStoreError:
    return CorruptStoreError(f"segment {entry.name}: does not read: {error}: {RESTORE}")


def intact(bucket: Bucket, entry: SegmentEntry) -> bool:
    """Tell whether a segment's bytes are those that were written."""
    try:
        return is_intact(entry, bucket.read(entry.name))
    except FileNotFoundError:
        return False


def is_intact(entry: SegmentEntry, data: pa.Buffer) -> bool:
    """Tell whether bytes are those that were written as a segment."""
    return len(data) == entry.bytes and crc32c(data) == entry.crc32c
