"""Messages: what a record's headers say, and the order in which a reader comes to trust its value.

| kind   | by       | value                   | headers beside the format and the kind                        |
|--------|----------|-------------------------|---------------------------------------------------------------|
| begin  | producer | the schema and no rows  | schema, producer, start                                       |
| chunks | producer | the schema and one batch| schema, producer, incarnation, sequence; encoding and raw_size|
| end    | producer | none                    | producer, incarnation, sequence, reason                       |
| tick   | consumer | none                    |                                                               |
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock_schemas import chunks
from penstock_schemas.errors import PenstockError, RejectedError
from penstock_schemas.ipc import END_OF_STREAM, has_compressed_body, to_ipc
from penstock_schemas.stream import METADATA_KEY, StreamSpec

if TYPE_CHECKING:
    from penstock_schemas.chunks import ChunkRows
    from penstock_schemas.log import Headers, Record, RecordHeaders

FORMAT = b"1"
MAX_MESSAGE_BYTES = 1 << 20
MAX_RAW_BYTES = 64 << 20
# What the headers, the key and the log's own framing of a record may take of a message's byte limit.
HEADER_BYTES = 1024
_MAX_NAME = 249
_MAX_DIGITS = 19
_NO_DESCRIPTION = (
    *(KeyError, TypeError, ValueError, OverflowError, RecursionError),
    SyntaxError,  # numpy evaluates parts of some dtype strings
    *(pa.ArrowException, PenstockError),
)


class Kind(StrEnum):
    """What a record is."""

    BEGIN = "begin"
    CHUNKS = "chunks"
    END = "end"
    TICK = "tick"


@dataclass(frozen=True, slots=True)
class Message:
    """A record that is wholly valid; what its kind does not have is at its default."""

    kind: Kind
    producer: str = ""
    incarnation: int = -1
    sequence: int = -1
    reason: str = ""
    start: str = ""
    spec: StreamSpec | None = None
    rows: ChunkRows | None = None

    @property
    def batch(self) -> pa.RecordBatch | None:
        """The chunk rows in the stream's schema; None where the kind has none."""
        return self.rows.batch if self.rows is not None else None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record's value and headers, ready to append."""

    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes on the wire, the log's own framing and the key left out."""
        named = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value or b"") + named


def encode_begin(spec: StreamSpec, producer: str, start: str) -> Encoded:
    """Encode the record whose offset becomes the producer's incarnation; `start` is unique to this start of it."""
    empty = pa.RecordBatch.from_pylist([], spec.schema)
    names = (("producer", producer.encode()), ("start", start.encode()))
    return Encoded(to_ipc(empty), (*_kind(Kind.BEGIN), ("schema", spec.fingerprint), *names))


def encode_chunks(
    spec: StreamSpec,
    batch: pa.RecordBatch,
    *,
    producer: str,
    incarnation: int,
    sequence: int,
    encoding: str | None = None,
) -> Encoded:
    """Encode one batch of chunk rows; `encoding` names an Arrow codec ("zstd") to compress the value with."""
    value = to_ipc(batch)
    headers = (
        *_kind(Kind.CHUNKS),
        ("schema", spec.fingerprint),
        ("producer", producer.encode()),
        ("incarnation", b"%d" % incarnation),
        ("sequence", b"%d" % sequence),
    )
    if encoding is None:
        return Encoded(value, headers)
    packed: bytes = pa.compress(value, codec=encoding, asbytes=True)
    return Encoded(packed, (*headers, ("encoding", encoding.encode()), ("raw_size", b"%d" % len(value))))


def encode_end(*, producer: str, incarnation: int, sequence: int, reason: str) -> Encoded:
    """Encode the record with which a producer stops: its open episodes end as aborted with `reason`."""
    headers = (
        *_kind(Kind.END),
        ("producer", producer.encode()),
        ("incarnation", b"%d" % incarnation),
        ("sequence", b"%d" % sequence),
        ("reason", reason.encode(errors="backslashreplace").decode()[:_MAX_NAME].encode()),
    )
    return Encoded(None, headers)


def encode_tick() -> Encoded:
    """Encode a record that does nothing but move the log's time."""
    return Encoded(None, _kind(Kind.TICK))


