"""An owner that is killed at any call of the disk amid upkeep: nothing is lost, nothing stays that nobody needs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import commits, layout, snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import Retention, Upkeep, UpkeepSettings, compaction, gc, upkeep
from penstock_consumers.verify import verify
from tests.consumers.messages import SPEC, WrappedBucket, open_partition, records
from tests.consumers.power import Call, Journal, Killed
from tests.consumers.upkept import Owned, live, newest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock_schemas.log.memory import MemoryLog

BEFORE, TURNS = 8, 4
# In commits, which are made a second apart.
GRACE = 5
SETTINGS = UpkeepSettings(100_000, GRACE, Retention(steps=40))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few commits be enough for all that upkeep does."""
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    monkeypatch.setattr(upkeep, "COLLECT_EVERY", 3)
    monkeypatch.setattr(commits, "FULL_EVERY", 4)


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    """A message for each turn and one for the end, with begin records between."""
    owned = Owned(open_bucket("memory://"), spec=SPEC)
    for _ in range(BEFORE + TURNS + 1):
        owned.send()
    return owned.log


class Aged(WrappedBucket):
    """A bucket in which a commit is as old as its number tells, and what is left unfinished older than all."""

    def modified(self, name: str) -> float:
        super().modified(name)
        place = layout.commit_named(name)
        assert place is not None
        return float(place[1])

    def leftovers(self, prefix: str = "") -> Iterator[tuple[str, float]]:
        yield from ((name, 0.0) for name, _ in super().leftovers(prefix))


class Owner:
    """The owner of a partition of a store in a folder, and those who read there."""

    def __init__(self, root: Path, log: MemoryLog) -> None:
        self.root = root
        self.log = log
        self.readers: dict[int, tuple[Replay, list[str]]] = {}
        self.start()

    def start(self) -> None:
        """Begin as a new process does."""
        self.bucket = Aged(open_bucket(self.root))
        self.partition = open_partition(self.log, self.bucket)
        self.upkeep = Upkeep(self.bucket, SETTINGS)

    def turn(self, number: int) -> None:
        """Commit up to a message, keep the partition up, and give and remove names."""
        every = records(self.log)
        message = [record.offset for record in every if dict(record.headers)["kind"] == b"chunks"][number]
        for record in every[self.partition.high_water : message + 1]:
            self.partition.take(record)
        self.partition.commit()
        while self.upkeep.run(self.partition).rewritten:
            pass
        names = snapshots.names(self.bucket)
        if number % 3 == 0 and f"at-{number}" not in names:
            snapshots.create(self.bucket, f"at-{number}")
        elif number % 3 == 2 and names:
            snapshots.remove(self.bucket, names[0])

    def read(self) -> None:
        """See that who opened the store within the grace can read what was there; open it once more."""
        now = newest(self.bucket).number
        # Opened anew, so that nothing of it is open yet; listed by another, for the same reason.
        self.readers[now] = Replay.open(self.bucket), episodes(Replay.open(self.bucket))
        for number, (replay, seen) in list(self.readers.items()):
            del self.readers[number]
            if number >= now - GRACE:
                if number < now:
                    assert episodes(replay) == seen
                self.readers[number] = Replay.open(self.bucket, snapshot={0: number}), seen

    def end(self) -> None:
        """See that all is there, that what has a name is whole, and that nothing else is left in the end."""
        assert all(episodes(Replay.open(self.bucket, snapshot=name)) for name in snapshots.names(self.bucket))
        self.turn(BEFORE + TURNS)
        for name in snapshots.names(self.bucket):
            snapshots.remove(self.bucket, name)
        gc(self.bucket, 0.0)
        made = {layout.commit(0, number) for number in range(newest(self.bucket).number + 1)}
        found = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
        assert found == {layout.MANIFEST, *made, *live(self.bucket).names}
        assert verify(self.bucket, self.log).ok


def episodes(replay: Replay) -> list[str]:
    return [episode.id for episode in replay.episodes()]


def played(root: Path, log: MemoryLog, kill_at: int | None = None) -> list[Call]:
    """Take the turns, killed after so many calls of the disk, and begun anew; give the calls."""
    journal = Journal(root)
    with journal.recorded():
        owner, turn = Owner(root, log), BEFORE
        journal.kill_at = kill_at
        while turn < BEFORE + TURNS:
            try:
                owner.turn(turn)
                turn += 1
            except Killed:
                journal.kill_at = None
                owner.start()
            owner.read()
        calls = list(journal.calls)
        owner.end()
    return calls


@pytest.mark.chaos
def test_an_owner_that_is_killed_amid_upkeep_loses_nothing_and_leaves_nothing(tmp_path: Path, log: MemoryLog) -> None:
    before = Owner(tmp_path / "before", log)
    for turn in range(BEFORE):
        before.turn(turn)

    def begun(name: str) -> Path:
        return shutil.copytree(before.root, tmp_path / name)

    calls = played(begun("whole"), log)
    done = {(call.kind, (call.target or call.path).partition("/")[0]) for call in calls}
    assert {("rename", "segments"), ("unlink", "segments"), ("link", "snapshots"), ("unlink", "snapshots")} <= done
    for at in range(len(calls)):
        played(begun(f"killed-{at}"), log, at)
