"""Who plays: producers that publish a script, pods that run real workers, and a tool that compacts."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.upkeep import gc
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import FencedError, LogUnavailableError, PenstockError
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks, encode_end
from tests.chaos.audit.records import Acknowledged
from tests.chaos.simulation.stage import KilledError, Process
from tests.chaos.simulation.views import StagedBucket, StagedLog
from tests.chaos.simulation.workers import worker_of
from tests.consumers.messages import SPEC, STREAM, TOPIC, Row, rows_to_batch

if TYPE_CHECKING:
    import random

    from tests.chaos.simulation.world import World

_ENDS = (*[Ends.OPEN] * 4, Ends.TERMINATED, Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)


class Script:
    """The rows that one incarnation's envs give, message by message."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._open: list[Row | None] = [None] * rng.randint(1, 3)
        self._last = [-1] * len(self._open)
        self._cut: set[int] = set()

    def message(self) -> list[Row]:
        """The rows of the next message."""
        rows = [self._row(env) for env in range(len(self._open)) for _ in range(self._rng.choice((0, 1, 1, 2)))]
        return rows or [self._row(0)]

    def _row(self, env: int) -> Row:
        before = self._open[env]
        ends = self._rng.choice(_ENDS)
        reason = "env raised" if ends is Ends.ABORTED else None
        length = self._rng.randint(1, 3)
        if before is None:
            continues = self._last[env] if env in self._cut else None
            self._last[env] += 1
            row = Row(env, self._last[env], 0, 0, length, ends, reason, None, continues)
        else:
            row = Row(env, before.episode, before.chunk + 1, before.first_step + before.length, length, ends, reason)
        self._open[env] = row if ends is Ends.OPEN else None
        self._cut = self._cut | {env} if ends is Ends.CUT else self._cut - {env}
        return row


