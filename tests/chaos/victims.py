"""The processes that a schedule breaks, each kept alive and broken by a thread of its own."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tests.chaos.bucket import Trouble, make_trouble
from tests.chaos.schedule import Act

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deploy.local.kafka import LocalKafka
    from deploy.local.pod import Pod
    from penstock_schemas.log import Record
    from tests.chaos.rogue import Rogue
    from tests.chaos.schedule import Fault

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 30.0
_TELL_SECONDS = 5.0


class Victim(Protocol):
    """What can be broken."""

    name: str

    def begin(self, fault: Fault) -> None:
        """Break it."""
        ...

    def end(self, fault: Fault) -> None:
        """Undo that."""
        ...

    def look_after(self) -> None:
        """Start it again where it has ended by itself, as a cluster would."""
        ...


class PodVictim:
    """A producer or consumer.

    Args:
        pod: its process.
        control: the file that says what is wrong with its store; of consumers.
        wanted: whether it runs from the beginning; one that does not runs while it is added.

    Attributes:
        own_exits: the statuses with which it ended by itself.
        statuses: those with which it ended when it was asked to; None where it had to be killed.
    """

    def __init__(self, pod: Pod, control: Path | None = None, *, wanted: bool = True) -> None:
        self.name = pod.name
        self.pod = pod
        self.own_exits: list[int] = []
        self.statuses: list[int | None] = []
        self._control = control
        self._wanted = wanted
        # Whether it runs, or ran until it ended by itself.
        self._up = False

    def start(self) -> None:
        """Start it, where it is wanted."""
        if self._wanted:
            self.pod.start()
            self._up = True

    def begin(self, fault: Fault) -> None:
        """Break it; one that is added begins to run."""
        match fault.kind:
            case Act.KILL:
                self._wanted = self._up = False
                self.pod.kill()
            case Act.TERM:
                self.stop()
            case Act.ZOMBIE | Act.PAUSE:
                self.pod.signal(signal.SIGSTOP)
            case Act.JOIN:
                self._wanted = True
            case _ if isinstance(fault.kind, Trouble) and self._control:
                make_trouble(self._control, fault.kind)

    def end(self, fault: Fault) -> None:
        """Mend it; one that was added goes."""
        match fault.kind:
            case Act.KILL | Act.TERM:
                self._wanted = True
            case Act.ZOMBIE | Act.PAUSE:
                self.pod.signal(signal.SIGCONT)
            case Act.JOIN:
                self.stop()
            case _ if self._control:
                make_trouble(self._control, None)

    def look_after(self) -> None:
        """Start it where it should run and does not."""
        if not self._wanted or self.pod.running:
            return
        if self._up and (status := self.pod.status) is not None:
            self.own_exits.append(status)
        self.start()

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        self.pod.signal(signal.SIGTERM)
        self.await_end()

    def await_end(self) -> None:
        """Wait for its end, for which it was asked; does nothing where it does not run."""
        if self._up:
            deadline = time.monotonic() + _STOP_SECONDS - _TELL_SECONDS
            while self.pod.running and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            # One that takes as long as this says where its threads are.
            self.pod.signal(signal.SIGUSR1)
            self.statuses.append(self.pod.wait(_TELL_SECONDS))
        self._wanted = self._up = False


class BrokerVictim:
    """The broker; it is started again on its data."""

    def __init__(self, name: str, kafka: LocalKafka) -> None:
        self.name = name
        self._kafka = kafka

    def begin(self, fault: Fault) -> None:
        """Kill it, stop it or pause it."""
        match fault.kind:
            case Act.KILL:
                self._kafka.kill()
            case Act.TERM:
                self._kafka.stop()
            case _:
                self._kafka.signal(signal.SIGSTOP)

    def end(self, fault: Fault) -> None:
        """Have it answer again."""
        if fault.kind is Act.PAUSE:
            self._kafka.signal(signal.SIGCONT)
        else:
            self._kafka.start()

    def look_after(self) -> None:
        """A broker does not end by itself."""
        self._kafka.pid  # noqa: B018  (raises where it does not run)


class RogueVictim:
    """Whoever writes to the topic and should not."""

    def __init__(self, name: str, rogue: Rogue) -> None:
        self.name = name
        self._rogue = rogue
        self._taken: list[Record] = []

    def begin(self, fault: Fault) -> None:
        """Take real records."""
        self._taken = self._rogue.take()

    def end(self, fault: Fault) -> None:
        """Append what became of them."""
        if fault.kind is Act.POISON:
            self._rogue.poison(self._taken)
        else:
            self._rogue.give(self._taken)

    def look_after(self) -> None:
        """It is no process."""


class Keeper:
    """Lets a victim live through its faults, in a thread, and keeps it alive until it is told to stop.

    `failure` is what went wrong with the keeping itself.
    """

    def __init__(self, victim: Victim, faults: Sequence[Fault], done: Counter[tuple[str, str]]) -> None:
        self.victim = victim
        self.failure: Exception | None = None
        self.through = threading.Event()
        self._faults = faults
        self._done = done
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keeper of {victim.name}", daemon=True)

    def start(self, began: float) -> None:
        """Begin; the schedule's time counts from `began`, of the monotonic clock."""
        self._began = began
        self._thread.start()

    def stop(self) -> None:
        """Keep it alive no longer; a fault that lasts is undone first."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for fault in self._faults:
                self._keep_until(fault.at)
                if self._stop.is_set():
                    break
                self.victim.begin(fault)
                self._done[self.victim.name.partition("-")[0], fault.kind] += 1
                self._stop.wait(fault.seconds)
                self.victim.end(fault)
            self.through.set()
            self._keep_until(float("inf"))
        except Exception as failure:  # noqa: BLE001  (whatever it is, the run fails by it)
            self.failure = failure
            self.through.set()

    def _keep_until(self, at: float) -> None:
        while not self._stop.is_set():
            self.victim.look_after()
            left = self._began + at - time.monotonic()
            if left <= 0 or self._stop.wait(min(left, _LOOK_SECONDS)):
                return


@contextmanager
def kept(keepers: Sequence[Keeper]) -> Iterator[None]:
    """Begin all keepers at the same time; stop those that are left at the end."""
    began = time.monotonic()
    for keeper in keepers:
        keeper.start(began)
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.stop()
