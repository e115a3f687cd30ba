"""The power goes between any two system calls of a folder's writers: what was promised is there, and all goes on."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.folder import Folder
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import PenstockError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import (
    SPEC,
    TOPIC,
    Row,
    ScriptedProducer,
    open_partition,
    records,
    stored_episodes,
    take_all,
)
from tests.consumers.power import Disk, Files, Journal, Killed, read, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock_consumers.partition import Partition

SYNCS = {"create data", "put data", "create", "put", "_make", "_sync_last"}
JOINED_AT = 4


@pytest.fixture(autouse=True)
def _small_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few commits fill more than one folder of commits."""
    monkeypatch.setattr(layout, "COMMITS_PER_FOLDER", 2)
    monkeypatch.setattr(commits, "FULL_EVERY", 3)


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    """Seven records: episodes that end at once, that stay open over commits, and that are cut."""
    log = MemoryLog()
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3, Ends.TERMINATED), Row(1, 0, 0, 0, 2))
    producer.send(Row(0, 1, 0, 0, 2), Row(1, 0, 1, 2, 2))
    producer.send(Row(0, 1, 1, 2, 2, Ends.TRUNCATED))
    producer.send(Row(0, 2, 0, 0, 1, Ends.TERMINATED))
    producer.send(Row(1, 0, 2, 4, 1, Ends.TERMINATED))
    producer.end()
    return log


@pytest.fixture(scope="module")
def whole(log: MemoryLog) -> list[dict[str, Any]]:
    """The episodes of the whole log."""
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    take_all(partition, log)
    partition.commit()
    return stored_episodes(bucket)


class Run:
    """A consumer on a folder whose disk is journalled, and what its commits hold."""

    def __init__(self, disk: Path, log: MemoryLog) -> None:
        disk.mkdir(exist_ok=True)
        self.root = disk / "store"
        self.log = log
        self.before = read(disk)
        self.journal = Journal(disk)
        self.held: dict[int, list[dict[str, Any]]] = {-1: []}

    def start(self) -> Partition:
        """A consumer that is started anew."""
        return open_partition(self.log, Folder(self.root))

    def consume(self, partition: Partition, upto: int = 1_000) -> None:
        """Commit after every record; join the segments at commit `JOINED_AT`, and delete what they were."""
        for record in records(self.log):
            if partition.high_water <= record.offset < upto:
                partition.take(record)
                self._committed(partition.commit)
                if partition.commit_found is not None and partition.commit_found.number == JOINED_AT - 1:
                    self.join(partition)

    def join(self, partition: Partition) -> None:
        """Compact as the owner of a partition does."""
        bucket = open_bucket(self.root)
        old = partition.live.segments
        schema = segments.episode_schema(SPEC)
        table = pa.Table.from_batches([segments.read(bucket, entry, schema) for entry in old]).combine_chunks()
        entry = segments.write_episodes(bucket, layout.segment(0, JOINED_AT), table.to_batches()[0])
        self._committed(lambda: partition.rewrite(added=[entry], removed=[entry.name for entry in old]))
        for entry in old:
            bucket.delete(entry.name)

    def _committed(self, act: Callable[[], object]) -> None:
        act()
        bucket = open_bucket(self.root)
        newest = commits.newest(bucket, 0)
        assert newest is not None
        self.journal.promise(newest.number)
        self.held[newest.number] = stored_episodes(bucket)

    def check(self, tmp: Path, whole: list[dict[str, Any]], states: Iterator[tuple[int, Files]]) -> int:
        """Reopen after each power cut; gives how many different disks there were."""
        seen: set[object] = set()
        for at, files in states:
            known = {name: data for name, data in files.items() if "/." not in name}
            key = (self.journal.promised(at), frozenset(known.items()))
            if key not in seen:
                seen.add(key)
                self._reopen(tmp / "disk", whole, at, files)
        return len(seen)

    def _reopen(self, disk: Path, whole: list[dict[str, Any]], at: int, files: Files) -> None:
        shutil.rmtree(disk, ignore_errors=True)
        write(files, disk)
        store = disk / self.root.name
        partition = open_partition(self.log, open_bucket(store))
        number = partition.commit_found.number if partition.commit_found else -1
        assert number >= self.journal.promised(at), "a commit that was promised is missing"
        if number in self.held:
            assert stored_episodes(open_bucket(store)) == self.held[number]
        take_all(partition, self.log)
        partition.commit()
        assert stored_episodes(open_bucket(store)) == whole
        found = commits.newest(open_bucket(store), 0)
        for earlier in range(found.number if found else 0):
            commits.read(open_bucket(store), 0, earlier)


