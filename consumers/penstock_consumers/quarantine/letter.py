"""A dead letter: a record that was not valid, with the reason, as it lies in the dead-letter topic.

| header            | what it says                                                                      |
|-------------------|-----------------------------------------------------------------------------------|
| penstock.reason   | the label under which it is counted                                               |
| penstock.detail   | what was wrong, for a person                                                      |
| penstock.offset   | the record's offset                                                               |
| penstock.sha256   | where the log refused the payload for its size: its digest, in place of it        |
| penstock.bytes    | with that: the record's size                                                      |
| …                 | the record's own headers, in their order; with a digest only where they are small |
| penstock.null     | at the end, for each own header that was null: its name; it stands empty above    |

The key is `topic id:partition:offset`, so that who reads the topic can drop repetitions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_schemas.errors import RejectedError
    from penstock_schemas.log import Headers, Record, RecordHeaders

# What is quoted of a message that is not valid is its sender's choice: a letter must stay one that the log takes.
_MAX_DETAIL_BYTES = 1000
_MAX_HEADER_BYTES = 4096
_REASON, _DETAIL, _OFFSET = "penstock.reason", "penstock.detail", "penstock.offset"
_SHA256, _BYTES, _NULL = "penstock.sha256", "penstock.bytes", "penstock.null"
_TOLD = (_REASON, _DETAIL, _OFFSET)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a record lies in its topic; written as `partition:offset`."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read `partition:offset`; raises `ValueError` where it is none."""
        partition, colon, offset = text.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise ValueError(f"{text!r}: a place is partition:offset, as in 0:1234")
        return cls(int(partition), int(offset))


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter without its payload, which lies at `at` in the dead-letter topic.

    `headers` are the record's own; `sha256` is set where only that was kept of its payload. `bytes` is the record's
    size, its key left out where the payload was kept.
    """

    topic_id: str
    place: Place
    reason: str
    detail: str
    headers: RecordHeaders
    bytes: int
    sha256: str | None
    at: int
    timestamp_ms: int


def key(record: Record, topic_id: str) -> bytes:
    """The key of a record's letter."""
    return f"{topic_id}:{record.partition}:{record.offset}".encode()


def headers(record: Record, rejected: RejectedError) -> Headers:
    """The headers of a letter that keeps its payload."""
    nulls = tuple((_NULL, name.encode()) for name, value in record.headers if value is None)
    return (*_told(record, rejected), *_filled(record), *nulls)


def digest_headers(record: Record, rejected: RejectedError) -> Headers:
    """The headers of a letter that has a digest in place of its payload."""
    sha256 = hashlib.sha256(record.value or b"").hexdigest()
    digest = ((_SHA256, sha256.encode()), (_BYTES, b"%d" % record.size))
    own = _filled(record)
    small = sum(len(name) + len(value) for name, value in own) <= _MAX_HEADER_BYTES
    return (*_told(record, rejected), *digest, *(own if small else ()))


def read(record: Record) -> Letter | None:
    """Read a letter; None where a record of the dead-letter topic is none."""
    topic_id, _, place = (record.key or b"").decode(errors="replace").partition(":")
    told = dict(record.headers[: len(_TOLD)])
    if tuple(told) != _TOLD or None in told.values():
        return None
    own, sha256, size = record.headers[len(_TOLD) :], None, len(record.value or b"")
    try:
        found = Place.parse(place)
        if record.value is None and tuple(name for name, _ in own[:2]) == (_SHA256, _BYTES):
            sha256, size, own = _text(own[0][1]), int(_text(own[1][1])), own[2:]
        else:
            own = _with_nulls(own)
            size += sum(len(name) + len(value or b"") for name, value in own)
    except ValueError:
        return None
    reason, detail = (_text(told[name]) for name in (_REASON, _DETAIL))
    return Letter(topic_id, found, reason, detail, own, size, sha256, record.offset, record.timestamp_ms)


def _told(record: Record, rejected: RejectedError) -> Headers:
    detail = str(rejected).encode(errors="backslashreplace")
    if len(detail) > _MAX_DETAIL_BYTES:
        detail = detail[:_MAX_DETAIL_BYTES].decode(errors="ignore").encode() + "…".encode()
    return ((_REASON, rejected.reason.encode()), (_DETAIL, detail), (_OFFSET, b"%d" % record.offset))


def _filled(record: Record) -> Headers:
    return tuple((name, value or b"") for name, value in record.headers)


def _with_nulls(own: RecordHeaders) -> RecordHeaders:
    """Take the names of null headers from the end, and make those headers null again."""
    end = len(own)
    while end and own[end - 1][0] == _NULL:
        end -= 1
    nulls = {_text(name) for _, name in own[end:]}
    return tuple((name, None if name in nulls and not value else value) for name, value in own[:end])


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
