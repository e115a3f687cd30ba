"""A record as a plain message, or the rule that it breaks: by docs/formats.md, row by row.

Record batches whose buffers are compressed one by one are not looked for: no scenario may send them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tests.chaos.audit.values import Items, Lists, numbers, overlaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.audit.records import LogRecord

ABORTED = 4
_WAYS_TO_END = {0, 1, 2, 3, 4, 8}
_BY_ENV = {1, 2, 3}
_MOST_ENVS = 1 << 20
_NUMBERS = ("env", "episode", "chunk", "first_step", "policy_version", "exploration")


class BrokenRuleError(Exception):
    """The record is not wholly valid, for this reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """A chunk row: its plain columns, and those that have an item a step or one more, or an item a chunk; its bytes."""

    facts: dict[str, Any]
    items: dict[str, Items]
    states: dict[str, Items]
    bytes: int

    @property
    def steps(self) -> int:
        return len(self.items["reward"])


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A message; what its kind does not have is at its default."""

    kind: str
    producer: str = ""
    incarnation: int = -1
    sequence: int = -1
    reason: str = ""
    start: str = ""
    rows: tuple[Row, ...] = ()


class Decoder:
    """Reads records of the stream that has `fingerprint`."""

    def __init__(self, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._schema: pa.Schema | None = None
        # By column, the least and the largest value of each element of an item.
        self._limits: dict[str, tuple[Any, Any]] = {}

    def decode(self, record: LogRecord, *, max_bytes: int, max_raw_bytes: int) -> PlainMessage:
        """Raises `BrokenRuleError` where the record is not wholly valid."""
        _demand(record.size <= max_bytes, "too large")
        headers = _headers(record)
        _demand(headers.get("penstock") == b"1", "another format")
        kind = _text(headers, "kind")
        _demand(kind in {"begin", "chunks", "end", "tick"}, "an unknown kind")
        if kind == "tick":
            return PlainMessage(kind)
        producer, incarnation, sequence = _text(headers, "producer"), record.offset, 0
        if kind != "begin":
            incarnation, sequence = _number(headers, "incarnation"), _number(headers, "sequence")
            _demand(incarnation < record.offset, "an incarnation that is yet to come")
        if kind == "end":
            return PlainMessage(kind, producer, incarnation, sequence, reason=_text(headers, "reason"))
        batch = self._open(headers, record.value or b"", max_raw_bytes)
        if kind == "begin":
            _demand(batch.num_rows == 0, "a begin record with rows")
            return PlainMessage(kind, producer, incarnation, sequence, start=_text(headers, "start"))
        _demand(batch.num_rows > 0, "no rows")
        return PlainMessage(kind, producer, incarnation, sequence, rows=_rows(batch, self._limits))

    def _open(self, headers: dict[str, bytes], value: bytes, max_raw_bytes: int) -> pa.RecordBatch:
        _demand(headers.get("schema") == self._fingerprint, "another stream")
        if "encoding" in headers:
            raw_size = _number(headers, "raw_size")
            _demand(raw_size <= max_raw_bytes, "too large once decompressed")
            _demand(headers["encoding"] == b"zstd", "an unknown encoding")
        try:
            if "encoding" in headers:
                value = pa.decompress(value, raw_size, "zstd", asbytes=True)
            source = pa.BufferReader(value)
            with pa.ipc.open_stream(source) as reader:
                batches = list(reader)
                schema = reader.schema
            _demand(len(batches) == 1 and not source.read(), "not exactly one batch")
            _demand(value.endswith(b"\xff\xff\xff\xff\0\0\0\0"), "no end")
            batches[0].validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise BrokenRuleError(f"does not read: {error}") from error
        described = (schema.metadata or {}).get(b"penstock.stream", b"")
        _demand(hashlib.sha256(described).digest() == self._fingerprint, "another description")
        if self._schema is None:
            self._schema = schema
            spaces = json.loads(described)
            self._limits = {
                name: limits for root in ("observation", "action") for name, limits in _limits(root, spaces[root])
            }
        _demand(schema.equals(self._schema, check_metadata=True), "another schema")
        return batches[0]


def _rows(batch: pa.RecordBatch, limits: dict[str, tuple[Any, Any]]) -> tuple[Row, ...]:
    plain: dict[str, list[Any]] = {}
    lists: dict[str, Lists] = {}
    states: dict[str, Items] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        _demand(field.nullable or not column.null_count, f"nulls in {field.name}")
        if pa.types.is_list(field.type):
            lists[field.name] = _list(field, column)
        elif field.name.startswith("state."):
            _demand(not pa.types.is_fixed_size_list(field.type) or not column.flatten().null_count, "nulls in a state")
            states[field.name] = numbers(column)
        else:
            plain[field.name] = column.to_pylist()
    widths = {field.name: _width(field.type) for field in batch.schema}
    rows: list[Row] = []
    for at in range(batch.num_rows):
        facts = {name: column[at] for name, column in plain.items()}
        items = {name: column[at] for name, column in lists.items()}
        kept = {name: column[at : at + 1] for name, column in states.items()}
        held = items | kept | {name: [value] for name, value in facts.items()}
        size = sum(len(values) * widths[name] for name, values in held.items())
        size += sum(len(item.encode()) for values in held.values() for item in values if isinstance(item, str))
        row = Row(facts, items, kept, size)
        _check(row)
        for name, (least, largest) in limits.items():
            items = row.items[name]
            _demand(bool(((items >= least) & (items <= largest)).all()), f"a value of {name} outside its space")
        if rows:
            _check_order(rows[-1], row)
        rows.append(row)
    return tuple(rows)


def _width(kind: pa.DataType) -> int:
    """Bytes of one item; of a string, those of its place."""
    if pa.types.is_list(kind):
        return _width(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    return 4 if pa.types.is_string(kind) else int(kind.bit_width) // 8


def _limits(name: str, space: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The columns of a space that cannot have every value of their type, and which they can."""
    match space["type"]:
        case "Dict":
            for key, inner in space["spaces"]:
                yield from _limits(f"{name}.{key}", inner)
        case "Tuple":
            for at, inner in enumerate(space["spaces"]):
                yield from _limits(f"{name}.{at}", inner)
        case "Discrete":
            yield name, (space["start"], space["start"] + space["n"] - 1)
        case "MultiDiscrete":
            start = np.array(space["start"])
            yield name, (start, start + np.array(space["nvec"]) - 1)
        case "MultiBinary":
            yield name, (0, 1)


