from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_schemas import messages
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import Column, item_values, list_offsets, list_valid, list_values
from penstock_schemas.errors import RejectedError
from penstock_schemas.ipc import END_OF_STREAM, has_compressed_body, to_ipc
from penstock_schemas.log import Record
from penstock_schemas.messages import (
    Encoded,
    Kind,
    Message,
    decode,
    encode_begin,
    encode_chunks,
    encode_end,
    encode_tick,
)
from penstock_schemas.spaces import Box, leaves
from penstock_schemas.stream import METADATA_KEY, ROW_FIELDS, StreamSpec
from tests.schemas.batches import Row, make_batch, make_rows, stream
from tests.schemas.random_spaces import items_of, same_bits
from tests.schemas.random_streams import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_schemas.log import RecordHeaders

OFFSET = 40
SPEC = stream(
    Box((2,), np.dtype(np.float32)),
    extras=[Column("logits", (3,), np.dtype(np.float16), nullable=True)],
    states=[Column("state.memory", (2,), np.dtype(np.float32))],
    metrics=["score"],
)
BATCH = make_batch(SPEC, [Row(seed=3), Row(env=1, chunk=2, first_step=5, ends=Ends.TERMINATED)])
BEGIN = encode_begin(SPEC, "pod-0", "a-start")
CHUNKS = encode_chunks(SPEC, BATCH, producer="pod-0", incarnation=7, sequence=3)
ZSTD = encode_chunks(SPEC, BATCH, producer="pod-0", incarnation=7, sequence=3, encoding="zstd")
END = encode_end(producer="pod-0", incarnation=7, sequence=4, reason="stopped")
TICK = encode_tick()
ALL = {"begin": BEGIN, "chunks": CHUNKS, "zstd": ZSTD, "end": END, "tick": TICK}


def record(encoded: Encoded, offset: int = OFFSET) -> Record:
    return Record("rollouts.test", 0, offset, 0, b"pod-0", encoded.value, encoded.headers)


def with_headers(encoded: Encoded, **changes: bytes | None) -> Encoded:
    """The same with some headers changed, added or, where None, left out."""
    headers = {**dict(encoded.headers), **changes}
    return Encoded(encoded.value, tuple((name, value) for name, value in headers.items() if value is not None))


def with_value(encoded: Encoded, value: bytes | None) -> Encoded:
    return Encoded(value, encoded.headers)


def rejection(encoded: Encoded, spec: StreamSpec | None = SPEC, offset: int = OFFSET, **limits: int) -> tuple[str, str]:
    """The reason for which it is rejected, and what is said about it."""
    with pytest.raises(RejectedError) as caught:
        decode(record(encoded, offset), spec, **limits)
    reason, _, detail = str(caught.value).partition(": ")
    assert reason == caught.value.reason
    return reason, detail


def ipc(
    *batches: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None, metadata: dict[str, str] | None = None
) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch, custom_metadata=metadata)
    value: bytes = sink.getvalue().to_pybytes()
    return value


# What is said comes back.


@pytest.mark.parametrize("spec", [SPEC, None], ids=["known", "learned"])
def test_a_begin_returns(spec: StreamSpec | None) -> None:
    message = decode(record(BEGIN), spec)
    assert message == Message(Kind.BEGIN, "pod-0", OFFSET, 0, start="a-start", spec=SPEC)


@pytest.mark.parametrize("encoding", [None, "zstd"])
@pytest.mark.parametrize("spec", [SPEC, None], ids=["known", "learned"])
def test_chunks_return(encoding: str | None, spec: StreamSpec | None) -> None:
    encoded = encode_chunks(SPEC, BATCH, producer="pod-0", incarnation=7, sequence=3, encoding=encoding)
    message = decode(record(encoded), spec)
    assert (message.kind, message.producer, message.incarnation, message.sequence) == (Kind.CHUNKS, "pod-0", 7, 3)
    assert message.spec == SPEC
    assert message.batch is not None
    assert message.batch.equals(BATCH, check_metadata=True)


