"""A world: one log, one bucket, who plays in it, and how it ends."""

from __future__ import annotations

import logging
import random
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from unittest.mock import patch

from penstock_schemas.log.memory import MemoryLog
from tests.chaos.audit.auditor import audit
from tests.chaos.audit.records import Acknowledged, LogRecord, memory_records
from tests.chaos.simulation.stage import Actor, Director, Process, Stage
from tests.chaos.simulation.views import Objects, StagedLog
from tests.chaos.simulation.workers import staged_calls
from tests.consumers.messages import DEAD_LETTERS, TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock_consumers.store.commits import Limits
    from penstock_schemas.errors import PenstockError
    from penstock_schemas.log.memory_group import MemoryGroupReader
    from tests.chaos.audit.report import Audit
    from tests.chaos.simulation.actors import Pod, Producer, Tool


_SHOWN = 150


class WorldDirector(Director, Protocol):
    """A director, and what it decides of a world besides."""

    def most_records(self) -> int:
        """How many records the next poll gives at most."""
        ...

    def hides(self) -> int:
        """How many of the newest names the next listing leaves out."""
        ...

    def limits(self, pod: int) -> Limits:
        """By what a pod that starts now judges."""
        ...

    def session_steps(self) -> int:
        """After how many steps the group finds that a member is gone."""
        ...

    def patience(self, seconds: float) -> int:
        """For how many steps a wait of so many seconds goes on."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a schedule ended."""

    repeat: str
    audit: Audit | None
    trace: Sequence[str]
    unfinished: bool

    @property
    def ok(self) -> bool:
        return self.audit is not None and self.audit.ok and not self.unfinished

    @property
    def verdict(self) -> str:
        """What came of it, and how to see it again."""
        ended = "it did not come to an end" if self.unfinished else ""
        return "\n".join([ended or (self.audit.text if self.audit else ""), f"repeat it: {self.repeat}"])

    @property
    def text(self) -> str:
        """The end of the trace and the verdict."""
        return "\n".join([*self.trace[-_SHOWN:], self.verdict])


class World:
    """The state that all actors share."""

    commit_seconds = 0.2
    commit_bytes = 1 << 20
    # With seconds, a worker calls the store beside its own thread; how long it waits is the director's to say.
    revoke_seconds: float | None = None
    upkeep_seconds = 1e9
    compact_bytes = 1 << 20
    collect_seconds = 1e9
    retain_steps: int | None = None
    # Whether members keep their places in the group over a restart.
    static = False
    messages = 6
    polite = 0.5
    # How often a producer sends, loses, corrupts, repeats a message, sends garbage besides, and lies.
    moods = (20, 1, 1, 2, 1, 1)

    def __init__(self, director: WorldDirector, *, partitions: int, most_steps: int, pause_steps: int) -> None:
        self.director = director
        self.partitions = partitions
        self.now = 1_000_000.0
        self.log_skew = 0.0
        self.finished = False
        self.stage = Stage(director, lambda: pause_steps, most_steps)
        self.log = MemoryLog(clock=lambda: self.now + self.log_skew)
        self.log.create(TOPIC, partitions=partitions)
        self.log.create(DEAD_LETTERS)
        self.objects = Objects(lambda: self.now)
        self.ledger: list[Acknowledged] = []
        self.pods: list[Pod] = []
        self.producers: list[Actor] = []
        self.trimmed: dict[int, int] = {}
        self._kept: dict[int, list[LogRecord]] = {number: [] for number in range(partitions)}
        self._expiring: list[tuple[int, MemoryGroupReader]] = []

    def add_producer(self, producer: Producer) -> None:
        self.producers.append(self.stage.enter(Process(producer.name), producer.play))

    def add_pod(self, pod: Pod) -> None:
        self.pods.append(pod)
        self.stage.enter(Process(pod.name), pod.play)

    def add_tool(self, tool: Tool) -> None:
        self.stage.enter(Process(tool.name), tool.play)

    def failed(self, name: str, error: PenstockError) -> None:
        """An actor met an error that its process survives or does not: it begins anew either way."""
        self.stage.tell(name, "fails:", f"{type(error).__name__}: {str(error)[:150]}")

    def expire(self, seen: StagedLog) -> None:
        """Have the group find, some steps later, that the members of a process are gone."""
        steps = self.stage.steps + self.director.session_steps()
        self._expiring += [(steps, member) for member in seen.members]

    def evict(self, seen: StagedLog) -> None:
        """Take a member's partitions from it, as if it had been silent."""
        for member in seen.members:
            self.log.evict(member)

    def trim(self, partition: int, offset: int) -> None:
        """Delete the beginning of a partition; the auditor keeps it."""
        records = memory_records(self.log, TOPIC)[partition]
        self._kept[partition] += [record for record in records if record.offset < offset]
        self.log.trim(TOPIC, partition, offset)
        self.trimmed[partition] = offset

    def go_on(self, seconds: float) -> None:
        """Let time go on, and sessions end."""
        self.now += seconds
        for due in [due for due in self._expiring if due[0] <= self.stage.steps]:
            self._expiring.remove(due)
            self.log.evict(due[1])

    def quiet(self) -> bool:
        """Whether all that the producers sent is in commits."""
        return next(self.waits_for(), None) is None

    def waits_for(self) -> Iterator[str]:
        """What is still to come before all is quiet."""
        yield from (producer.name for producer in self.producers if not producer.done)
        yield from (f"the end of a session at {steps}" for steps, _ in self._expiring)
        yield from (f"{name}'s {kind} {what}" for name, kind, what, _ in self.stage.late)
        for number in range(self.partitions):
            stored, end = self._committed(number), self.log.end(TOPIC, number)
            # Where the log is trimmed to its end there is nothing to judge, so nothing to commit.
            if stored < end != self.trimmed.get(number):
                yield f"a commit of partition {number} up to {end}; the newest has {stored}"

    def _committed(self, partition: int) -> int:
        prefix = f"commits/{partition:05d}/"
        names = [name for name in self.objects.data if name.startswith(prefix)]
        if not names:
            return 0
        data = self.objects.data[max(names)]
        at = data.index(b'"high_water":') + 13
        return int(data[at : data.index(b",", at)])

    def records(self) -> dict[int, list[LogRecord]]:
        """All that was ever appended."""
        left = memory_records(self.log, TOPIC)
        return {number: [*self._kept[number], *left[number]] for number in range(self.partitions)}

    def play(self, repeat: str, idle_limits: Collection[int]) -> Outcome:
        """Play until all is quiet, and audit what is left; `repeat` says how to do it again."""
        with staged_calls(self.stage, self.director.patience):
            self.stage.run()
        if self.stage.over_time:
            self.stage.trace += [f"it waits for {what}" for what in self.waits_for()]
            return Outcome(repeat, None, self.stage.trace, unfinished=True)
        done = audit(
            self.records(),
            self.objects.data,
            idle_limit_ms=idle_limits,
            dead_letters=memory_records(self.log, DEAD_LETTERS)[0],
            ledger=self.ledger,
            first_offsets=self.trimmed,
        )
        return Outcome(repeat, done, self.stage.trace, unfinished=False)


@contextmanager
def repeatable(seed: str) -> Iterator[random.Random]:
    """Have every name that is made unique come from the seed as well."""
    rng = random.Random(seed)  # noqa: S311  (to be repeated, not to be kept secret)
    names = random.Random(f"{seed} names")  # noqa: S311  (the same)
    # What the product tells is in the trace.
    logging.disable(logging.CRITICAL)
    with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)):
        try:
            yield rng
        finally:
            logging.disable(logging.NOTSET)
