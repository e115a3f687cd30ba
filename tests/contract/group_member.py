"""A member of a group as a process of its own: tells on stdout what happens to it, a line each."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, (f"{time.monotonic():.3f}", *words))) + "\n")
    sys.stdout.flush()


class Telling:
    """Reads all from the start, and says what it is told."""

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        say("assigned", *partitions)
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None:
        say("revoked", *partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        say("lost", *partitions)


def main(bootstrap_servers: str, topic: str, group: str, session_timeout: str) -> None:
    with KafkaLog(bootstrap_servers, session_timeout=float(session_timeout)) as log:
        member = log.group(topic, group, Telling())
        while True:
            for record in member.poll(0.1):
                say("read", record.partition, record.offset)


if __name__ == "__main__":
    main(*sys.argv[1:])