class Producer:
    """A producer that is killed and starts again until its script is done; the last time it may stop without a word."""

    def __init__(self, world: World, number: int, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.name = f"producer-{number}"
        self._partition = number % world.partitions
        self._sent: list[Encoded] = []

    def play(self) -> None:
        stage = self._world.stage
        for life in range(self._rng.randint(1, 3)):
            stage.on.process = Process(self.name)
            try:
                self._live()
            except KilledError:
                if stage.over_time:
                    raise
                stage.tell(self.name, f"is dead after life {life}")

    def _live(self) -> None:
        log = StagedLog(self._world.stage, self._world.log, lambda: 500)
        incarnation = self._publish(log, encode_begin(SPEC, self.name, uuid.uuid4().hex))
        script = Script(self._rng)
        sequence = 0
        for _ in range(self._rng.randint(1, self._world.messages)):
            message = self._encode(incarnation, sequence, script.message())
            match self._rng.choices(("send", "lose", "corrupt", "repeat", "garbage", "lie"), self._world.moods)[0]:
                case "send":
                    self._publish(log, message)
                    self._sent.append(message)
                case "corrupt":
                    self._publish(log, self._corrupt(message))
                case "repeat":
                    self._publish(log, message)
                    self._publish(log, self._rng.choice(self._sent[-6:] or [message]))
                case "garbage":
                    self._publish(log, Encoded(self._rng.randbytes(20), ()))
                    self._publish(log, message)
                case "lie":
                    # Rows that do not go on where the episode stands, under the number that is expected.
                    self._publish(log, self._encode(incarnation, sequence, [Row(0, 40, 3, 50, 1)]))
                    self._publish(log, message)
                case _:
                    pass
            sequence += 1
        if self._rng.random() < self._world.polite:
            self._publish(log, encode_end(producer=self.name, incarnation=incarnation, sequence=sequence, reason="bye"))

    def _encode(self, incarnation: int, sequence: int, rows: list[Row]) -> Encoded:
        batch = rows_to_batch(self.name, incarnation, rows)
        told = {"producer": self.name, "incarnation": incarnation, "sequence": sequence}
        return encode_chunks(SPEC, batch, encoding=self._rng.choice((None, None, "zstd")), **told)  # type: ignore[arg-type]  # each has its own type

    def _corrupt(self, message: Encoded) -> Encoded:
        value = message.value or b""
        return self._rng.choice(
            [
                Encoded(value[: self._rng.randrange(1, len(value))], message.headers),
                Encoded(self._rng.randbytes(30), message.headers),
                Encoded(value, message.headers[1:]),
                Encoded(value, (*message.headers, message.headers[-1])),
                Encoded(value, tuple((k, b"x" * 32 if k == "schema" else v) for k, v in message.headers)),
            ]
        )

    def _publish(self, log: StagedLog, message: Encoded) -> int:
        """Send a message until it is acknowledged, as a publisher does, and note it in the ledger."""
        appender = log.appender()
        given = {"key": self.name.encode(), "value": message.value, "headers": message.headers}
        while True:
            try:
                appended = appender.append(TOPIC, self._partition, **given).result()  # type: ignore[arg-type]  # likewise
            except LogUnavailableError:
                log.stage.on.wait(self._rng.randint(1, 20))
                continue
            sha256 = hashlib.sha256(message.value or b"").digest()
            self._world.ledger.append(Acknowledged(appended.partition, appended.offset, sha256))
            return appended.offset


class Pod:
    """A consumer: a real worker, started again whenever it stopped, until nothing is left to do."""

    def __init__(self, world: World, number: int, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.number = number
        self.name = f"consumer-{number}"
        self.leave = False
        self.seen: StagedLog | None = None
        # Its own clock is up to an hour from the others'.
        self.skew = rng.uniform(-3600, 3600)

    def play(self) -> None:
        world, stage = self._world, self._world.stage
        while not world.finished:
            stage.on.process = Process(self.name)
            self.leave = False
            self.seen = StagedLog(stage, world.log, world.director.most_records)
            try:
                self._live(self.seen)
            except KilledError:
                if world.stage.over_time:
                    raise
            # A process that is gone leaves no word: the group learns of it when its session ends.
            world.expire(self.seen)
            stage.tell(self.name, "is gone")
            stage.on.process = Process(self.name)
            stage.on.wait(self._rng.randint(1, 30))

    def _live(self, log: StagedLog) -> None:
        world = self._world
        bucket = StagedBucket(world.stage, world.objects, world.director.hides)
        try:
            store = ReplayStore(bucket, STREAM, log.describe(TOPIC))
            worker = worker_of(world, self, log, store)
        except PenstockError as error:
            world.failed(self.name, error)
            return
        try:
            while not (self.leave or world.finished):
                worker.run_once()
            world.stage.tell(self.name, "leaves")
            worker.close()
        except PenstockError as error:
            world.failed(self.name, error)
            worker.abandon()


class Tool:
    """Joins segments and collects garbage now and then, as an operator does by hand while the owner goes on."""

    name = "tool"

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng

    def play(self) -> None:
        stage = self._world.stage
        bucket = StagedBucket(stage, self._world.objects, self._world.director.hides)
        # An operator comes to an end: one that never does can keep the owner from ever making a commit.
        for _ in range(self._rng.randint(1, 20)):
            try:
                stage.on.wait(self._rng.randint(3, 60))
                if self._rng.random() < 0.2:
                    gc(bucket, self._world.collect_seconds)
                else:
                    self._join(bucket, self._rng.randrange(self._world.partitions))
            except FencedError as error:
                stage.tell(self.name, error)
            except PenstockError as error:
                self._world.failed(self.name, error)
            except KilledError:
                if stage.over_time:
                    raise
                stage.on.process = Process(self.name)

    def _join(self, bucket: StagedBucket, partition: int) -> None:
        newest, found = commits.newest(bucket, partition), manifest.load(bucket)
        if newest is None or found is None:
            return
        live = commits.live_at(bucket, newest)
        if len(live.segments) < 2:
            # Nothing to join: a commit that changes nothing takes the owner's number all the same.
            commits.rewrite(bucket, newest, live)
            return
        schema = segments.episode_schema(found.spec)
        first = self._rng.randrange(len(live.segments) - 1)
        joined = live.segments[first : first + self._rng.randint(2, 4)]
        batch = pa.concat_batches([segments.read(bucket, entry, schema) for entry in joined])
        entry = segments.write_episodes(bucket, layout.segment(partition, newest.number + 1), batch)
        commits.rewrite(bucket, newest, live, added=[entry], removed=[old.name for old in joined])