@settings(deadline=None)
@given(streams(), st.data(), st.sampled_from([None, "zstd"]), st.booleans())
def test_any_chunks_of_any_stream_return_bit_for_bit(
    spec: StreamSpec, data: st.DataObject, encoding: str | None, known: bool
) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    rows = make_rows(generator, envs=data.draw(st.integers(1, 3)), chunks=data.draw(st.integers(1, 3)))
    counts = {overlap: sum(row.steps + overlap for row in rows) for overlap in (False, True)}
    leaf_columns = zip(
        (*leaves(spec.observation), *leaves(spec.action)),
        (*spec.observation_columns, *spec.action_columns),
        strict=True,
    )
    values = {column.name: data.draw(items_of(leaf.space, counts[column.overlap])) for leaf, column in leaf_columns}
    batch = make_batch(spec, rows, generator=generator, values=values)
    encoded = encode_chunks(spec, batch, producer="p", incarnation=0, sequence=0, encoding=encoding)
    message = decode(record(encoded), spec if known else None)
    assert message.spec == spec
    assert message.batch is not None
    assert message.batch.schema.equals(spec.schema, check_metadata=True)
    for column in spec.columns:
        back, sent = (of.column(column.name) for of in (message.batch, batch))
        assert list_offsets(back).tolist() == list_offsets(sent).tolist()
        assert str(list_valid(back)) == str(list_valid(sent))
        assert same_bits(list_values(back, column), values.get(column.name, list_values(sent, column))), column.name
    for state in spec.states:
        returned, given_ = (item_values(of.column(state.name), state) for of in (message.batch, batch))
        assert same_bits(returned, given_), state.name
    fixed = [field.name for field in (*ROW_FIELDS, *spec.metric_columns)]
    assert message.batch.select(fixed).equals(batch.select(fixed))


def test_an_end_returns() -> None:
    assert decode(record(END), SPEC) == Message(Kind.END, "pod-0", 7, 4, reason="stopped")


def test_the_reason_of_an_end_is_cut_to_what_is_taken() -> None:
    encoded = encode_end(producer="p", incarnation=0, sequence=0, reason="é" * 1000)
    assert decode(record(encoded), SPEC).reason == "é" * 249
    # As what cannot be written comes to: more characters than it was.
    encoded = encode_end(producer="p", incarnation=0, sequence=0, reason="/data/\udcff " + "x" * 300)
    assert decode(record(encoded), SPEC).reason == ("/data/\\udcff " + "x" * 300)[:249]


def test_a_tick_returns() -> None:
    assert decode(record(TICK), None) == Message(Kind.TICK)


def test_zstd_makes_it_smaller() -> None:
    assert CHUNKS.value is not None
    assert ZSTD.value is not None
    assert len(ZSTD.value) < len(CHUNKS.value)
    assert dict(ZSTD.headers)["raw_size"] == b"%d" % len(CHUNKS.value)


@pytest.mark.parametrize("name", ALL)
def test_the_size_is_that_of_the_record_without_its_key(name: str) -> None:
    assert ALL[name].size == record(ALL[name]).size - len(b"pod-0")


@pytest.mark.parametrize("value", [CHUNKS.value, BEGIN.value], ids=["chunks", "begin"])
def test_any_arrow_reader_opens_the_value_and_finds_one_batch(value: bytes) -> None:
    with pa.ipc.open_stream(value) as reader:
        batches = list(reader)
    assert len(batches) == 1
    assert batches[0].schema.equals(SPEC.schema, check_metadata=True)


# Size.


@pytest.mark.parametrize("name", ALL)
def test_a_record_over_the_limit_is_oversized(name: str) -> None:
    size = record(ALL[name]).size
    decode(record(ALL[name]), SPEC, max_bytes=size)
    assert rejection(ALL[name], max_bytes=size - 1) == ("oversized", f"{size} bytes: at most {size - 1} are taken")


