"""Messages that were valid once: what a broken disk, a broken producer or a hostile one makes of them.

Every choice comes from a `Chooser`, so that hypothesis and a plain random generator make the same kinds of cases.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import Ends
from penstock_schemas.columns import Column
from penstock_schemas.ipc import END_OF_STREAM, to_ipc
from penstock_schemas.log import Record
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks, encode_end, encode_tick
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from penstock_schemas.stream import METADATA_KEY, StreamSpec
from tests.schemas.batches import Row, make_batch, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_schemas.log import RecordHeaders

T = TypeVar("T")

OFFSET = 40
PRODUCER, INCARNATION = "pod-0", 7
PLAIN = stream(Box((2,), np.dtype(np.float32)))
RICH = stream(
    Dict((("place", Box((3,), np.dtype(np.uint8))), ("said", Text(12)), ("flags", MultiBinary((2, 2))))),
    Tuple((Discrete(4, 1), MultiDiscrete((2,), (3, 2), (0, 0)))),
    extras=[Column("logits", (3,), np.dtype(np.float16), nullable=True), Column("note", (), np.dtype(object))],
    infos=[Column("info.lives", (), np.dtype(np.int32), overlap=True, nullable=True)],
    states=[Column("state.memory", (2,), np.dtype(np.float32))],
    metrics=["score"],
)
ROWS = (
    Row(seed=3, ends=Ends.TERMINATED, steps=3),
    Row(episode=1, steps=2),
    Row(env=1, chunk=2, first_step=5, ends=Ends.ABORTED, abort_reason="gap", steps=1),
    Row(env=4, continues=0, episode=2, steps=4),
)
EXTREMES = (0, 1, -1, 2, 7, 8, 64, 127, 255, 1 << 16, (1 << 24) + 1, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1)


class Chooser(Protocol):
    """Chooses a number from 0 to `below` - 1."""

    def __call__(self, below: int) -> int: ...


@dataclass(frozen=True)
class Case:
    """A record's value and headers, and the stream's description where the reader knows it."""

    value: bytes | None
    headers: RecordHeaders
    spec: StreamSpec | None

    @property
    def record(self) -> Record:
        return Record("rollouts.test", 0, OFFSET, 0, PRODUCER.encode(), self.value, self.headers)


def _valid(spec: StreamSpec) -> tuple[Encoded, ...]:
    batch = make_batch(spec, list(ROWS))
    of = {"producer": PRODUCER, "incarnation": INCARNATION}
    return (
        encode_begin(spec, PRODUCER, "a-start"),
        encode_chunks(spec, batch, **of, sequence=3),
        encode_chunks(spec, batch, **of, sequence=3, encoding="zstd"),
        encode_end(**of, sequence=4, reason="stopped"),
        encode_tick(),
    )


SPECS = (PLAIN, RICH)
VALID = {spec.fingerprint: _valid(spec) for spec in SPECS}


def make(choose: Chooser) -> Case:
    """Make a case: a valid message, changed in one to four ways."""
    spec = pick(choose, SPECS)
    encoded = pick(choose, VALID[spec.fingerprint])
    known = spec if choose(2) else None
    case = Case(encoded.value, encoded.headers, known)
    for _ in range(1 + choose(4)):
        case = pick(choose, CHANGES)(choose, case, spec)
    return case


def pick(choose: Chooser, among: Sequence[T]) -> T:
    return among[choose(len(among))]


def _bytes(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """Bits, bytes, words of 4 and 8 bytes, runs copied, cut and put in."""
    return replace(case, value=_garbled(choose, case.value or b""))


def _garbled(choose: Chooser, value: bytes) -> bytes:
    data = bytearray(value or b"\0")
    for _ in range(1 + choose(3)):
        at = choose(len(data))
        match choose(7):
            case 0:
                data[at] ^= 1 << choose(8)
            case 1:
                data[at] = choose(256)
            case 2 | 3 as wide:
                size, code = (4, "<I") if wide == 2 else (8, "<Q")
                at -= at % size
                data[at : at + size] = struct.pack(code, pick(choose, EXTREMES) % (1 << 8 * size))
            case 4:
                source, length = choose(len(data)), 1 + choose(64)
                data[at : at + length] = data[source : source + length]
            case 5:
                del data[at : at + 1 + choose(64)]
            case 6:
                data[at:at] = bytes([choose(256)]) * (1 + choose(32))
        if not data:
            return b""
    return bytes(data)


def _offsets(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """A 32-bit word near the front of the flatbuffers, where tables and vectors are found, moved a little."""
    data = bytearray(case.value or b"")
    if len(data) < 8:
        return case
    at = 4 * choose(min(len(data), 4096) // 4)
    (word,) = struct.unpack_from("<i", data.ljust(at + 4, b"\0"), at)
    data[at : at + 4] = struct.pack("<I", (word + pick(choose, (-8, -4, -1, 1, 4, 8, 1024, -1024))) % (1 << 32))
    return replace(case, value=bytes(data))


def _cut(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """Truncation, of either side."""
    value = case.value or b""
    at = choose(len(value) + 1)
    return replace(case, value=value[:at] if choose(2) else value[at:])


def _spliced(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """The front of one message and the back of another, of this stream or another."""
    other = pick(choose, VALID[pick(choose, SPECS).fingerprint]).value or b""
    value = case.value or b""
    return replace(case, value=value[: 8 * choose(len(value) // 8 + 1)] + other[8 * choose(len(other) // 8 + 1) :])


def _headers(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """A header changed, missing, null, twice, or of another kind of message."""
    headers = list(case.headers)
    if not headers:
        return case
    at = choose(len(headers))
    name, value = headers[at]
    match choose(7):
        case 0:
            headers[at] = (name, _garbled(choose, value or b""))
        case 1:
            del headers[at]
        case 2:
            headers[at] = (name, None)
        case 3:
            headers.append(headers[at])
        case 4:
            headers[at] = (name, str(pick(choose, EXTREMES)).encode())
        case 5:
            headers = list(pick(choose, VALID[spec.fingerprint]).headers)
        case 6:
            headers[at] = (name, bytes([choose(256)]) * pick(choose, (0, 1, 249, 250, 100_000)))
    return replace(case, headers=tuple(headers))


def _packed(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """Compressed anew, so that what was changed inside gets through; the size may lie, the content be a bomb."""
    raw = case.value or b""
    match choose(4):
        case 0:
            raw = _garbled(choose, raw)
        case 1:
            raw = bytes(pick(choose, (1 << 16, 1 << 22, (1 << 23) + 1)))
        case 2:
            raw += bytes(1 << 20)
    size = len(raw) if choose(3) else pick(choose, EXTREMES)
    headers = {**dict(case.headers), "encoding": b"zstd", "raw_size": str(size).encode()}
    return replace(case, value=pa.compress(raw, codec="zstd", asbytes=True), headers=tuple(headers.items()))


def _unpacked_anew(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """Another Arrow schema under the stream's headers: other types, other fields, metadata that lies."""
    schema = spec.schema
    at = choose(len(schema))
    field = schema.field(at)
    match choose(6):
        case 0:
            schema = schema.set(at, field.with_type(pick(choose, TYPES)))
        case 1:
            schema = schema.remove(at)
        case 2:
            schema = schema.insert(at, pa.field("more", pick(choose, TYPES)))
        case 3:
            schema = schema.set(at, field.with_nullable(not field.nullable))
        case 4:
            schema = schema.set(at, field.with_metadata({"ARROW:extension:name": "arrow.uuid"}))
        case 5:
            schema = schema.with_metadata({**schema.metadata, b"k" * (1 + choose(9)): b"v" * (1 + choose(100_000))})
    arrays = [pa.nulls(2, one.type) for one in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    options = pa.ipc.IpcWriteOptions(compression=pick(choose, (None, None, "zstd", "lz4")))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(batch)
    return replace(case, value=sink.getvalue().to_pybytes())


TYPES = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.float64(), pa.string(), pa.large_string(), pa.binary(0)),
    *(pa.string_view(), pa.list_(pa.null()), pa.list_(pa.string()), pa.large_list(pa.int8()), pa.list_view(pa.int8())),
    *(pa.list_(pa.int8(), 0), pa.list_(pa.int8(), 1 << 20), pa.struct([]), pa.map_(pa.int8(), pa.int8())),
    *(pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int16(), pa.int8()), pa.decimal128(38)),
)


