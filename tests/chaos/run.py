"""A chaos run: real processes over a real Kafka, broken as a seed's schedule says, and audited when all is still.

`python -m tests.chaos.run --seed 7 --seconds 60` in the repository's root. Where nothing is missing, doubled or changed
its files go; otherwise they stay, and the run says where.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from deploy.local.kafka import LocalKafka
from deploy.local.pod import Pod
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.verify import verify
from penstock_schemas.errors import LogUnavailableError, PenstockError
from penstock_schemas.log.kafka import KafkaLog
from tests.chaos import checks, schedule
from tests.chaos.bucket import injected
from tests.chaos.notes import read_notes
from tests.chaos.rogue import Rogue
from tests.chaos.schedule import BROKER, ROGUE, SESSION_SECONDS
from tests.chaos.victims import BrokerVictim, Keeper, PodVictim, RogueVictim, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.chaos.schedule import Schedule
    from tests.chaos.victims import Victim

STREAM = "chaos"
TOPIC = f"rollouts.{STREAM}"
IDLE_SECONDS = 20
_START_SECONDS = 180.0
_THROUGH_SECONDS = 120.0
_DRAIN_SECONDS = 90.0
_LOOK_SECONDS = 0.2
# What of a schedule is chosen; all else of it comes from these.
_CHOSEN = ("seed", "seconds", "producers", "consumers", "extras", "kills")


@dataclass(frozen=True, slots=True)
class Load:
    """What flows: `pace` is the seconds that a step of a producer's `num_envs` envs takes at least."""

    num_envs: int = 8
    fragment_steps: int = 4
    pace: float = 0.006
    messages: int = 0
    """How many records the topic holds at the end, at least; the run is longer than its schedule where need be."""


