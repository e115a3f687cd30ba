"""Whose message a quarantined record says that it is, and under which name it is judged again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_schemas.messages import FORMAT, Kind

if TYPE_CHECKING:
    from penstock_schemas.log import Headers, RecordHeaders

_MAX_NAME = 249
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A message's place in its producer's sequence; equal for all its copies, those judged again included."""

    producer: str
    incarnation: int
    sequence: int

    @property
    def retried(self) -> str:
        """The producer that it is judged again as: one of its own, whose sequence no other producer's touches."""
        return f"{self.producer}~{self.incarnation}"

    @classmethod
    def of(cls, producer: str, incarnation: int, sequence: int) -> Claim:
        """Make the claim of a message; one that is judged again already is still the message that it was."""
        return cls(producer.removesuffix(f"~{incarnation}"), incarnation, sequence)


class NoClaimError(ValueError):
    """A record that cannot be judged again, and why."""


def read(headers: RecordHeaders, offset: int) -> Claim:
    """Read the claim of a record at `offset`; raises `NoClaimError` where it cannot be judged again."""
    for name, value in headers:
        if value is None:
            raise NoClaimError(f"its header {name!r} is null, which no message may have")
    found = {name: value for name, value in headers if value is not None}
    if len(found) != len(headers):
        raise NoClaimError("a header stands twice, which no message may have")
    if found.get("penstock") != FORMAT:
        raise NoClaimError(f"it is of no format that this Penstock knows: {found.get('penstock')!r}")
    kind = found.get("kind")
    if kind == Kind.BEGIN.encode():
        raise NoClaimError("a begin record: the messages of its incarnation are judged without it")
    if kind not in {Kind.CHUNKS.encode(), Kind.END.encode()}:
        raise NoClaimError(f"a record of kind {kind!r}: only messages of producers are judged again")
    claim = _claim(found)
    if claim is None:
        raise NoClaimError("its headers do not say which message of which producer it is")
    if claim.incarnation >= offset:
        raise NoClaimError(f"its incarnation {claim.incarnation} is not below its offset {offset}")
    if len(claim.retried) > _MAX_NAME:
        raise NoClaimError(f"the name {claim.retried!r} would be longer than the {_MAX_NAME} characters that are taken")
    return claim


def seen(headers: RecordHeaders) -> tuple[str, Claim] | None:
    """Read the producer that any record names, and its claim; None where it has none."""
    found = {name: value for name, value in headers if value is not None}
    claim = _claim(found)
    return (found["producer"].decode(), claim) if claim else None


def renamed(headers: RecordHeaders, claim: Claim) -> Headers:
    """The headers under which a record is judged again; only the producer's name is another."""
    return tuple((name, claim.retried.encode() if name == "producer" else value or b"") for name, value in headers)


def _claim(headers: dict[str, bytes]) -> Claim | None:
    numbers = [headers.get(name, b"") for name in ("incarnation", "sequence")]
    try:
        producer = headers.get("producer", b"").decode()
    except UnicodeDecodeError:
        return None
    if not producer or not all(number.isdigit() and len(number) <= _MAX_DIGITS for number in numbers):
        return None
    return Claim.of(producer, *map(int, numbers))