def decode(
    record: Record,
    spec: StreamSpec | None,
    *,
    max_bytes: int = MAX_MESSAGE_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Message:
    """Come to trust a record: size, headers, fingerprint, raw size, schema, buffers, rows, in this order.

    `spec` is the stream's; where it is not known yet, the record's own is taken if its fingerprint agrees.
    Raises `RejectedError` with the reason for which the record belongs into quarantine.
    """
    if record.size > max_bytes:
        raise RejectedError("oversized", f"{record.size} bytes: at most {max_bytes} are taken")
    headers = _Headers(record.headers)
    if headers.bytes("penstock") != FORMAT:
        raise RejectedError("format", f"format version {headers.bytes('penstock')!r}: this reader knows {FORMAT!r}")
    kind = headers.kind()
    if kind is Kind.TICK:
        return Message(kind)
    producer = headers.text("producer")
    incarnation, sequence = (record.offset, 0) if kind is Kind.BEGIN else _incarnation(headers, record.offset)
    if kind is Kind.END:
        return Message(kind, producer, incarnation, sequence, reason=headers.text("reason"))
    fingerprint = headers.bytes("schema")
    if spec is not None and fingerprint != spec.fingerprint:
        detail = f"{fingerprint.hex()[:16]}…: the stream {spec.stream!r} has {spec.fingerprint.hex()[:16]}…"
        raise RejectedError("fingerprint", detail)
    own, batch = _open(headers, record.value or b"", fingerprint, spec, max_raw_bytes)
    rows = chunks.check(batch, own)
    if kind is Kind.BEGIN:
        if batch.num_rows:
            raise RejectedError("rows", f"a begin record with {batch.num_rows} rows")
        return Message(kind, producer, incarnation, sequence, start=headers.text("start"), spec=own)
    if not batch.num_rows:
        raise RejectedError("rows", "a chunk message without rows")
    return Message(kind, producer, incarnation, sequence, spec=own, rows=rows)


def _incarnation(headers: _Headers, offset: int) -> tuple[int, int]:
    incarnation, sequence = headers.number("incarnation"), headers.number("sequence")
    if incarnation >= offset:
        detail = f"incarnation {incarnation} in a record at offset {offset}: a begin record comes first"
        raise RejectedError("headers", detail)
    return incarnation, sequence


def _open(
    headers: _Headers, value: bytes, fingerprint: bytes, spec: StreamSpec | None, max_raw_bytes: int
) -> tuple[StreamSpec, pa.RecordBatch]:
    if headers.has("encoding"):
        value = _decompress(headers, value, max_raw_bytes)
    try:
        source = pa.BufferReader(value)
        reader = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(_next(reader, "schema"))
        own = _known(schema, fingerprint, spec)
        message = _next(reader, "record batch")
        if message.metadata_version != pa.ipc.MetadataVersion.V5:
            # Earlier ones can ask for compressed buffers in a second way, which `has_compressed_body` does not see.
            raise RejectedError("invalid", "a record batch of an old metadata version: write it as version 5")
        if has_compressed_body(message.metadata.to_pybytes()):
            raise RejectedError("invalid", "compressed buffers: a value is compressed as a whole or not at all")
        batch = pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, OSError, EOFError, StopIteration, struct.error) as error:
        raise RejectedError("truncated", f"no whole Arrow stream: {error!r}") from error
    rest = source.read()
    if rest != END_OF_STREAM:
        if END_OF_STREAM.startswith(rest):
            raise RejectedError("truncated", "no whole Arrow stream: its end is missing")
        raise RejectedError("invalid", "more after the record batch: a message holds exactly one")
    return own, batch


def _next(reader: pa.ipc.MessageReader, expected: str) -> pa.ipc.Message:
    # pyarrow reads any message as the type that it is asked for, and crashes where it is another.
    message = reader.read_next_message()
    if message.type != expected:
        raise RejectedError("invalid", f"an Arrow message of type {message.type!r} where a {expected} belongs")
    return message


def _known(schema: pa.Schema, fingerprint: bytes, spec: StreamSpec | None) -> StreamSpec:
    own = spec
    if own is None:
        try:
            own = StreamSpec.from_json(json.loads((schema.metadata or {})[METADATA_KEY]))
            own.schema  # noqa: B018  (built here, so that a description that gives no schema is refused here)
        except _NO_DESCRIPTION as error:
            raise RejectedError("schema", f"no description of a stream in the schema: {error!r}") from error
        if own.fingerprint != fingerprint:
            raise RejectedError("fingerprint", "the header's is not the schema's own")
    if not schema.equals(own.schema, check_metadata=True):
        raise RejectedError("schema", f"the schema is not that of the stream {own.stream!r}")
    return own


def _decompress(headers: _Headers, value: bytes, max_raw_bytes: int) -> bytes:
    raw_size = headers.number("raw_size")
    if raw_size > max_raw_bytes:
        raise RejectedError("oversized", f"{raw_size} bytes when decompressed: at most {max_raw_bytes} are taken")
    encoding = headers.text("encoding")
    if encoding != "zstd":
        raise RejectedError("headers", f"content encoding {encoding!r}: only zstd is known")
    try:
        raw: bytes = pa.decompress(value, decompressed_size=raw_size, codec=encoding, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise RejectedError("truncated", f"does not decompress: {error}") from error
    return raw


def _kind(kind: Kind) -> Headers:
    return (("penstock", FORMAT), ("kind", kind.encode()))


class _Headers:
    """A record's headers, read by name; each may stand once."""

    def __init__(self, headers: RecordHeaders) -> None:
        self._values: dict[str, bytes] = {}
        for name, value in headers:
            if value is None:
                raise RejectedError("headers", f"header {name[:_MAX_NAME]!r} is null")
            self._values[name] = value
        if len(self._values) != len(headers):
            raise RejectedError("headers", "a header stands twice")

    def has(self, name: str) -> bool:
        return name in self._values

    def bytes(self, name: str) -> bytes:
        if name not in self._values:
            raise RejectedError("headers", f"header {name!r} is missing")
        return self._values[name]

    def text(self, name: str) -> str:
        value = self.bytes(name)
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            raise RejectedError("headers", f"header {name!r} is no UTF-8") from error
        if not text or len(text) > _MAX_NAME:
            raise RejectedError("headers", f"header {name!r} has {len(text)} characters: 1 to {_MAX_NAME} are taken")
        return text

    def number(self, name: str) -> int:
        value = self.bytes(name)
        if not value.isdigit() or len(value) > _MAX_DIGITS or (number := int(value)) >= 1 << 63:
            raise RejectedError("headers", f"header {name!r} is no number: {value[:32]!r}")
        return number

    def kind(self) -> Kind:
        value = self.text("kind")
        try:
            return Kind(value)
        except ValueError as error:
            raise RejectedError("headers", f"kind {value!r} is unknown") from error