def _described(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """A begin record of a stream whose description was changed somewhere, with a fingerprint that agrees."""
    described = _changed_somewhere(choose, spec.to_json())
    text = json.dumps(described).encode()
    try:
        other = StreamSpec.from_json(json.loads(text))
        fingerprint, schema = other.fingerprint, other.schema
    except Exception:  # noqa: BLE001 - whatever it raises: the reader must make a rejection of it
        fingerprint, schema = b"\0" * 32, spec.schema
    empty = pa.RecordBatch.from_arrays(
        [pa.nulls(0, one.type) for one in schema], schema=schema.with_metadata({METADATA_KEY: text})
    )
    headers = {**dict(VALID[spec.fingerprint][0].headers), "schema": fingerprint}
    return Case(to_ipc(empty), tuple(headers.items()), case.spec)


def _changed_somewhere(choose: Chooser, described: Any) -> Any:
    match described:
        case dict() if described and choose(6):
            name = pick(choose, sorted(described))
            return described | {name: _changed_somewhere(choose, described[name])}
        case list() if described and choose(6):
            at = choose(len(described))
            return [*described[:at], _changed_somewhere(choose, described[at]), *described[at + 1 :]]
        case _:
            return pick(choose, ODD)


ODD = (
    *(None, True, "", "text", "int8", "object", "(2)f4", "\ud800", [], {}, [[]], 1.5, float("nan"), *EXTREMES),
    *([1 << 28], [1 << 31], [1 << 40, 1 << 40], [0], [-1], ["2"], "x" * 100_000, [[[[]]]] * 1000, [2] * 64),
    *({"type": "Discrete", "n": 1 << 62, "start": 0, "dtype": "int64"}, {"type": "MultiBinary", "shape": [1 << 28]}),
    {"type": "Tuple", "spaces": []},
)


def _rows(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """A batch of the right schema, with rows that no producer would write."""
    rows = [
        replace(
            row,
            env=_number(choose, row.env, 32),
            episode=_number(choose, row.episode, 64),
            chunk=_number(choose, row.chunk, 32),
            first_step=_number(choose, row.first_step, 64),
            ends=_number(choose, int(row.ends), 8) % 256,
            policy_version=_number(choose, row.policy_version, 64),
            exploration=_number(choose, int(row.exploration), 8) % 256,
            steps=choose(4),
        )
        for row in ROWS[: choose(len(ROWS) + 1)]
    ]
    return replace(case, value=to_ipc(make_batch(spec, rows)), headers=VALID[spec.fingerprint][1].headers)


def _inflated(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """A batch of the right schema whose buffers are compressed one by one, and say that they are larger."""
    options = pa.ipc.IpcWriteOptions(compression=pick(choose, ("zstd", "lz4")))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, spec.schema, options=options) as writer:
        writer.write_batch(make_batch(spec, list(ROWS)))
    data = bytearray(sink.getvalue().to_pybytes())
    # Each compressed buffer begins with its size.
    sizes = [at for at in range(0, len(data) - 8, 8) if data[at + 8 : at + 12] in _COMPRESSED]
    for _ in range(1 + choose(3)):
        at = pick(choose, sizes)
        data[at : at + 8] = struct.pack("<q", pick(choose, (1 << 26, 1 << 28, (1 << 31) - 1, 1 << 40, -1, 0)))
    return replace(case, value=bytes(data), headers=VALID[spec.fingerprint][1].headers)


# How a frame of zstd begins, and one of lz4.
_COMPRESSED = (bytes.fromhex("28b52ffd"), bytes.fromhex("04224d18"))


def _number(choose: Chooser, number: int, bits: int) -> int:
    if choose(8):
        return number
    half = 1 << bits - 1
    return (pick(choose, EXTREMES) + half) % (1 << bits) - half


def _batches(choose: Chooser, case: Case, spec: StreamSpec) -> Case:
    """Arrow messages in another order, or another number."""
    value = VALID[spec.fingerprint][1].value
    assert value is not None
    parts = [message.serialize().to_pybytes() for message in pa.ipc.MessageReader.open_stream(value)]
    laid = [pick(choose, (*parts, END_OF_STREAM, b"\xff\xff\xff\xff")) for _ in range(choose(5))]
    return replace(case, value=b"".join(laid), headers=VALID[spec.fingerprint][1].headers)


CHANGES: tuple[Callable[[Chooser, Case, StreamSpec], Case], ...] = (
    *(_bytes, _bytes, _bytes, _offsets, _offsets, _cut, _spliced, _headers, _headers),
    *(_packed, _unpacked_anew, _described, _rows, _batches, _inflated),
)
