"""Quarantined messages, judged again.

A message is appended once more to its partition, under the producer `<producer>~<incarnation>` with the incarnation and
the sequence that it had. So it comes at the end of the log, and is judged like any other message there: whole episodes
in it are stored, rows that go on with an episode that is not open are orphans. Its producer's own sequence stays where
it stands, and a second retry is a duplicate to the judge.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from penstock_consumers.quarantine import claim, reading, stored
from penstock_consumers.quarantine.claim import Claim, NoClaimError
from penstock_consumers.store import commits
from penstock_schemas.errors import LogUnavailableError, RejectedError
from penstock_schemas.log import Record
from penstock_schemas.messages import MAX_RAW_BYTES, decode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock_consumers.quarantine.letter import Letter, Place
    from penstock_consumers.quarantine.reading import Payloads
    from penstock_consumers.quarantine.stored import Steps
    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import Commit
    from penstock_schemas.log import Appender, Log
    from penstock_schemas.stream import StreamSpec

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message: the offset of its new record, or why it has none; neither in a dry run."""

    letter: Letter
    offset: int | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a stream's messages, its dead letters and its episodes lie; `spec` is None where none was stored yet."""

    log: Log
    topic: str
    dead_letter_topic: str
    bucket: Bucket
    spec: StreamSpec | None


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that may be judged again."""

    letter: Letter
    claim: Claim
    steps: Steps


@dataclass(frozen=True, slots=True)
class _Known:
    """What a partition knows of messages: whose rows are stored, which wait for a commit, and who is expected next."""

    stored: set[Claim]
    waiting: set[Claim]
    sequences: dict[str, int]

    def refuses(self, asked: Claim) -> str | None:
        """Tell why a message must not be appended again; None where it may."""
        if asked in self.waiting:
            return "a copy of it waits for its commit: look again then"
        if asked in self.stored:
            return "its rows are in the store already"
        if asked.sequence < self.sequences.get(asked.retried, 0):
            return "it, or a later message of its incarnation, was retried already: it would be a duplicate"
        return None


def retry(
    source: Source, letters: Sequence[Letter], chosen: Collection[Place], *, dry: bool = False
) -> Iterator[Outcome]:
    """Append the messages of the chosen places among `letters` again, in the order of their producers' sequences.

    With a message go the earlier ones of its incarnation, which could not follow it. Where `dry` is true nothing is
    appended. Raises `LogUnavailableError` where the log does not take one: those before it are told, and doing it all
    again does not repeat them.
    """
    together = sorted(_with_earlier(letters, chosen), key=lambda letter: letter.place)
    payloads = reading.Payloads(source.log, source.dead_letter_topic)
    with closing(source.log.appender()) as appender, closing(payloads):
        for partition, of_partition in groupby(together, lambda letter: letter.place.partition):
            yield from _retry_partition(source, partition, list(of_partition), payloads, None if dry else appender)


def _with_earlier(letters: Sequence[Letter], chosen: Collection[Place]) -> list[Letter]:
    claims = {letter.place: _incarnation(letter) for letter in letters}
    last: dict[tuple[int, str, int], int] = {}
    for place in chosen:
        if (found := claims[place]) is not None:
            last[found[0]] = max(found[1], last.get(found[0], 0))
    return [
        letter
        for letter in letters
        if letter.place in chosen or ((found := claims[letter.place]) is not None and found[1] < last.get(found[0], 0))
    ]


def _incarnation(letter: Letter) -> tuple[tuple[int, str, int], int] | None:
    """The incarnation that a message is of, and its sequence number there."""
    try:
        found = claim.read(letter.headers, letter.place.offset)
    except NoClaimError:
        return None
    return (letter.place.partition, found.producer, found.incarnation), found.sequence


def _retry_partition(
    source: Source, partition: int, letters: Sequence[Letter], payloads: Payloads, appender: Appender | None
) -> Iterator[Outcome]:
    commit = commits.newest(source.bucket, partition)
    messages = []
    for letter in letters:
        try:
            messages.append(_open(source, letter, payloads, commit))
        except NoClaimError as error:
            yield Outcome(letter, refused=str(error))
        except RejectedError as error:
            yield Outcome(letter, refused=f"it is still not valid: {error}")
    if commit is None or not messages:
        return
    known = _known(source, commit, messages)
    for message in sorted(messages, key=lambda message: (message.claim, message.letter.place)):
        refused, offset = known.refuses(message.claim), None
        if refused is None:
            known.sequences[message.claim.retried] = message.claim.sequence + 1
            offset = _append(source, message, payloads.of(message.letter), appender) if appender else None
        yield Outcome(message.letter, offset, refused)


def _open(source: Source, letter: Letter, payloads: Payloads, commit: Commit | None) -> _Message:
    """Read a message and judge whether it is valid now; raises `NoClaimError` or `RejectedError`."""
    found = claim.read(letter.headers, letter.place.offset)
    if letter.sha256 is not None:
        raise NoClaimError("its payload was too large for the dead-letter topic: only a digest of it was kept")
    if commit is None:
        raise NoClaimError("no commit has judged it yet: look again when one has")
    record = Record(
        source.topic,
        letter.place.partition,
        letter.place.offset,
        letter.timestamp_ms,
        None,
        payloads.of(letter),
        claim.renamed(letter.headers, found),
    )
    most = max(commit.limits.max_raw_bytes, MAX_RAW_BYTES)
    # How large a message may be is its consumer's setting, which may have been raised since the last commit.
    message = decode(record, source.spec, max_bytes=record.size, max_raw_bytes=most)
    return _Message(letter, found, stored.first_steps(message.rows) if message.rows is not None else [])


def _known(source: Source, commit: Commit, messages: Sequence[_Message]) -> _Known:
    held: set[Claim] = set()
    if source.spec is not None:
        live = commits.live_at(source.bucket, commit)
        # Another copy of a message may have come long before the one that was set aside, but not before their begin.
        since = min(message.claim.incarnation for message in messages)
        steps = {message.claim: message.steps for message in messages}
        held = stored.held(source.bucket, source.spec, commit, live, steps, since)
    sequences = {name: entry.sequence for name, entry in commit.producers.items()}
    waiting: set[Claim] = set()
    for record in reading.records(source.log, source.topic, commit.partition, commit.high_water):
        seen = claim.seen(record.headers)
        if seen is not None:
            name, one = seen
            waiting.add(one)
            sequences[name] = max(one.sequence + 1, sequences.get(name, 0))
    return _Known(held, waiting, sequences)


def _append(source: Source, message: _Message, value: bytes | None, appender: Appender) -> int:
    """Append a message again, and wait until the log has it: the next must not overtake it."""
    future = appender.append(
        source.topic,
        message.letter.place.partition,
        key=message.claim.retried.encode(),
        value=value,
        headers=claim.renamed(message.letter.headers, message.claim),
    )
    try:
        return future.result(_TIMEOUT_SECONDS).offset
    except TimeoutError as error:
        raise LogUnavailableError(
            f"topic {source.topic!r}: no acknowledgement within {_TIMEOUT_SECONDS:g} s; try again"
        ) from error