def test_what_is_oversized_is_not_even_looked_at() -> None:
    assert rejection(Encoded(bytes(1 << 20), ()))[0] == "oversized"


# Headers.


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("begin", name) for name in ("penstock", "kind", "schema", "producer")),
        *(("chunks", name) for name in ("penstock", "kind", "schema", "producer", "incarnation", "sequence")),
        ("zstd", "raw_size"),
        *(("end", name) for name in ("penstock", "kind", "producer", "incarnation", "sequence", "reason")),
        *(("tick", name) for name in ("penstock", "kind")),
    ],
)
def test_a_missing_header_is_named(kind: str, name: str) -> None:
    assert rejection(with_headers(ALL[kind], **{name: None})) == ("headers", f"header {name!r} is missing")


@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "kind") for kind in ALL), ("chunks", "schema"), ("zstd", "encoding"), ("tick", "more")]
)
def test_a_null_header_is_named(kind: str, name: str) -> None:
    null = replace(record(ALL[kind]), headers=tuple({**dict(ALL[kind].headers), name: None}.items()))
    with pytest.raises(RejectedError, match=f"^headers: header {name!r} is null$") as caught:
        decode(null, SPEC)
    assert caught.value.reason == "headers"


@pytest.mark.parametrize("kind", ALL)
def test_a_header_that_stands_twice_is_refused(kind: str) -> None:
    encoded = ALL[kind]
    twice = Encoded(encoded.value, (*encoded.headers, encoded.headers[0]))
    assert rejection(twice) == ("headers", "a header stands twice")


@pytest.mark.parametrize("name", ["incarnation", "sequence", "raw_size"])
@pytest.mark.parametrize(
    "value", [b"", b"-1", b"1.0", b" 1", b"1_0", "٣".encode(), b"9" * 20, b"9223372036854775808", b"\xff"]
)
def test_a_number_that_is_none_is_named(name: str, value: bytes) -> None:
    garbled = with_headers(ZSTD, **{name: value})
    assert rejection(garbled) == ("headers", f"header {name!r} is no number: {value!r}")


@pytest.mark.parametrize("name", ["producer", "kind", "reason"])
@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (b"", "has 0 characters: 1 to 249 are taken"),
        (b"x" * 250, "has 250 characters: 1 to 249 are taken"),
        (b"\xff\xfe", "is no UTF-8"),
    ],
    ids=["empty", "long", "garbled"],
)
def test_a_text_that_is_none_is_named(name: str, value: bytes, detail: str) -> None:
    assert rejection(with_headers(END, **{name: value})) == ("headers", f"header {name!r} {detail}")


def test_another_format_version_is_refused() -> None:
    assert rejection(with_headers(CHUNKS, penstock=b"2")) == ("format", "format version b'2': this reader knows b'1'")


def test_an_unknown_kind_is_refused() -> None:
    assert rejection(with_headers(CHUNKS, kind=b"gossip")) == ("headers", "kind 'gossip' is unknown")


@pytest.mark.parametrize("encoded", [CHUNKS, ZSTD, END], ids=["chunks", "zstd", "end"])
@pytest.mark.parametrize("incarnation", [OFFSET, OFFSET + 1, (1 << 63) - 1])
def test_an_incarnation_is_below_the_offset(encoded: Encoded, incarnation: int) -> None:
    late = with_headers(encoded, incarnation=b"%d" % incarnation)
    detail = f"incarnation {incarnation} in a record at offset {OFFSET}: a begin record comes first"
    assert rejection(late) == ("headers", detail)
    assert decode(record(late, offset=(1 << 63)), SPEC).incarnation == incarnation


# Fingerprint, before anything of the value is read.


