"""A stage on which many actors play and exactly one is on at a time, so that a seed tells everything that happens.

Each actor is a thread, and all but one wait for the baton. Every operation on the log and on the bucket goes through
`Stage.perform`: there the director may hand the baton on, and decides which fault the operation meets.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock_schemas.errors import LogUnavailableError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_schemas.errors import PenstockError

_T = TypeVar("_T")
_JOIN_SECONDS = 30.0


class KilledError(BaseException):
    """The process dies here: nothing that it does afterwards has an effect."""


class Fault(StrEnum):
    """What may befall an operation."""

    NONE = "ok"
    KILL_BEFORE = "killed before"
    KILL_AFTER = "killed after"
    PAUSE_BEFORE = "paused before"
    PAUSE_AFTER = "paused after"
    FAIL = "failed"
    LOSE_ANSWER = "answer lost"
    LATE = "timed out, takes effect late"
    EXISTS = "own success told as exists"


class Kind(StrEnum):
    """What an operation is."""

    CREATE = "create"
    PUT = "put"
    READ = "read"
    LIST = "list"
    DELETE = "delete"
    APPEND = "append"
    POLL = "poll"
    LOOK = "look"


STORE_KINDS = frozenset((Kind.CREATE, Kind.PUT, Kind.READ, Kind.LIST, Kind.DELETE))


class Director(Protocol):
    """Who decides."""

    def next_actor(self, on: Actor, ready: Sequence[Actor]) -> Actor:
        """Choose who goes on; `on` is whose operation comes next, if it is among `ready`."""
        ...

    def fault(self, actor: Actor, kind: Kind, name: str) -> Fault:
        """Choose what befalls an operation."""
        ...

    def moves(self) -> None:
        """The world goes on a step: clocks, outages, whatever no actor does. Called at each operation."""
        ...


@dataclass(eq=False)
class Process:
    """What a kill ends: all threads of it at once."""

    name: str
    dead: bool = False


@dataclass(eq=False)
class Actor:
    """One thread of a process on the stage."""

    stage: Stage
    process: Process
    play: Callable[[], None]
    done: bool = False
    asleep: int = 0
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def name(self) -> str:
        return self.process.name

    def perform(self, kind: Kind, name: str, act: Callable[[], _T], *, exists: _T | None = None) -> _T:
        """Do one operation, or what the director makes of it; `exists` is the answer where one is already there."""
        self._step()
        fault = self.stage.director.fault(self, kind, name)
        self.stage.tell(self.name, kind, name, fault)
        match fault:
            case Fault.KILL_BEFORE:
                self.die()
            case Fault.PAUSE_BEFORE:
                self.pause()
            case Fault.FAIL:
                raise _failure(kind, name)
            case Fault.LATE:
                self.stage.late.append((self.name, kind, name, act))
                raise _failure(kind, name)
            case _:
                pass
        answer = act()
        match fault:
            case Fault.KILL_AFTER:
                self.die()
            case Fault.PAUSE_AFTER:
                self.pause()
            case Fault.LOSE_ANSWER:
                raise _failure(kind, name)
            case Fault.EXISTS if exists is not None:
                return exists
            case _:
                pass
        return answer

    def die(self) -> None:
        """Be gone, with all threads of the process."""
        self.process.dead = True
        raise KilledError

    def pause(self) -> None:
        """Stand still, while others go on."""
        self.wait(self.stage.pause_steps())

    def wait(self, steps: int) -> None:
        """Do nothing for some steps."""
        self.asleep = steps
        self._step()

    def _step(self) -> None:
        self.stage.step(self)
        if self.process.dead:
            raise KilledError


class Stage:
    """All actors, what happened so far, and what is still to take effect."""

    def __init__(self, director: Director, pause_steps: Callable[[], int], most_steps: int) -> None:
        self.director = director
        self.pause_steps = pause_steps
        self.actors: list[Actor] = []
        self.on: Actor
        self.late: list[tuple[str, Kind, str, Callable[[], object]]] = []
        self.trace: list[str] = []
        self.steps = 0
        self.failures: list[BaseException] = []
        self.over_time = False
        self._most_steps = most_steps
        self._threads: list[threading.Thread] = []
        self._over = threading.Semaphore(0)

    def tell(self, *what: object) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.steps:5d} " + " ".join(map(str, what)))

    def enter(self, process: Process, play: Callable[[], None]) -> Actor:
        """Have an actor play from its first turn on."""
        actor = Actor(self, process, play)
        self.actors.append(actor)
        self._threads.append(threading.Thread(target=self._live, args=(actor,), daemon=True))
        self._threads[-1].start()
        return actor

    def perform(self, kind: Kind, name: str, act: Callable[[], _T], *, exists: _T | None = None) -> _T:
        """Do one operation, as `Actor.perform`, by who is on."""
        return self.on.perform(kind, name, act, exists=exists)

    def run(self) -> None:
        """Play until all actors are done; raises what any of them raised."""
        self.actors[0].turn.release()
        self._over.acquire()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        if self.failures:
            raise self.failures[0]

    def step(self, on: Actor) -> None:
        """Let the world go on by one step, and whoever the director chooses."""
        self.steps += 1
        if self.steps > self._most_steps:
            self.over_time = True
            for actor in self.actors:
                actor.process.dead = True
                actor.asleep = 0
            return
        for actor in self.actors:
            actor.asleep = max(actor.asleep - 1, 0)
        self.director.moves()
        chosen = self.director.next_actor(on, self._ready())
        if chosen is not on:
            chosen.turn.release()
            on.turn.acquire()
        self.on = on

    def apply_late(self, index: int) -> None:
        """Have an operation whose caller gave up on it take effect now."""
        name, kind, what, act = self.late.pop(index)
        self.tell(name, kind, what, "takes effect")
        act()

    def _ready(self) -> list[Actor]:
        there = [actor for actor in self.actors if not actor.done]
        ready = [actor for actor in there if not actor.asleep]
        if not ready and there:
            first = min(there, key=lambda actor: actor.asleep)
            first.asleep = 0
            ready = [first]
        return ready

    def _live(self, actor: Actor) -> None:
        actor.turn.acquire()
        self.on = actor
        try:
            actor.play()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001  (the main thread raises it)
            self.failures.append(error)
            self.tell(actor.name, "raised", repr(error))
        actor.done = True
        ready = self._ready()
        if ready:
            self.director.next_actor(actor, ready).turn.release()
        else:
            self._over.release()


def _failure(kind: Kind, name: str) -> PenstockError:
    error = StoreUnavailableError if kind in STORE_KINDS else LogUnavailableError
    return error(f"{kind} {name}: no answer")
