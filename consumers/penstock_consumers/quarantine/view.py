"""Dead letters for a person: how many of which reason, and what can be read of one of their messages."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock_consumers.quarantine import claim
from penstock_schemas.errors import RejectedError
from penstock_schemas.log import Record
from penstock_schemas.messages import decode

if TYPE_CHECKING:
    from penstock_consumers.quarantine.letter import Letter
    from penstock_consumers.quarantine.reading import Quarantined
    from penstock_schemas.stream import StreamSpec

_FIRST_BYTES = 64
_NAMED = 8


def summarize(found: Quarantined, examples: int, reason: str | None = None) -> dict[str, Any]:
    """Count dead letters by reason, or those of one reason, in values that JSON has."""
    by_reason: dict[str, list[Letter]] = defaultdict(list)
    for letter in found.letters.values():
        if reason in {None, letter.reason}:
            by_reason[letter.reason].append(letter)
    return {
        "messages": sum(map(len, by_reason.values())),
        "repetitions": found.repetitions,
        "of_another_topic": found.foreign,
        "reasons": [
            {
                "reason": name,
                "messages": len(letters),
                "bytes": sum(letter.bytes for letter in letters),
                "examples": [_example(letter) for letter in letters[:examples]],
            }
            for name, letters in sorted(by_reason.items(), key=lambda item: -len(item[1]))
        ],
    }


def describe(letter: Letter, value: bytes | None, spec: StreamSpec | None) -> dict[str, Any]:
    """Describe a dead letter and its payload, in values that JSON has.

    `now` tells what this Penstock says of it, whatever the size that a consumer takes.
    """
    return {
        "place": str(letter.place),
        "when": _when(letter),
        "dead_letter": letter.at,
        "reason": letter.reason,
        "detail": letter.detail,
        "bytes": letter.bytes,
        "payload": _payload(letter, value),
        "now": _now(letter, value, spec),
        "headers": [[name, None if value is None else _text(value)] for name, value in letter.headers],
    }


def _example(letter: Letter) -> dict[str, Any]:
    seen = claim.seen(letter.headers)
    return {
        "place": str(letter.place),
        "when": _when(letter),
        "producer": seen[0] if seen else None,
        "detail": letter.detail.removeprefix(f"{letter.reason}: "),
    }


def _when(letter: Letter) -> str:
    """When a letter was written, by the broker's clock."""
    return datetime.fromtimestamp(letter.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")


def _payload(letter: Letter, value: bytes | None) -> str:
    if letter.sha256 is not None:
        return f"only its digest was kept: sha256 {letter.sha256}"
    if value is None:
        return "none"
    return f"{len(value):,} bytes, beginning with {value[:_FIRST_BYTES]!r}"


def _now(letter: Letter, value: bytes | None, spec: StreamSpec | None) -> str:
    if letter.sha256 is not None:
        return "cannot be told without its payload"
    at = letter.place
    record = Record("", at.partition, at.offset, letter.timestamp_ms, None, value, letter.headers)
    try:
        message = decode(record, spec, max_bytes=record.size)
    except RejectedError as error:
        return f"not valid: {error}"
    if message.rows is None:
        return f"a valid {message.kind} message"
    rows = message.rows
    episodes = sorted(set(zip(rows.env.tolist(), rows.episode.tolist(), strict=True)))
    named = ", ".join(f"{env}/{episode}" for env, episode in episodes[:_NAMED])
    more = f" and {len(episodes) - _NAMED} more" if len(episodes) > _NAMED else ""
    return (
        f"a valid {message.kind} message of {len(rows)} rows with {int(rows.steps.sum()):,} steps, "
        f"of env/episode {named}{more}"
    )


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()