def every_cut(run: Run, journal: Journal) -> Iterator[tuple[int, Files]]:
    """Every disk that a power cut between any two calls may leave."""
    disk = Disk(run.before)
    for at, call in enumerate(journal.calls):
        yield from ((at, files) for files in disk.after_a_power_cut())
        disk.apply(call)
    yield from ((len(journal.calls), files) for files in disk.after_a_power_cut())


def harshest_cuts(run: Run, journal: Journal, after: int, promises: int = 2) -> Iterator[tuple[int, Files]]:
    """The disks of which all is lost that may be, as the next few things have just been promised after a call."""
    disk, told = Disk(run.before), [when for when, _ in journal.promises if when > after][:promises]
    for at, call in enumerate(journal.calls, 1):
        disk.apply(call)
        if at in told:
            yield at, next(disk.after_a_power_cut())


@pytest.fixture
def run(tmp_path: Path, log: MemoryLog) -> Run:
    """A consumer that has written a new store."""
    run = Run(tmp_path / "written", log)
    with run.journal.recorded():
        run.consume(run.start())
    return run


def test_a_new_store(run: Run, tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    assert run.check(tmp_path, whole, every_cut(run, run.journal)) > len(run.held) * 3
    assert {call.why for call in run.journal.calls if call.kind == "sync"} == SYNCS


def test_an_old_store(tmp_path: Path, log: MemoryLog, whole: list[dict[str, Any]]) -> None:
    before = Run(tmp_path / "written", log)
    before.consume(before.start(), upto=3)
    run = Run(tmp_path / "written", log)
    run.held = before.held
    run.journal.promise(max(before.held))
    with run.journal.recorded():
        run.consume(run.start())
    assert run.check(tmp_path, whole, every_cut(run, run.journal)) > len(run.held)


def killed_runs(tmp_path: Path, log: MemoryLog, commits_before: int) -> Iterator[tuple[int, Run]]:
    """For each call of the next commits, a consumer that is killed before it, and one that goes on from there."""
    before = Run(tmp_path / f"before-{commits_before}", log)
    before.consume(before.start(), upto=commits_before)
    for kill in itertools.count():
        disk = tmp_path / f"killed-{commits_before}-{kill}"
        shutil.copytree(before.journal.root, disk)
        run = Run(disk, log)
        run.held = dict(before.held)
        run.journal.promise(max(before.held))
        run.journal.kill_at = kill
        with run.journal.recorded():
            with suppress(Killed):
                run.consume(run.start(), upto=commits_before + 2)
                return
            run.journal.kill_at = None
            run.consume(run.start(), upto=commits_before + 3)
        yield kill, run


@pytest.mark.parametrize("commits_before", [0, 3])
def test_after_a_consumer_that_was_killed(
    commits_before: int, tmp_path: Path, log: MemoryLog, whole: list[dict[str, Any]]
) -> None:
    runs = 0
    for kill, run in killed_runs(tmp_path, log, commits_before):
        run.check(tmp_path, whole, harshest_cuts(run, run.journal, kill))
        runs += 1
    assert runs > 30


@pytest.mark.parametrize("why", sorted(SYNCS - {"_sync_last"}))
def test_each_sync_is_needed(why: str, run: Run, tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    with pytest.raises((AssertionError, PenstockError)):
        run.check(tmp_path, whole, every_cut(run, run.journal.without(why)))


def test_the_sync_before_a_new_folder_is_needed(tmp_path: Path, log: MemoryLog, whole: list[dict[str, Any]]) -> None:
    def all_stands() -> None:
        for kill, run in killed_runs(tmp_path, log, 3):
            run.check(tmp_path, whole, harshest_cuts(run, run.journal.without("_sync_last"), kill))

    with pytest.raises((AssertionError, PenstockError)):
        all_stands()


def test_a_name_that_is_taken_stays_taken(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.recorded():
        Folder(tmp_path).put("a/1", b"x")
        journal.kill_at = len(journal.calls) + [call.kind for call in journal.calls].index("rename") + 1
        with suppress(Killed):
            Folder(tmp_path).create("a/2", b"x")
        journal.kill_at = None
        assert not Folder(tmp_path).create("a/2", b"y")
    disk = Disk({})
    for call in journal.calls:
        disk.apply(call)
    assert all(files["a/2"] == b"x" for files in disk.after_a_power_cut())