@pytest.mark.parametrize("value", [CHUNKS.value, b"garbage", None], ids=["whole", "garbage", "none"])
def test_another_fingerprint_is_refused_before_the_value_is_read(value: bytes | None) -> None:
    other = with_value(with_headers(CHUNKS, schema=b"\xab" * 32), value)
    expected = f"{'ab' * 8}…: the stream 'test' has {SPEC.fingerprint.hex()[:16]}…"
    assert rejection(other) == ("fingerprint", expected)


@pytest.mark.parametrize("encoded", [BEGIN, CHUNKS, ZSTD], ids=["begin", "chunks", "zstd"])
def test_a_fingerprint_that_is_not_the_schemas_own_is_refused(encoded: Encoded) -> None:
    lying = with_headers(encoded, schema=b"\xab" * 32)
    assert rejection(lying, None) == ("fingerprint", "the header's is not the schema's own")


# The raw size, before anything is decompressed.


def test_a_raw_size_over_the_cap_is_refused_before_decompressing() -> None:
    raw_size = int(dict(ZSTD.headers)["raw_size"])
    decode(record(ZSTD), SPEC, max_raw_bytes=raw_size)
    detail = f"{raw_size} bytes when decompressed: at most {raw_size - 1} are taken"
    assert rejection(ZSTD, max_raw_bytes=raw_size - 1) == ("oversized", detail)
    assert rejection(with_value(ZSTD, b"no zstd"), max_raw_bytes=raw_size - 1) == ("oversized", detail)


@pytest.mark.parametrize("difference", [-1, 1, 1 << 20])
def test_a_lying_raw_size_is_refused(difference: int) -> None:
    raw_size = int(dict(ZSTD.headers)["raw_size"]) + difference
    reason, detail = rejection(with_headers(ZSTD, raw_size=b"%d" % raw_size))
    assert reason == "truncated"
    assert detail.startswith("does not decompress: ")


def test_a_small_raw_size_does_not_let_a_bomb_through() -> None:
    bomb = pa.compress(bytes(messages.MAX_RAW_BYTES + 1), codec="zstd", asbytes=True)
    assert len(bomb) < messages.MAX_MESSAGE_BYTES
    assert rejection(with_value(ZSTD, bomb))[0] == "truncated"


@pytest.mark.parametrize("codec", ["gzip", "lz4_raw", "snappy", "brotli", "none"])
def test_another_encoding_is_refused(codec: str) -> None:
    other = with_headers(ZSTD, encoding=codec.encode())
    assert rejection(other) == ("headers", f"content encoding {codec!r}: only zstd is known")


# The value.


@pytest.mark.parametrize("name", ["begin", "chunks", "zstd"])
@pytest.mark.parametrize("spec", [SPEC, None], ids=["known", "learned"])
def test_a_value_cut_anywhere_is_truncated(name: str, spec: StreamSpec | None) -> None:
    whole = ALL[name].value
    assert whole is not None
    reasons = {rejection(with_value(ALL[name], whole[:length]), spec)[0] for length in range(len(whole))}
    assert reasons == {"truncated"}


@pytest.mark.parametrize("name", ["begin", "chunks", "zstd"])
def test_no_value_at_all_is_truncated(name: str) -> None:
    assert rejection(with_value(ALL[name], None))[0] == "truncated"


def test_a_stream_without_its_end_is_truncated() -> None:
    assert CHUNKS.value is not None
    assert CHUNKS.value.endswith(END_OF_STREAM)
    for missing in range(1, len(END_OF_STREAM) + 1):
        cut = with_value(CHUNKS, CHUNKS.value[:-missing])
        assert rejection(cut) == ("truncated", "no whole Arrow stream: its end is missing")