@dataclass(slots=True)
class Outcome:
    """What a run has shown."""

    seed: int
    again: str
    """The command that repeats it."""
    phases: dict[str, float] = field(default_factory=dict)
    """How many seconds each took."""
    messages: int = 0
    steps: int = 0
    episodes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, int] = field(default_factory=dict)
    own_exits: dict[str, list[int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Run:
    """One run of one schedule; every process that it starts dies with it."""

    def __init__(self, plan: Schedule, load: Load, folder: Path) -> None:
        self._plan = plan
        self._load = load
        self._folder = folder
        self._store = folder / "store"
        self._bucket = open_bucket(self._store)
        # Producers' names end in ordinals, so each has a partition of its own.
        self._partitions = plan.producers
        self._done: Counter[tuple[str, str]] = Counter()
        self._in_phase: tuple[str, float] | None = None
        self.outcome = Outcome(plan.seed, command(plan, load))

    def __call__(self) -> Outcome:
        """Start everything, let it be broken, let it settle, and audit what is left."""
        with ExitStack() as opened:
            self._phase("start")
            kafka = opened.enter_context(LocalKafka(self._folder / "kafka"))
            log = opened.enter_context(KafkaLog(kafka.bootstrap_servers, client_id="chaos", delivery_timeout=15.0))
            log.create(TOPIC, partitions=self._partitions)
            pods = self._pods(kafka.bootstrap_servers)
            opened.callback(self._sum_up, pods)
            for victim in pods.values():
                opened.callback(victim.pod.kill)
                victim.start()
            opened.push(partial(_ask_where_they_are, pods, kafka, self._folder))
            self._await(
                "the first commits", _START_SECONDS, lambda: all(map(self._high_water, range(self._partitions)))
            )
            self._live(kafka, log, pods)
            self._stop(pods, "consumer")
            self._phase("audit")
            self._audit(kafka, log)
        return self.outcome

    def _phase(self, name: str | None) -> None:
        now = time.monotonic()
        if self._in_phase:
            self.outcome.phases[self._in_phase[0]] = round(now - self._in_phase[1], 1)
        self._in_phase = (name, now) if name else None

    def _pods(self, servers: str) -> dict[str, PodVictim]:
        made = {}
        for name in self._plan.faults:
            if name.startswith("producer-"):
                made[name] = PodVictim(Pod(name, "tests.chaos.producer", self._producer(name, servers), self._folder))
            elif name.startswith("consumer-"):
                pod = Pod(name, "tests.chaos.consumer", self._consumer(name, servers), self._folder)
                # Those that are added and taken away have nothing else in their timeline.
                added = any(fault.kind is schedule.Act.JOIN for fault in self._plan.faults[name])
                made[name] = PodVictim(pod, self._control(name), wanted=not added)
        return made

    def _producer(self, name: str, servers: str) -> list[str]:
        load = self._load
        return [
            str(self._ledger(name)),
            *("--stream", STREAM, "--bootstrap-servers", servers, "--producer-id", name),
            *("--env", "tests.chaos.env:make", "--env-arguments", json.dumps({"pace": load.pace})),
            *("--policy", "random", "--num-envs", str(load.num_envs)),
            *("--fragment-steps", str(load.fragment_steps), "--fragment-seconds", "0.2"),
            *("--delivery-timeout-seconds", "5"),
        ]

    def _consumer(self, name: str, servers: str) -> list[str]:
        instance = ("--instance", name) if self._plan.static else ()
        return [
            str(self._control(name)),
            str(self._plan.ahead[name]),
            *("--stream", STREAM, "--bootstrap-servers", servers, "--store", str(self._store)),
            *("--session-seconds", str(SESSION_SECONDS), "--idle-seconds", str(IDLE_SECONDS)),
            *("--commit-seconds", "0.3", "--commit-bytes", str(4 << 20), "--revoke-seconds", "3"),
            *("--upkeep-seconds", "2", "--compact-bytes", str(1 << 20), "--collect-seconds", "4"),
            *instance,
        ]

    def _control(self, name: str) -> Path:
        return self._folder / f"{name}.trouble"

    def _ledger(self, name: str) -> Path:
        return self._folder / f"{name}.ledger"

    def _live(self, kafka: LocalKafka, log: KafkaLog, pods: dict[str, PodVictim]) -> None:
        """Go through the schedule, and on until enough has flowed; end the producers."""
        rogue = Rogue(log, TOPIC, self._partitions, self._plan.seed)
        victims: dict[str, Victim] = {**pods, BROKER: BrokerVictim(BROKER, kafka), ROGUE: RogueVictim(ROGUE, rogue)}
        keepers = {name: Keeper(victim, self._plan.faults[name], self._done) for name, victim in victims.items()}

        producing = [name for name in pods if name.startswith("producer-")]
        producers = [pods[name].pod for name in producing]

        def through() -> bool:
            self._raise_failures(keepers.values())
            return all(keeper.through.is_set() for keeper in keepers.values())

        def enough() -> bool:
            self._raise_failures(keepers.values())
            return sum(self._ends(log)) >= self._load.messages

        self._phase("faults")
        with kept(list(keepers.values())):
            self._await("the end of the schedule", self._plan.seconds + _THROUGH_SECONDS, through)
            self._phase("flow")
            self._await("the messages", max(10.0 * self._plan.seconds, _THROUGH_SECONDS), enough)
            self._phase("end")
            # One that was just started has its begin record in the log first: what it was before ends there.
            self._await("all producers to begin", _START_SECONDS, lambda: all(map(_has_begun, producers)))
            for name in producing:
                keepers[name].stop()
            self._stop(pods, "producer")
            self._phase("settle")
            self._settle(log, list(keepers.values()))

    def _settle(self, log: KafkaLog, keepers: Sequence[Keeper]) -> None:
        """Wait until the consumers have judged all that the log holds."""

        def judged() -> bool:
            self._raise_failures(keepers)
            # The ends first: ticks may come at any time.
            return all(self._high_water(number) >= end for number, end in enumerate(self._ends(log)))

        self._await("the consumers to judge the log to its end", _DRAIN_SECONDS, judged)

    def _stop(self, pods: dict[str, PodVictim], kind: str) -> None:
        """Stop all of a kind, together."""
        for name, victim in pods.items():
            if name.startswith(kind):
                victim.pod.signal(signal.SIGTERM)
        for name, victim in pods.items():
            if name.startswith(kind):
                victim.await_end()

    def _audit(self, kafka: LocalKafka, log: KafkaLog) -> None:
        outcome = self.outcome
        outcome.messages = sum(self._ends(log))
        ledgers = [self._ledger(name) for name in self._plan.faults if name.startswith("producer-")]
        outcome.findings += checks.audited(
            kafka.bootstrap_servers, STREAM, self._store, ledgers, idle_limit_ms=IDLE_SECONDS * 1000
        )
        self._phase("verify")
        report = verify(self._bucket, log)
        outcome.steps, outcome.episodes, outcome.counters = report.steps_stored, report.episodes_stored, report.counters
        if not report.ok:
            outcome.findings += ["verify: the store is not what the log says", *report.findings]
        outcome.findings += checks.mixed_up(self._store)

    def _sum_up(self, pods: dict[str, PodVictim]) -> None:
        self._phase(None)
        outcome = self.outcome
        outcome.faults = {f"{kind} of {victim}": number for (victim, kind), number in sorted(self._done.items())}
        noted = (line for name in pods for line in read_notes(injected(self._control(name))))
        outcome.troubles = dict(Counter(words[0] for words in noted))
        outcome.own_exits = {name: victim.own_exits for name, victim in pods.items() if victim.own_exits}
        for victim in pods.values():
            outcome.findings += checks.bad_ends(victim.pod.log_file, [*victim.own_exits, *victim.statuses])

    def _ends(self, log: KafkaLog) -> list[int]:
        reader = log.reader()
        try:
            return [reader.bounds(TOPIC, number)[1] for number in range(self._partitions)]
        finally:
            reader.close()

    def _high_water(self, partition: int) -> int:
        newest = commits.newest(self._bucket, partition)
        return newest.high_water if newest else 0

    def _raise_failures(self, keepers: Iterable[Keeper]) -> None:
        for keeper in keepers:
            if keeper.failure is not None:
                raise keeper.failure

    def _await(self, what: str, seconds: float, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            # A busy broker may take longer to answer than its clients wait.
            with suppress(LogUnavailableError):
                if holds():
                    return
            time.sleep(_LOOK_SECONDS)
        raise PenstockError(f"waited {seconds:g} s for {what}")


def run(plan: Schedule, load: Load, folder: Path) -> Outcome:
    """Run a schedule in a new folder; it stays where anything is found, with a summary and every process's log."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = Run(plan, load, folder)
    try:
        outcome = made()
    except PenstockError as error:
        outcome = made.outcome
        outcome.findings.append(f"the run did not come to its end: {error}")
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome), indent=2))
    if outcome.ok:
        shutil.rmtree(folder)
    return outcome


def told(outcome: Outcome, folder: Path) -> str:
    """Lay an outcome out as text for a person."""
    lines = [
        f"seed {outcome.seed}, seconds: {_counts(outcome.phases)}",
        f"  {outcome.messages:,} messages, {outcome.steps:,} steps in {outcome.episodes:,} episodes",
        f"  broken: {_counts(outcome.faults)}",
        f"  stores: {_counts(outcome.troubles)}",
        f"  ended by themselves: {outcome.own_exits or 'none'}",
        f"  judged: {_counts({name: number for name, number in outcome.counters.items() if number})}",
    ]
    if outcome.ok:
        return "\n".join([*lines, "  0 missing, 0 duplicated, every value as it was sent"])
    found = [f"  FOUND: {found}" for found in outcome.findings]
    return "\n".join([*lines, *found, f"  again: {outcome.again}", f"  kept: {folder}"])


def command(plan: Schedule, load: Load) -> str:
    """Write the command that runs this schedule under this load, each of its options said."""
    options = {**{name: getattr(plan, name) for name in _CHOSEN}, **asdict(load)}
    said = (word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value)))
    return shlex.join(["python", "-m", "tests.chaos.run", *said])


def asked(argv: Sequence[str] | None) -> tuple[Schedule, Load, Path]:
    """What a command line asks for: a schedule, a load, and the folder in which the run's is made."""
    load = Load()
    drawn = random.randrange(1 << 32)  # noqa: S311 - not for secrets
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.run",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=drawn, help="of the schedule; another one each time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults")
    parser.add_argument("--producers", type=int, default=3, help="how many, each with a partition of its own")
    parser.add_argument("--consumers", type=int, default=2, help="how many there are from the beginning")
    parser.add_argument("--extras", type=int, default=1, help="consumers that are added and taken away")
    parser.add_argument("--kills", type=int, default=1, help="SIGKILLs of each kind of process, at least")
    parser.add_argument("--num-envs", type=int, default=load.num_envs, help="of each producer")
    parser.add_argument("--fragment-steps", type=int, default=load.fragment_steps, help="of each env, in a message")
    parser.add_argument("--pace", type=float, default=load.pace, help="seconds that a producer's step takes, at least")
    parser.add_argument("--messages", type=int, default=load.messages, help="in the topic at the end, at least")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="where the run's folder is made")
    words = parser.parse_args(argv)
    plan = schedule.draw(**{name: getattr(words, name) for name in _CHOSEN})
    return plan, Load(**{each.name: getattr(words, each.name) for each in fields(Load)}), words.folder


def _ask_where_they_are(
    pods: Mapping[str, PodVictim], kafka: LocalKafka, folder: Path, kind: object, *_: object
) -> None:
    """Where the run failed: note who held what, and have every process write the stacks of its threads to its log."""
    if kind is None:
        return
    with suppress(KafkaError), KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        group = f"penstock.{STREAM}"
        (folder / "group.json").write_text(json.dumps(admin.describe_groups([group])[group], indent=2, default=str))
    running = [victim for victim in pods.values() if victim.pod.running]
    for victim in running:
        victim.pod.signal(signal.SIGUSR1)
    for victim in running:
        victim.stop()


def _has_begun(producer: Pod) -> bool:
    return any(sample.name == "penstock_producer_starts_total" and sample.value for sample in producer.samples())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "nothing"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one schedule; 0 where nothing was found."""
    plan, load, runs = asked(argv)
    folder = runs / str(plan.seed)
    _say(f"seed {plan.seed}")
    outcome = run(plan, load, folder)
    _say(told(outcome, folder))
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
