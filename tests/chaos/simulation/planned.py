"""Planned schedules: one short script, and faults at exactly the operations that a plan names."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

from penstock_consumers.store.commits import Limits
from penstock_consumers.upkeep import upkeep as upkeep_module
from penstock_schemas.chunks import Ends
from tests.chaos.simulation.actors import Pod
from tests.chaos.simulation.stage import Actor, Fault, Kind
from tests.chaos.simulation.world import Outcome, World, repeatable
from tests.consumers.messages import TOPIC, Row, ScriptedProducer, append_garbage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IDLE_MS = 2_000
_MOST_STEPS = 3_000
# What is late takes effect after so many steps: when its writer has begun anew, and others may have been there.
_LATE_STEPS = 40
_SESSION_STEPS = 10
_LONG_SECONDS = 10.0
_PAUSE_STEPS = 60
# The second is as long as what is kept, so the first is retired; then eight segments are joined, and live to the end:
# what is retired in the end could be lost before, and nobody would see it.
_LENGTHS = (1, 8, *[1] * 10)
_RETAIN_STEPS = 8
_COLLECT_EVERY = 4


class PlannedDirector:
    """Lets the workers take turns, and befalls the operations that its plan names, counted from 0."""

    world: World

    def __init__(self, plan: Mapping[int, Fault], *, turns: int, most_records: int) -> None:
        self._plan = plan
        self._turns = turns
        self._most_records = most_records
        self._on = 0
        self._late_since: int | None = None
        self.operations: list[tuple[str, Kind, str]] = []

    def next_actor(self, on: Actor, ready: Sequence[Actor]) -> Actor:
        self._on += 1
        if on in ready and self._on % self._turns:
            return on
        # Round and round, so that everyone gets a turn.
        actors = self.world.stage.actors
        at = actors.index(on)
        return min(ready, key=lambda actor: (actors.index(actor) - at - 1) % len(actors))

    def fault(self, actor: Actor, kind: Kind, name: str) -> Fault:
        fault = self._plan.get(len(self.operations), Fault.NONE)
        self.operations.append((actor.name, kind, name))
        if fault in {Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER}:
            for pod in self.world.pods:
                if pod.name == actor.name and pod.seen is not None:
                    self.world.expire(pod.seen)
        return fault

    def moves(self) -> None:
        world = self.world
        world.go_on(0.01)
        late = world.stage.late
        if late and self._late_since is None:
            self._late_since = world.stage.steps
        if self._late_since is not None and world.stage.steps - self._late_since >= _LATE_STEPS:
            world.stage.apply_late(0)
            self._late_since = world.stage.steps if late else None
        world.finished = world.finished or world.quiet()

    def most_records(self) -> int:
        return self._most_records

    def hides(self) -> int:
        return 0

    def limits(self, pod: int) -> Limits:
        return Limits(idle_limit_ms=_IDLE_MS)

    def session_steps(self) -> int:
        return _SESSION_STEPS

    def patience(self, seconds: float) -> int:
        return 5 if seconds < _LONG_SECONDS else 1_000


def play(
    plan: Mapping[int, Fault],
    *,
    workers: int,
    turns: int = 1,
    short: bool = False,
    beside: bool = False,
    upkeep: bool = False,
) -> tuple[Outcome, list[tuple[str, Kind, str]]]:
    """Play the script with the faults of a plan, by the number of the operation; give the operations too.

    With `beside`, workers call the store in threads of their own. With `upkeep`, the script is one of many episodes,
    and workers join, retire and collect in every turn.
    """
    told = repr({at: str(fault) for at, fault in plan.items()})
    with repeatable(told), ExitStack() as opened:
        director = PlannedDirector(plan, turns=turns, most_records=1 if upkeep else 3)
        world = World(director, partitions=min(workers, 2), most_steps=_MOST_STEPS, pause_steps=_PAUSE_STEPS)
        director.world = world
        world.commit_seconds = 0.0
        world.revoke_seconds = 5.0 if beside else None
        if upkeep:
            world.upkeep_seconds = world.collect_seconds = 0.0
            world.retain_steps = _RETAIN_STEPS * world.partitions
            # Collected every hundred commits, no script that is swept would ever be.
            opened.enter_context(patch.object(upkeep_module, "COLLECT_EVERY", _COLLECT_EVERY))
        for partition in range(world.partitions):
            if upkeep:
                _many_episodes(world, partition)
            else:
                _script(world, partition, short=short)
        for number in range(workers):
            world.add_pod(Pod(world, number, random.Random(number)))  # noqa: S311  (to be repeated)
        repeat = f"play({told}, workers={workers}, turns={turns}, short={short}, beside={beside}, upkeep={upkeep})"
        return world.play(repeat, {_IDLE_MS}), director.operations


def _many_episodes(world: World, partition: int) -> None:
    """Beside one episode that stays open, many that end where they begin: each message gives a segment."""
    producer = ScriptedProducer(world.log, f"producer-{partition}", partition)
    producer.begin()
    producer.send(Row(1, 0, 0, 0, 1))
    for episode, length in enumerate(_LENGTHS):
        producer.send(Row(0, episode, 0, 0, length, Ends.TERMINATED))


def _script(world: World, partition: int, *, short: bool) -> None:
    """Open episodes, ended ones and aborted ones, garbage, a gap and a restart."""
    producer = ScriptedProducer(world.log, f"producer-{partition}", partition)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 2), Row(1, 0, 0, 0, 1, Ends.TERMINATED))
    append_garbage(world.log, partition=partition)
    producer.send(Row(0, 0, 1, 2, 1), Row(1, 1, 0, 0, 2))
    if short:
        producer.send(Row(0, 0, 2, 3, 1, Ends.TERMINATED))
    else:
        producer.send(Row(0, 0, 2, 3, 1, Ends.TRUNCATED))
        producer.skip()
        producer.send(Row(0, 1, 0, 0, 2), Row(1, 1, 1, 2, 1))
        producer.begin()
        producer.send(Row(0, 0, 0, 0, 1), Row(1, 0, 0, 0, 2))
        producer.send(Row(0, 0, 1, 1, 1, Ends.TERMINATED))
    producer.end()
    assert world.log.bounds(TOPIC, partition)[1] == (6 if short else 10)