@pytest.mark.parametrize("rest", [b"\x00", b"garbage", struct.pack("<iI", -1, 1 << 30)])
@pytest.mark.parametrize("end", [END_OF_STREAM, b""], ids=["after its end", "instead of it"])
def test_more_after_the_batch_is_refused(end: bytes, rest: bytes) -> None:
    assert CHUNKS.value is not None
    longer = with_value(CHUNKS, CHUNKS.value.removesuffix(END_OF_STREAM) + end + rest)
    assert rejection(longer) == ("invalid", "more after the record batch: a message holds exactly one")


def test_two_batches_are_refused() -> None:
    twice = with_value(CHUNKS, ipc(BATCH, BATCH))
    assert rejection(twice) == ("invalid", "more after the record batch: a message holds exactly one")


def test_a_schema_without_a_batch_is_truncated() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, SPEC.schema).close()
    assert rejection(with_value(CHUNKS, sink.getvalue().to_pybytes()))[0] == "truncated"


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_buffers_compressed_one_by_one_are_refused(codec: str) -> None:
    value = ipc(BATCH, options=pa.ipc.IpcWriteOptions(compression=codec))
    detail = "compressed buffers: a value is compressed as a whole or not at all"
    assert rejection(with_value(CHUNKS, value)) == ("invalid", detail)


def test_buffers_compressed_as_old_arrow_did_are_refused() -> None:
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    value = ipc(BATCH, options=options, metadata={"ARROW:experimental_compression": "zstd"})
    detail = "a record batch of an old metadata version: write it as version 5"
    assert rejection(with_value(CHUNKS, value)) == ("invalid", detail)


def test_compression_is_seen_in_a_batch_and_its_absence_too() -> None:
    for codec, expected in ((None, False), ("zstd", True)):
        value = ipc(BATCH, options=pa.ipc.IpcWriteOptions(compression=codec))
        reader = pa.ipc.MessageReader.open_stream(value)
        reader.read_next_message()
        assert has_compressed_body(reader.read_next_message().metadata.to_pybytes()) is expected


@pytest.mark.parametrize("metadata", [b"", b"\x04\x00", b"\xff" * 64, bytes(64)])
def test_what_is_no_flatbuffer_is_a_struct_error(metadata: bytes) -> None:
    with pytest.raises(struct.error):
        has_compressed_body(metadata)


def test_a_batch_in_the_place_of_the_schema_is_refused() -> None:
    """Asked for the schema of another message, pyarrow reads memory that is none."""
    assert CHUNKS.value is not None
    reader = pa.ipc.MessageReader.open_stream(CHUNKS.value)
    schema, batch = (message.serialize().to_pybytes() for message in reader)
    swapped = with_value(CHUNKS, batch + schema + END_OF_STREAM)
    assert rejection(swapped) == ("invalid", "an Arrow message of type 'record batch' where a schema belongs")
    doubled = with_value(CHUNKS, schema + schema + END_OF_STREAM)
    assert rejection(doubled) == ("invalid", "an Arrow message of type 'schema' where a record batch belongs")


# The schema.


def as_stream(described: Any) -> Encoded:
    """A begin whose schema holds this description."""
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    empty = pa.RecordBatch.from_pylist([], SPEC.schema.with_metadata({METADATA_KEY: text}))
    return with_value(BEGIN, to_ipc(empty))


