"""A lane in a worker process, as its parent sees it."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs.lanes.buffers import Spaces
from penstock_producers.envs.lanes.containment import DIED, HUNG, Containment, Fault
from penstock_producers.envs.lanes.wire import Channel, read_result, write_order
from penstock_schemas.errors import EnvError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Block
    from penstock_producers.envs.lanes.lane import Order, Result
    from penstock_producers.envs.seeds import Seeds
    from penstock_producers.envs.source import EnvSource

# Seconds for a process to start and to make its envs: it imports what they need.
START_TIMEOUT_S = 120.0


class State(Enum):
    """Where a worker stands: it starts, says hello, waits for orders, runs one; from anywhere it may be lost."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    LOST = auto()


class RemoteLane:
    """Starts a worker process, and talks to it without waiting for it.

    Attributes:
        start, stop: its envs' indices are `start … stop - 1`.
        state: where the worker stands.
        result: of the last order, until it is taken.
        deadline: when the worker is taken for hung; infinite where nothing is asked of it.
        spaces: what the first envs of the worker are like, once it has said so.
    """

    _block: Block

    def __init__(
        self,
        source: EnvSource,
        start: int,
        stop: int,
        memory: int,
        *,
        seeds: Seeds,
        infos: Sequence[str],
        containment: Containment,
        clock: Callable[[], float],
    ) -> None:
        self.start, self.stop = start, stop
        self.result: Result | None = None
        self.state = State.LOST
        self._containment = containment
        self._clock = clock
        self.deadline = math.inf
        # How long the order that it runs may take.
        self._limit = containment.step_timeout
        self._layout: dict[str, Any] | None = None
        self.spaces: Spaces | None = None
        self._settings = {
            "source": source.to_json(),
            "seeds": seeds.to_json(),
            "start": start,
            "stop": stop,
            "infos": list(infos),
            "check_bounds": containment.check_bounds,
        }
        self._name = repr(source.env)
        # Its own, to close with the worker.
        self._memory = os.dup(memory)

    @property
    def is_idle(self) -> bool:
        """Whether it takes an order."""
        return self.state is State.IDLE and self.result is None

    @property
    def filenos(self) -> Sequence[int]:
        """What becomes readable when the worker answers or ends; the same ones until it is lost."""
        return [self._channel.fileno(), *self._ended]

    def launch(self) -> None:
        """Start the worker; it is `IDLE` once it has said hello. Raises `OSError` where there is no room for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # A file, since a socket would hold only so much of it until the worker reads.
            with os.fdopen(os.memfd_create("penstock-worker"), "w+b") as settings:
                # A worker that comes back makes each env when that is due.
                settings.write(json.dumps({**self._settings, "make": self._layout is None}).encode())
                settings.seek(0)
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own module
                    [sys.executable, "-m", __package__ + ".worker", str(theirs.fileno()), str(self._memory)],
                    stdin=settings,
                    pass_fds=(theirs.fileno(), self._memory),
                    env=_environment(),
                    # What the env starts ends with it, and Ctrl-C is for the parent alone.
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)  # noqa: FBT003 - it takes it by position only
        self._channel = Channel(ours, self._containment.step_timeout)
        self._ended = _end_of(self._process.pid)
        self.state = State.STARTING
        self.deadline = self._clock() + START_TIMEOUT_S

    def poll(self) -> None:
        """Take what the worker has sent: one message, since it sends no other before it is told something.

        Raises `Fault` where it is gone; `EnvError` or `SpaceError` where it could not make its first envs.
        """
        try:
            message = self._channel.receive()
        except EOFError:
            raise Fault(DIED, self._death()) from None
        if message is None:
            if self._process.poll() is not None:  # something that it started holds its socket open
                raise Fault(DIED, self._death())
            # It is sending: the rest of a long message comes as fast as it is taken.
            self.deadline = max(self.deadline, self._clock() + self._containment.step_timeout)
            return
        if self.state is State.BUSY:
            self.result = read_result(message, self._block)
            self._rest()
        elif self._layout is None:
            self.spaces = _greeting(message[0])
        else:
            self._tell(self._layout)
            self._rest()

    def attach(self, block: Block, num_envs: int, spaces: Spaces) -> None:
        """Tell the worker of the block of all envs, now that it is known of what; this lane has a part of it."""
        self._block = block.part(self.start, self.stop)
        self._layout = {"spaces": spaces.to_json(), "num_envs": num_envs}
        self._tell(self._layout)
        self._rest()

    def submit(self, order: Order) -> None:
        """Have the worker run an order."""
        makes = any(begin.rebuild for begin in order.begin.values())
        self.state = State.BUSY
        self._limit = START_TIMEOUT_S if makes else self._containment.step_timeout
        self.deadline = self._clock() + self._limit
        self._tell(*write_order(order, self._block))

    def render(self, place: int) -> NDArray[np.generic] | None:
        """Have an idle worker's env draw itself; None where it is down or draws no array.

        Raises `EnvError` where it fails, and `Fault` where the worker is gone, or takes longer than a step may.
        """
        limit = self._containment.step_timeout
        try:
            self._channel.send({"render": place})
            message, raw = self._channel.await_message(limit)
        except TimeoutError:
            raise Fault(HUNG, f"render() gave nothing within {limit:g} s: its worker process was killed") from None
        except (EOFError, OSError):
            raise Fault(DIED, self._death()) from None
        if "error" in message:
            raise EnvError(f"environment {self._name}: env {self.start + place}: render() raised {message['error']}")
        if message["frame"] is None:
            return None
        shape, dtype = message["frame"]
        return np.frombuffer(bytearray(raw), dtype).reshape(shape)

    def hung(self) -> Fault:
        """Why a worker past its deadline is lost."""
        if self.state is State.STARTING:
            return Fault(HUNG, f"its worker process did not start within {START_TIMEOUT_S:g} s, and was killed")
        return Fault(HUNG, f"no answer within {self._limit:g} s: its worker process was killed")

    def kill(self) -> None:
        """End the worker, and whatever it has started, at once."""
        self._rest(State.LOST)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Its env may have moved it to another group.
        self._process.kill()
        self._process.wait()
        self._channel.close()
        for ended in self._ended:
            os.close(ended)

    def ask_to_close(self) -> None:
        """Have the worker close its envs and end; `close` waits for it."""
        if self.state is not State.LOST:
            with suppress(OSError):
                self._channel.send({"close": True})

    def close(self, timeout: float) -> None:
        """Wait until the worker has ended, and kill it where it has not in time."""
        if self.state is not State.LOST:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            self.kill()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _rest(self, state: State = State.IDLE) -> None:
        """Nothing is asked of the worker any more."""
        self.state, self.deadline = state, math.inf

    def _tell(self, message: dict[str, Any], raw: bytes = b"") -> None:
        # Where the worker is gone or reads nothing any more, that shows when its answer is waited for.
        with suppress(OSError):
            self._channel.send(message, raw)

    def _death(self) -> str:
        # Its socket is closed, so either it has ended or it is about to.
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=1.0)
            if code < 0:
                return f"its worker process was killed by {_signal_name(-code)}"
            return f"its worker process ended with exit code {code}"
        return "its worker process closed its socket"


def _end_of(process: int) -> Sequence[int]:
    """What becomes readable when a process ends; nothing where the system cannot tell, and its socket has to."""
    try:
        return [os.pidfd_open(process)]
    except OSError:
        return []


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have none
        return f"signal {number}"


def _greeting(message: dict[str, Any]) -> Spaces:
    if "error" in message:
        raise (SpaceError if message["type"] == "SpaceError" else EnvError)(message["error"])
    return Spaces.from_json(message["spaces"])


def _environment() -> dict[str, str]:
    # What can be imported here can be imported there. One worker is meant to keep one core busy.
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