def _list(field: pa.Field, column: pa.ListArray) -> Lists:
    items = column.values
    if not field.type.value_field.nullable:
        _demand(not items.null_count, f"nulls in {field.name}")
        _demand(not pa.types.is_fixed_size_list(items.type) or not items.values.null_count, f"nulls in {field.name}")
    lists = Lists(column)
    _demand(lists.end_to_end, f"lists of {field.name} that do not lie end to end")
    return lists


def _check(row: Row) -> None:
    facts, steps = row.facts, row.steps
    first = facts["chunk"] == 0
    _demand(all(facts[name] >= 0 for name in _NUMBERS), "a negative number")
    _demand(facts["env"] < _MOST_ENVS, "too many envs")
    _demand(facts["ends"] in _WAYS_TO_END, "no way to end")
    _demand(facts["exploration"] <= 3, "unknown exploration")
    _demand(steps > 0 or (facts["ends"] == ABORTED and not first), "no step")
    for name, items in row.items.items():
        _demand(len(items) == steps + overlaps(name), f"a wrong number of items in {name}")
    _demand(first == (facts["first_step"] == 0), "a first chunk that is not at step 0")
    _demand((facts["abort_reason"] is not None) == (facts["ends"] == ABORTED), "an abort without a reason")
    begun = facts["seed"] is not None or facts["reset_options"] is not None
    _demand(first or (not begun and facts["continues"] is None), "a beginning in the middle")
    if facts["continues"] is not None:
        _demand(not begun and 0 <= facts["continues"] < facts["episode"], "continues what it cannot")
    metrics = [value for name, value in facts.items() if name.startswith("metric.")]
    _demand(facts["ends"] in _BY_ENV or all(value is None for value in metrics), "a metric of an open episode")


def _check_order(before: Row, row: Row) -> None:
    was, now = before.facts, row.facts
    if now["env"] != was["env"]:
        _demand(now["env"] > was["env"], "envs out of order")
    elif was["ends"]:
        _demand(now["episode"] > was["episode"] and now["chunk"] == 0, "no new episode after an end")
    else:
        follows = (was["episode"], was["chunk"] + 1, was["first_step"] + before.steps)
        _demand((now["episode"], now["chunk"], now["first_step"]) == follows, "a hole")


def _headers(record: LogRecord) -> dict[str, bytes]:
    headers: dict[str, bytes] = {}
    for name, value in record.headers:
        if value is None or name in headers:
            raise BrokenRuleError(f"header {name!r} is null or stands twice")
        headers[name] = value
    return headers


def _text(headers: dict[str, bytes], name: str) -> str:
    try:
        text = headers.get(name, b"").decode()
    except UnicodeDecodeError as error:
        raise BrokenRuleError(f"header {name!r} is no text") from error
    _demand(0 < len(text) < 250, f"header {name!r} is missing or too long")
    return text


def _number(headers: dict[str, bytes], name: str) -> int:
    value = headers.get(name, b"")
    _demand(value.isdigit() and len(value) < 20 and int(value) < 1 << 63, f"header {name!r} is no number")
    return int(value)


def _demand(kept: bool, rule: str) -> None:
    if not kept:
        raise BrokenRuleError(rule)
