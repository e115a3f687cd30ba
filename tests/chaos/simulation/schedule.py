"""Random schedules: everything that can go wrong, in an order that one seed tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_consumers.store.commits import MAX_EPISODE_BYTES, Limits
from tests.chaos.simulation.actors import Pod, Producer, Tool
from tests.chaos.simulation.stage import STORE_KINDS, Actor, Fault, Kind
from tests.chaos.simulation.world import Outcome, World, repeatable
from tests.consumers.messages import TOPIC

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_MOST_STEPS = 20_000
# From here on nothing goes wrong any more, so that what is alive can come to an end.
_CALM_FROM = 600
_LOOK_EVERY = 10
_IDLE_MS = (1_000, 4_000)
# The least is passed by a few chunks.
_EPISODE_BYTES = (400, MAX_EPISODE_BYTES, MAX_EPISODE_BYTES)
_HOUR = 3600.0
_LONG_SECONDS = 10.0
# Most operations only look, and what befalls those that write matters most: the smaller, the likelier a fault.
_DICE = {Kind.CREATE: 0.08, Kind.PUT: 0.3, Kind.APPEND: 0.3}


class RandomDirector:
    """Decides everything by one random generator; which faults there are at all is drawn first, for each schedule."""

    world: World

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._stay = rng.choice((0.5, 0.8, 0.95))
        self._step_seconds = rng.choice((0.005, 0.02, 0.1))
        self._most = rng.choice((1, 3, 500))
        self._hidden = rng.choice((0, 0, 3))
        kill, pause, fail, odd = (rng.choice((0.0, 0.0, 0.005, 0.02)) for _ in range(4))
        on_log = rng.choice((0.0, 0.0, 0.01, 0.05))
        self._store_faults = {
            **dict.fromkeys((Fault.KILL_BEFORE, Fault.KILL_AFTER), kill),
            **dict.fromkeys((Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER), pause),
            Fault.FAIL: fail,
            **dict.fromkeys((Fault.LOSE_ANSWER, Fault.LATE), odd),
        }
        # Only what creates can be told that its own success was another's.
        self._exists = 5 * odd
        self._log_faults = {**self._store_faults, **dict.fromkeys((Fault.FAIL, Fault.LOSE_ANSWER, Fault.LATE), on_log)}
        rare = (0.0, 0.0, 0.001, 0.005)
        self._events = {
            name: rng.choice(rare) for name in ("evict", "leave", "outage", "trim", "skew", "late", "settings")
        }
        self._events |= {"evict": rng.choice((0.0, 0.003, 0.01)), "late": 0.05}
        self._outage_until = 0
        self._limits = [_some_limits(rng) for _ in range(4)]

    @property
    def calm(self) -> bool:
        return self.world.stage.steps >= _CALM_FROM

    def next_actor(self, on: Actor, ready: Sequence[Actor]) -> Actor:
        if on in ready and self._rng.random() < self._stay:
            return on
        return self._rng.choice(ready)

    def fault(self, actor: Actor, kind: Kind, name: str) -> Fault:
        if self.calm:
            return Fault.NONE
        if kind is Kind.CREATE and self._rng.random() < self._exists:
            return Fault.EXISTS
        faults = self._store_faults if kind in STORE_KINDS else self._log_faults
        dice = self._rng.random() * _DICE.get(kind, 2.0)
        for fault, share in faults.items():
            if dice < share:
                return self._befalls(fault, actor) if _possible(fault, kind) else Fault.NONE
            dice -= share
        return Fault.NONE

    def _befalls(self, fault: Fault, actor: Actor) -> Fault:
        """Who stands still for long is given up by the group, most of the time."""
        if fault in {Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER} and self._rng.random() < 0.8:
            for pod in self.world.pods:
                if pod.name == actor.name and pod.seen is not None:
                    self.world.expire(pod.seen)
        return fault

    def moves(self) -> None:
        world, rng = self.world, self._rng
        world.go_on(rng.random() * 2 * self._step_seconds)
        if world.stage.steps >= self._outage_until and world.log.outage:
            world.log.outage = False
            world.stage.tell("the log is back")
        if world.stage.late and (self.calm or rng.random() < self._events["late"]) and not world.log.outage:
            world.stage.apply_late(rng.randrange(len(world.stage.late)))
        if world.stage.steps % _LOOK_EVERY == 0:
            world.finished = world.finished or world.quiet()
        if self.calm:
            return
        dice = rng.random()
        for name, share in self._events.items():
            if name != "late" and dice < share:
                getattr(self, f"_{name}")()
                return
            dice -= share

    def most_records(self) -> int:
        return self._rng.randint(1, self._most)

    def hides(self) -> int:
        return 0 if self.calm else self._rng.randint(0, self._hidden)

    def limits(self, pod: int) -> Limits:
        return self._limits[pod]

    def session_steps(self) -> int:
        return self._rng.randint(0, 60)

    def patience(self, seconds: float) -> int:
        return self._rng.choice((0, 3, 30)) if seconds < _LONG_SECONDS else 1_000

    def _evict(self) -> None:
        pod = self._rng.choice(self.world.pods)
        if pod.seen is not None:
            self.world.stage.tell(pod.name, "is evicted")
            self.world.evict(pod.seen)

    def _leave(self) -> None:
        self._rng.choice(self.world.pods).leave = True

    def _outage(self) -> None:
        self.world.log.outage = True
        self._outage_until = self.world.stage.steps + self._rng.randint(5, 100)
        self.world.stage.tell("the log is away")
        # A long one, by the clock: the first record after it must make nobody idle.
        self.world.now += self._rng.choice((0.0, 10.0, _HOUR))

    def _trim(self) -> None:
        partition = self._rng.randrange(self.world.partitions)
        if not self.world.log.outage:
            start, end = self.world.log.bounds(TOPIC, partition)
            offset = self._rng.randint(start, end)
            self.world.stage.tell(f"partition {partition} is trimmed to {offset}")
            self.world.trim(partition, offset)

    def _skew(self) -> None:
        self.world.log_skew = self._rng.choice((-_HOUR, 0.0, _HOUR))
        self.world.stage.tell(f"the log's leader has a clock {self.world.log_skew:g} s apart")

    def _settings(self) -> None:
        """Whoever starts from now on judges by other limits."""
        self._limits = [_some_limits(self._rng) for _ in range(4)]


def _some_limits(rng: random.Random) -> Limits:
    return Limits(idle_limit_ms=rng.choice(_IDLE_MS), max_episode_bytes=rng.choice(_EPISODE_BYTES))


def _possible(fault: Fault, kind: Kind) -> bool:
    """What cannot happen: nothing that only looks takes effect late, or has an effect whose answer is lost."""
    if fault in {Fault.LATE, Fault.LOSE_ANSWER}:
        return kind in {Kind.CREATE, Kind.PUT, Kind.APPEND}
    return True


def play(seed: int) -> Outcome:
    """Play the schedule of a seed."""
    with repeatable(str(seed)) as rng:
        director = RandomDirector(rng)
        world = World(director, partitions=rng.randint(1, 2), most_steps=_MOST_STEPS, pause_steps=rng.randint(5, 300))
        director.world = world
        world.commit_seconds = rng.choice((0.0, 0.2, 1.0))
        world.commit_bytes = rng.choice((1_500, 1 << 20))
        world.revoke_seconds = rng.choice((None, 5.0))
        world.static = rng.random() < 0.2
        world.upkeep_seconds = rng.choice((1e9, 0.5))
        world.collect_seconds = rng.choice((1e9, 0.0, 1.0))
        world.retain_steps = rng.choice((None, None, 10))
        for number in range(rng.randint(1, 2)):
            world.add_producer(Producer(world, number, rng))
        for number in range(rng.choice((1, 2, 2, 3))):
            world.add_pod(Pod(world, number, rng))
        if rng.random() < 0.5:
            world.add_tool(Tool(world, rng))
        return world.play(f"python -m tests.chaos.simulation {seed}", _IDLE_MS)