@pytest.mark.parametrize(
    "described",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"9" * 10_000,
        None,
        [],
        "text",
        {},
        SPEC.to_json() | {"env": 5},
        SPEC.to_json() | {"env": {"a": float("nan")}},
        SPEC.to_json() | {"observation": []},
        SPEC.to_json() | {"observation": {"type": "Text"}},
        SPEC.to_json() | {"observation": SPEC.observation.to_json() | {"shape": [-1]}},
        SPEC.to_json() | {"observation": SPEC.observation.to_json() | {"shape": ["2"]}},
        SPEC.to_json() | {"observation": SPEC.observation.to_json() | {"shape": [1 << 40, 1 << 40]}},
        SPEC.to_json() | {"action": {"type": "Discrete", "n": 1 << 70, "start": 0, "dtype": "int64"}},
        SPEC.to_json() | {"reward": "(1 1)f4,i4"},
        SPEC.to_json() | {"reward": "object"},
        SPEC.to_json() | {"extras": [{"name": 5, "shape": [], "dtype": "float32"}]},
        SPEC.to_json() | {"extras": [{"name": "\ud800", "shape": [], "dtype": "float32"}]},
        SPEC.to_json() | {"extras": [{"name": "reward", "shape": [], "dtype": "float32"}]},
        *(SPEC.to_json() | {kind: [{"name": 5, "shape": [], "dtype": "float32"}]} for kind in ("infos", "states")),
        SPEC.to_json() | {"states": [{"name": "state.a", "shape": [], "dtype": "str"}]},
        SPEC.to_json() | {"states": [{"name": "state.a", "shape": [], "dtype": "int8", "nullable": True}]},
        SPEC.to_json() | {"states": [{"name": "state.\ud800", "shape": [], "dtype": "int8"}]},
        *(SPEC.to_json() | {"metrics": metrics} for metrics in (None, 5, [5], [None], [["a"]], [""], ["a", "a"])),
        SPEC.to_json() | {"metrics": ["\ud800"]},
    ],
    ids=lambda described: repr(described)[:30],
)
def test_a_schema_that_describes_no_stream_is_refused(described: Any) -> None:
    reason, detail = rejection(as_stream(described), None)
    assert reason == "schema"
    assert detail.startswith("no description of a stream in the schema: ")


def test_a_schema_that_describes_nothing_is_refused() -> None:
    empty = pa.RecordBatch.from_pylist([], SPEC.schema.remove_metadata())
    reason, detail = rejection(with_value(BEGIN, to_ipc(empty)), None)
    assert (reason, detail[:41]) == ("schema", "no description of a stream in the schema:")


def _renamed(schema: pa.Schema) -> pa.Schema:
    return schema.set(0, schema.field(0).with_name("environment"))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return schema.set(0, schema.field(0).with_nullable(nullable=True))


def _wider(schema: pa.Schema) -> pa.Schema:
    return schema.set(0, schema.field(0).with_type(pa.int64()))


def _reordered(schema: pa.Schema) -> pa.Schema:
    return pa.schema([schema.field(1), schema.field(0), *list(schema)[2:]], schema.metadata)


def _bare(schema: pa.Schema) -> pa.Schema:
    at = schema.get_field_index("observation")
    return schema.set(at, schema.field(at).remove_metadata())


def _longer(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field("more", pa.int8()))


def _chatty(schema: pa.Schema) -> pa.Schema:
    return schema.with_metadata({**schema.metadata, b"more": b"1"})


@pytest.mark.parametrize("change", [_renamed, _nullable, _wider, _reordered, _bare, _longer, _chatty])
@pytest.mark.parametrize("spec", [SPEC, None], ids=["known", "learned"])
def test_a_schema_other_than_the_streams_is_refused(
    change: Callable[[pa.Schema], pa.Schema], spec: StreamSpec | None
) -> None:
    empty = pa.RecordBatch.from_pylist([], change(SPEC.schema))
    assert rejection(with_value(BEGIN, to_ipc(empty)), spec) == (
        "schema",
        "the schema is not that of the stream 'test'",
    )


# The rows.


def test_a_begin_has_no_rows() -> None:
    assert rejection(with_value(BEGIN, CHUNKS.value)) == ("rows", "a begin record with 2 rows")


def test_chunks_have_rows() -> None:
    assert rejection(with_value(CHUNKS, BEGIN.value)) == ("rows", "a chunk message without rows")


def test_rows_that_break_a_rule_are_refused() -> None:
    broken = make_batch(SPEC, [Row(env=-1)])
    assert rejection(encode_chunks(SPEC, broken, producer="p", incarnation=0, sequence=0)) == (
        "rows",
        "column 'env' has the negative value -1",
    )


