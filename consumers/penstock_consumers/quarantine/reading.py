"""Reading the dead-letter topic, and pieces of any other, by a plain reader."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_consumers.quarantine import letter
from penstock_schemas.errors import LogUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.quarantine.letter import Letter, Place
    from penstock_schemas.log import Log, Record

_POLL_SECONDS = 1.0
_SILENT_POLLS = 30


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The dead letters of one topic, by the place of their record, in the order of places.

    `repetitions` are letters of a record that has one already; `foreign` are those of another topic, such as one
    that was recreated since, and records that are no letters.
    """

    letters: dict[Place, Letter]
    repetitions: int
    foreign: int


def read(log: Log, topic: str, source_topic_id: str) -> Quarantined:
    """Read all of a dead-letter topic; of the payloads none stays in memory. Raises `TopicError` where there is none.

    A record that was quarantined more than once is what its last letter says.
    """
    found: dict[Place, Letter] = {}
    repetitions = foreign = 0
    for record in records(log, topic, 0):
        one = letter.read(record)
        if one is None or one.topic_id != source_topic_id:
            foreign += 1
        else:
            repetitions += one.place in found
            found[one.place] = one
    return Quarantined(dict(sorted(found.items())), repetitions, foreign)


class Payloads:
    """Reads the payloads of dead letters, one at a time; cheap where they are asked for in the topic's order."""

    def __init__(self, log: Log, topic: str) -> None:
        self._reader = log.reader()
        self._topic = topic
        self._next = -1

    def of(self, one: Letter) -> bytes | None:
        """Read the payload of a letter; None where it has none. Raises `LogUnavailableError`."""
        if one.at != self._next:
            self._reader.seek(self._topic, 0, one.at)
        for _ in range(_SILENT_POLLS):
            polled = self._reader.poll(_POLL_SECONDS, 1)
            if polled:
                self._next = one.at + 1
                return polled[0].value
        raise _silent(self._topic, 0, one.at)

    def close(self) -> None:
        """Let go of the topic."""
        self._reader.close()


def records(log: Log, topic: str, partition: int, start: int = 0) -> Iterator[Record]:
    """Give the records of a partition from `start` on, or from the log's beginning, to the end that it has now.

    Raises `LogUnavailableError` where the log falls silent before.
    """
    with closing(log.reader()) as reader:
        first, end = reader.bounds(topic, partition)
        at = max(start, first)
        reader.seek(topic, partition, at)
        silent = 0
        while at < end:
            polled = reader.poll(_POLL_SECONDS)
            silent = 0 if polled else silent + 1
            if silent == _SILENT_POLLS:
                raise _silent(topic, partition, at)
            for record in polled:
                at = record.offset + 1
                if at <= end:
                    yield record


def _silent(topic: str, partition: int, offset: int) -> LogUnavailableError:
    waited = _SILENT_POLLS * _POLL_SECONDS
    return LogUnavailableError(
        f"topic {topic!r}, partition {partition}: no answer for offset {offset} within {waited:g} s; try again"
    )