# Whatever comes: a valid message or a rejection, nothing else.


REASONS = {"oversized", "headers", "format", "fingerprint", "truncated", "schema", "invalid", "rows"}


def judged(value: bytes | None, headers: RecordHeaders, spec: StreamSpec | None) -> None:
    """Decode; a message that is taken can be read through and encoded again."""
    message = None
    reason = ""
    try:
        message = decode(Record("rollouts.test", 0, OFFSET, 0, b"pod-0", value, headers), spec)
    except RejectedError as rejected:
        reason = rejected.reason
    if message is None:
        assert reason in REASONS
        return
    if message.batch is None:
        return
    assert message.spec is not None
    for column in message.spec.columns:
        assert list_values(message.batch.column(column.name), column).shape[1:] == column.shape
    again = encode_chunks(
        message.spec,
        message.batch,
        producer=message.producer,
        incarnation=message.incarnation,
        sequence=message.sequence,
    )
    assert decode(record(again), message.spec).batch is not None


EXTREMES = (0, 1, -1, 8, 127, (1 << 31) - 1, -(1 << 31))


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Encoded, bytes]:
    encoded = draw(st.sampled_from([BEGIN, CHUNKS, ZSTD]))
    assert encoded.value is not None
    value = bytearray(encoded.value)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(value) - 1))
        match draw(st.sampled_from(["bit", "byte", "word", "copy", "cut", "insert"])):
            case "bit":
                value[at] ^= 1 << draw(st.integers(0, 7))
            case "byte":
                value[at] = draw(st.integers(0, 255))
            case "word":
                at &= ~3
                value[at : at + 4] = draw(st.sampled_from(EXTREMES)).to_bytes(4, "little", signed=True)
            case "copy":
                length, source = draw(st.integers(1, 64)), draw(st.integers(0, len(value) - 1))
                value[at : at + length] = value[source : source + length]
            case "cut":
                del value[at : at + draw(st.integers(1, 64))]
            case "insert":
                value[at:at] = draw(st.binary(min_size=1, max_size=16))
        if not value:
            break
    return encoded, bytes(value)


@settings(max_examples=600, deadline=None)
@given(mutations(), st.sampled_from([SPEC, None]))
def test_a_mutated_value_is_valid_or_rejected(mutation: tuple[Encoded, bytes], spec: StreamSpec | None) -> None:
    encoded, value = mutation
    judged(value, encoded.headers, spec)


def test_every_flipped_bit_of_the_metadata_is_valid_or_rejected() -> None:
    """The schema's and the batch's flatbuffers, where a reader that trusts them would crash."""
    assert BEGIN.value is not None
    for at in range(len(BEGIN.value)):
        flipped = bytearray(BEGIN.value)
        flipped[at] ^= 1 << (at % 8)
        judged(bytes(flipped), BEGIN.headers, SPEC)


@settings(deadline=None)
@given(st.binary(max_size=256), st.sampled_from([BEGIN, CHUNKS, ZSTD]), st.sampled_from([SPEC, None]))
def test_random_bytes_are_rejected(value: bytes, encoded: Encoded, spec: StreamSpec | None) -> None:
    with pytest.raises(RejectedError):
        decode(record(with_value(encoded, value)), spec)


@settings(deadline=None)
@given(st.sampled_from(sorted(ALL)), st.data())
def test_mutated_headers_are_valid_or_rejected(kind: str, data: st.DataObject) -> None:
    encoded = ALL[kind]
    headers: list[tuple[str, bytes | None]] = list(encoded.headers)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(headers) - 1))
        kinds = st.sampled_from(sorted(Kind)).map(str.encode)
        value = data.draw(st.one_of(st.none(), st.binary(max_size=40), kinds))
        headers[at] = (headers[at][0], value)
    judged(encoded.value, tuple(headers), SPEC)
