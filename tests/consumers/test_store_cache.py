from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pytest

from penstock_consumers.replay import Replay, opening, snapshot
from penstock_consumers.replay.opening import Opener
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.cache import Cache
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError, StoreUnavailableError
from tests.consumers.messages import WrappedBucket
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    import pyarrow as pa
    from _typeshed import TraceFunction

    from penstock_consumers.store.bucket import Bucket
    from penstock_consumers.store.commits import SegmentEntry

SEGMENTS = 6
MAPS, LOCKS = Path("/proc/self/maps"), Path("/proc/locks")
READ = """
import sys
from crc32c import crc32c
from penstock_consumers.replay import snapshot
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.cache import Cache
bucket, cache = open_bucket(sys.argv[1]), Cache(sys.argv[2])
taken = snapshot.take(bucket, snapshot.existing(bucket).spec)
print("ready", flush=True)
sys.stdin.readline()
crcs = [crc32c(cache.read(bucket, entry)) == entry.crc32c for entry in taken.entries]
print(all(crcs), cache.counts.fetched)
"""


class Counted(WrappedBucket):
    """A bucket that keeps the names of what is read, and lets a test do something before a segment is."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.reads: list[str] = []
        self.happens: Callable[[], object] | None = None

    def read(self, name: str) -> pa.Buffer:
        self.reads.append(name)
        if self.happens is not None and name.startswith("segments/"):
            happens, self.happens = self.happens, None
            happens()
        return self.inner.read(name)


@pytest.fixture
def bucket() -> Counted:
    counted = Counted(open_bucket("memory://"))
    writer = Writer(counted, stream())
    for number in range(SEGMENTS):
        writer.commit(0, episodes(writer.spec, [30, 20], first=2 * number, closed_offset=number), high_water=number + 1)
    return counted


@pytest.fixture
def entries(bucket: Bucket) -> tuple[SegmentEntry, ...]:
    return snapshot.take(bucket, stream()).entries


def files(folder: Path) -> list[Path]:
    """What lies in a cache but its lock, that which was used last at the end."""
    return sorted((path for path in folder.glob("*/*")), key=lambda path: path.stat().st_mtime_ns)


def taken(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def delete(path: Path) -> None:
    """As `rm -r` does."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def age(folder: Path) -> None:
    """Let all files have been used one after the other, and long ago: clocks of files are coarse."""
    for at, path in enumerate(files(folder)):
        os.utime(path, ns=(at, at))


def test_a_segment_is_fetched_once_and_mapped(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    first = cache.read(bucket, entries[0])
    assert first.to_pybytes() == bucket.inner.read(entries[0].name).to_pybytes()
    bucket.reads.clear()
    again, other = cache.read(bucket, entries[0]), Cache(str(tmp_path)).read(bucket, entries[0])
    assert (again.to_pybytes(), other.to_pybytes(), bucket.reads) == (first.to_pybytes(), first.to_pybytes(), [])
    assert (cache.counts.fetched, cache.counts.fetched_bytes, cache.counts.hits) == (1, entries[0].bytes, 1)
    (file,) = files(tmp_path)
    assert str(file) in MAPS.read_text()
    assert cache.holds(bucket, entries[0])
    assert not cache.holds(bucket, entries[1])


def test_stores_of_other_urls_are_kept_apart(
    entries: tuple[SegmentEntry, ...], bucket: Counted, tmp_path: Path
) -> None:
    class Elsewhere(WrappedBucket):
        url = "s3://elsewhere"

    cache = Cache(tmp_path)
    cache.read(bucket, entries[0])
    cache.read(Elsewhere(bucket), entries[0])
    assert (cache.counts.fetched, len(files(tmp_path))) == (2, 2)


def test_what_was_used_longest_ago_goes_and_the_bound_is_kept(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    most = entries[0].bytes + entries[1].bytes + entries[2].bytes
    cache = Cache(tmp_path, most)

    def read(number: int) -> None:
        age(tmp_path)
        cache.read(bucket, entries[number])
        assert taken(tmp_path) <= most

    for number in (0, 1, 2, 0, 3):
        read(number)
    assert [cache.holds(bucket, entry) for entry in entries] == [True, False, True, True, False, False]
    age(tmp_path)
    cache.touch(bucket, entries[2])
    read(4)
    assert [cache.holds(bucket, entry) for entry in entries] == [False, False, True, True, True, False]
    assert (cache.counts.fetched, cache.counts.evicted) == (5, 2)


def test_what_is_evicted_stays_readable_to_who_maps_it_and_is_counted(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    cache = Cache(tmp_path, entries[0].bytes)
    held = np.frombuffer(cache.read(bucket, entries[0]), np.uint8)
    cache.read(bucket, entries[1])
    assert (cache.counts.evicted, cache.counts.evicted_in_use) == (1, 1)
    assert held.tobytes() == bucket.inner.read(entries[0].name).to_pybytes()
    assert "(deleted)" in MAPS.read_text()
    # That of entry 1 is let go of.
    cache.read(bucket, entries[2])
    assert (cache.counts.evicted, cache.counts.evicted_in_use) == (2, 1)


@pytest.mark.parametrize("harm", ["cut", "altered", "longer"])
def test_what_its_store_has_wrongly_is_never_mapped(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path, harm: str
) -> None:
    whole = bucket.inner.read(entries[0].name).to_pybytes()
    altered = {"cut": whole[:-1], "altered": whole[:-1] + bytes([whole[-1] ^ 1]), "longer": whole + b"x"}
    bucket.inner.put(entries[0].name, altered[harm])
    cache = Cache(tmp_path)
    with pytest.raises(CorruptStoreError, match=f"segment {entries[0].name}: what store memory:// has of it"):
        cache.read(bucket, entries[0])
    assert files(tmp_path) == []
    bucket.inner.put(entries[0].name, whole)
    assert cache.read(bucket, entries[0]).to_pybytes() == whole


def test_a_file_that_was_cut_is_fetched_again(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    whole = cache.read(bucket, entries[0]).to_pybytes()
    for harmed in (whole[:-10], b""):
        files(tmp_path)[0].unlink()
        cache.read(bucket, entries[0])
        files(tmp_path)[0].write_bytes(harmed)
        assert cache.read(bucket, entries[0]).to_pybytes() == whole
    assert cache.counts.fetched == 5


def test_a_file_that_was_altered_is_fetched_again_by_who_verifies(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    whole = cache.read(bucket, entries[0]).to_pybytes()
    files(tmp_path)[0].write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert cache.read(bucket, entries[0], verify=True).to_pybytes() == whole
    assert (cache.counts.fetched, cache.counts.hits) == (2, 0)


@pytest.mark.parametrize("deleted", ["", "*", "*/*.part"])
def test_what_is_deleted_while_it_is_fetched_is_given_as_it_was_written(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path, deleted: str
) -> None:
    folder = tmp_path / "cache"
    cache = Cache(folder)
    cache.read(bucket, entries[0])

    def meanwhile() -> None:
        for path in list(folder.glob(deleted)) if deleted else [folder]:
            delete(path)

    bucket.happens = meanwhile
    for _ in range(2):
        assert cache.read(bucket, entries[1]).to_pybytes() == bucket.inner.read(entries[1].name).to_pybytes()
    assert cache.holds(bucket, entries[1])


def test_what_another_began_where_a_file_was_deleted_is_not_taken_for_it(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    ours, folder = Cache(tmp_path / "cache"), tmp_path / "cache"
    other, begun, ended = Counted(bucket.inner), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert ended.wait(30)

    with ThreadPoolExecutor(1) as threads:
        found = []

        def meanwhile() -> None:
            delete(folder)
            other.happens = wait
            found.append(threads.submit(Cache(folder).read, other, entries[0]))
            assert begun.wait(30)

        bucket.happens = meanwhile
        try:
            assert ours.read(bucket, entries[0]).to_pybytes() == bucket.inner.read(entries[0].name).to_pybytes()
            assert not ours.holds(bucket, entries[0])
        finally:
            ended.set()
        assert found[0].result().to_pybytes() == bucket.inner.read(entries[0].name).to_pybytes()
    assert [path.suffix for path in files(folder)] == [".arrow"]


def test_a_cache_that_is_deleted_while_room_is_waited_for_is_made_anew(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    folder, most = tmp_path / "cache", max(entry.bytes for entry in entries)
    with ThreadPoolExecutor(1) as threads:
        found = []

        def meanwhile() -> None:
            (part,) = files(folder)
            found.append(threads.submit(Cache(folder, most).read, Counted(bucket.inner), entries[1]))
            until_somebody_waits_for(part)
            delete(folder)

        bucket.happens = meanwhile
        Cache(folder, most).read(bucket, entries[0])
        assert found[0].result().to_pybytes() == bucket.inner.read(entries[1].name).to_pybytes()


def test_a_file_that_does_not_read_is_fetched_again(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    whole = Cache(tmp_path).read(bucket, entries[0]).to_pybytes()
    (file,) = files(tmp_path)
    file.write_bytes(bytes(len(whole)))
    cache = Cache(tmp_path)
    assert Opener(bucket, stream(), cache=cache).open(entries[0]).fixed("length").tolist() == [30, 20]
    assert (cache.counts.fetched, file.read_bytes()) == (1, whole)


def test_a_segment_that_was_written_otherwise_than_its_commit_says_is_fetched_once(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    bucket.reads.clear()
    with pytest.raises(CorruptStoreError, match=f"segment {entries[0].name}: 2 rows, its commit names 3"):
        Opener(bucket, stream(), cache=Cache(tmp_path)).open(replace(entries[0], rows=3))
    assert bucket.reads == [entries[0].name]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def sync(descriptor: int) -> None:
        (part,) = files(tmp_path)
        synced.append((part.suffix, os.path.samestat(os.fstat(descriptor), part.stat()), part.read_bytes()))

    monkeypatch.setattr(os, "fsync", sync)
    whole = Cache(tmp_path).read(bucket, entries[0]).to_pybytes()
    assert synced == [(".part", True, whole)]


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), FileNotFoundError("absent")])
def test_a_fetch_that_fails_leaves_nothing(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path, error: Exception
) -> None:
    cache = Cache(tmp_path)

    def fail() -> None:
        assert [path.stat().st_size for path in files(tmp_path)] == [entries[0].bytes]
        raise error

    bucket.happens = fail
    with pytest.raises(type(error)):
        cache.read(bucket, entries[0])
    assert files(tmp_path) == []
    assert cache.read(bucket, entries[0]).size == entries[0].bytes


def test_what_a_writer_that_died_left_takes_no_room(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    cache = Cache(tmp_path, max(entry.bytes for entry in entries))
    cache.read(bucket, entries[0])
    for entry in entries[:2]:
        cache._path(bucket, entry).with_suffix(".part").write_bytes(b"x" * 10**6)
    assert cache.read(bucket, entries[1]).to_pybytes() == bucket.inner.read(entries[1].name).to_pybytes()
    assert [path.suffix for path in files(tmp_path)] == [".arrow"]


def test_what_others_keep_in_the_folder_stays_and_takes_no_room(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    own = Cache(tmp_path)._path(bucket, entries[0])
    others = [
        *(tmp_path / "downloads" / name for name in ("data.arrow", "film.part", own.name)),
        *(own.parent / name for name in ("data.arrow", "film.part", f"copy-of-{own.name}")),
        tmp_path / own.name,
        tmp_path / (16 * "0"),
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(10**6))
    cache = Cache(tmp_path, 2 * max(entry.bytes for entry in entries))
    for entry in entries:
        cache.read(bucket, entry)
    assert [path.stat().st_size for path in others] == [10**6] * len(others)
    assert cache.counts.evicted == SEGMENTS - 2


def test_a_segment_that_is_larger_than_the_cache(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    cache = Cache(tmp_path, entries[0].bytes - 1)
    with pytest.raises(
        SettingsError, match=rf"segment {entries[0].name} has [\d,]+ bytes, the cache no more than max_b"
    ):
        cache.read(bucket, entries[0])
    assert files(tmp_path) == []
    with pytest.raises(SettingsError, match="max_bytes 0: at least one byte"):
        Cache(tmp_path, 0)
    with pytest.raises(SettingsError, match="max_bytes '5GB': a whole number"):
        Cache(tmp_path, "5GB")  # type: ignore[arg-type]  (that is tested)


def test_a_user_without_a_folder_is_told_to_give_one(
    bucket: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Remote(WrappedBucket):
        url = "s3://bucket/store"

    def absent(_: int) -> NoReturn:
        raise KeyError("uid")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", absent)
    replay = Replay.open(Remote(bucket))
    with pytest.raises(SettingsError, match=r"cache: neither \$XDG_CACHE_HOME nor \$HOME .* cache=Cache\(folder"):
        list(replay.episodes())
    assert list(Replay.open(Remote(bucket), cache=Cache(tmp_path)).episodes())


def test_filling_counts_files_once_and_asks_for_no_more_than_it_evicts(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    """Each look into the whole folder, or at all that is open, would cost more the more there is."""

    class Watched(Cache):
        counted = asked = 0

        def _files(self) -> tuple[dict[Path, tuple[int, int]], dict[Path, int]]:
            self.counted += 1
            return super()._files()

        def holds(self, bucket: Bucket, entry: SegmentEntry) -> bool:
            self.asked += 1
            return super().holds(bucket, entry)

        def maps(self, bucket: Bucket, entry: SegmentEntry) -> bool:
            self.asked += 1
            return super().maps(bucket, entry)

    cache = Watched(tmp_path / "large")
    opener = Opener(bucket, stream(), cache=cache)
    for entry in entries:
        opener.open(entry)
    assert (cache.counts.fetched, cache.counted, cache.asked) == (SEGMENTS, 1, 0)
    # Where the cache is full it knows which are next, and counts when it does not know any more.
    full = Watched(tmp_path / "full", 3 * max(entry.bytes for entry in entries))
    for _ in range(5):
        for entry in entries:
            full.read(bucket, entry)
            assert taken(tmp_path / "full") <= full.max_bytes
    assert full.counts.fetched == 5 * SEGMENTS
    assert full.counted <= 1 + 5 * SEGMENTS / 3


def test_what_others_fetched_counts_before_this_process_counts_again(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    most = 4 * max(entry.bytes for entry in entries)
    ours, others = Cache(tmp_path, most), Cache(tmp_path, most)
    for one, number in [(ours, 0), (others, 1), (others, 2), (others, 3), (ours, 4), (others, 5), (ours, 1)]:
        one.read(bucket, entries[number])
        assert taken(tmp_path) <= most
    # Deleted by hand, all counts as there until it would matter.
    for path in files(tmp_path):
        path.unlink()
    for entry in entries:
        ours.read(bucket, entry)
        assert taken(tmp_path) <= most
    assert len(files(tmp_path)) == 4


def test_a_fetch_that_fails_gives_its_room_back(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    def fail() -> NoReturn:
        raise StoreUnavailableError("away")

    cache = Cache(tmp_path, sum(entry.bytes for entry in entries))
    for entry in entries[1:]:
        cache.read(bucket, entry)
    for _ in range(20):
        bucket.happens = fail
        with pytest.raises(StoreUnavailableError):
            cache.read(bucket, entries[0])
    cache.read(bucket, entries[0])
    assert cache.counts.evicted == 0


def test_threads_map_what_they_read_while_another_counts_files(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    most = sum(entry.bytes for entry in entries[:4])
    for entry in entries[:4]:
        Cache(tmp_path, most).read(bucket, entry)
    age(tmp_path)
    cache = Cache(tmp_path, most)
    held = [cache.read(bucket, entry) for entry in entries[1:3]]

    def another(_frame: FrameType, _event: str, _value: object) -> TraceFunction:
        """As a thread does whose turn comes before this line."""
        cache.read(bucket, entries[3])
        return another

    before = sys.gettrace()
    sys.settrace(another)
    try:
        held.append(cache.read(bucket, entries[4]))
    finally:
        sys.settrace(before)
    assert [view.size for view in held] == [entries[at].bytes for at in (1, 2, 4)]
    assert cache.counts.evicted == 1


def test_what_others_evicted_is_let_go_of(bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path) -> None:
    most = 2 * max(entry.bytes for entry in entries)
    opener, other = Opener(bucket, stream(), cache=Cache(tmp_path, most)), Cache(tmp_path, most)
    for entry in entries[:2]:
        opener.open(entry)
    for entry in entries[2:4]:
        other.read(bucket, entry)
    opener.open(entries[4])
    assert [*opener._kept] == [entries[4].name]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, errno.EIO])
def test_a_file_that_may_only_be_read_is_read(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    Cache(tmp_path).read(bucket, entries[0])

    def refused(path: Path) -> NoReturn:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "utime", refused)
    if number == errno.EIO:
        with pytest.raises(StoreError, match="Input/output error"):
            Cache(tmp_path).read(bucket, entries[0])
    else:
        assert Cache(tmp_path).read(bucket, entries[0]).size == entries[0].bytes


def test_an_open_segment_is_touched_at_most_once_a_minute(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(opening.time, "monotonic", lambda: now[0])
    opener = Opener(bucket, stream(), cache=Cache(tmp_path))
    opener.open(entries[0])
    for now[0], touched in [(159.0, False), (160.0, True), (219.0, False), (220.0, True)]:
        age(tmp_path)
        opener.open(entries[0])
        assert (files(tmp_path)[0].stat().st_mtime_ns > SEGMENTS) == touched


def test_a_folder_that_is_none_is_named(bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cache .*/file: .*: give Replay\.open another, cache=Cache\(folder"):
        Cache(tmp_path / "file").read(bucket, entries[0])


def test_who_comes_second_waits_for_the_first_and_fetches_nothing(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as threads:
        second = []

        def meanwhile() -> None:
            (part,) = files(tmp_path)
            with part.open("rb") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            second.append(threads.submit(Cache(tmp_path).read, bucket, entries[0]))
            until_somebody_waits_for(part)

        bucket.happens, bucket.reads = meanwhile, []
        first = Cache(tmp_path).read(bucket, entries[0])
        assert second[0].result().to_pybytes() == first.to_pybytes()
    assert bucket.reads == [entries[0].name]


def test_who_comes_just_after_the_first_fetches_nothing(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    class Late(Cache):
        def _found(self, path: Path, entry: SegmentEntry, *, verify: bool) -> pa.Buffer | None:
            found = super()._found(path, entry, verify=verify)
            if found is None:
                Cache(tmp_path).read(bucket, entry)
            return found

    bucket.reads.clear()
    assert Late(tmp_path).read(bucket, entries[0]).size == entries[0].bytes
    assert bucket.reads == [entries[0].name]


def test_who_finds_no_room_waits_until_what_is_being_written_can_go(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    most = max(entry.bytes for entry in entries)
    waited = threading.Event()

    def second() -> pa.Buffer:
        def check() -> None:
            assert waited.is_set()
            assert taken(tmp_path) <= most

        other = Counted(bucket.inner)
        other.happens = check
        return Cache(tmp_path, most).read(other, entries[1])

    with ThreadPoolExecutor(1) as threads:
        found = []

        def meanwhile() -> None:
            (part,) = files(tmp_path)
            found.append(threads.submit(second))
            until_somebody_waits_for(part)
            waited.set()

        bucket.happens = meanwhile
        Cache(tmp_path, most).read(bucket, entries[0])
        assert found[0].result().size == entries[1].bytes
    assert taken(tmp_path) == entries[1].bytes


def test_who_waits_for_room_waits_for_nobody_that_waits_for_it(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    most = max(entry.bytes for entry in entries)
    with ThreadPoolExecutor(2) as threads:
        found = []

        def meanwhile() -> None:
            (part,) = files(tmp_path)
            for count in (1, 2):
                found.append(threads.submit(Cache(tmp_path, most).read, Counted(bucket.inner), entries[count]))
                until_somebody_waits_for(part, count)

        bucket.happens = meanwhile
        Cache(tmp_path, most).read(bucket, entries[0])
        assert [read.result().size for read in found] == [entries[1].bytes, entries[2].bytes]


def test_a_process_that_is_forked_meanwhile_holds_nobody_up(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    """As the workers of a loader are, while a thread fetches a segment."""
    end, write = os.pipe()
    with ThreadPoolExecutor(1) as threads:
        second = []

        def meanwhile() -> None:
            second.append(threads.submit(Cache(tmp_path).read, bucket, entries[0]))
            until_somebody_waits_for(files(tmp_path)[0])
            forked.append(os.fork())
            if not forked[-1]:
                os.close(write)
                os.read(end, 1)
                os._exit(0)

        forked: list[int] = []
        bucket.happens = meanwhile
        try:
            Cache(tmp_path).read(bucket, entries[0])
            assert second[0].result(20).size == entries[0].bytes
        finally:
            os.close(write)
            os.close(end)
            os.waitpid(forked[0], 0)


def until_somebody_waits_for(path: Path, count: int = 1) -> None:
    """Return once a lock on a file is waited for, as the kernel tells."""
    inode = f":{path.stat().st_ino} "
    until = time.monotonic() + 30.0
    while sum("->" in line and inode in line for line in LOCKS.read_text().splitlines()) < count:
        assert time.monotonic() < until, f"not {count} wait for {path}"
        threading.Event().wait(0.001)


def test_processes_that_race_fetch_each_segment_once(s3_url: str, tmp_path: Path) -> None:
    writer = Writer(open_bucket(s3_url), stream())
    writer.commit(0, *(episodes(writer.spec, [30], first=at, closed_offset=at) for at in range(4)))
    command = [sys.executable, "-c", READ, s3_url, str(tmp_path)]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  (ours)
        for _ in range(3)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    told = [reader.communicate(timeout=60)[0].split() for reader in readers]
    assert [whole for whole, _ in told] == ["True"] * 3
    assert sum(int(fetched) for _, fetched in told) == 4
    assert [path.suffix for path in files(tmp_path)] == [".arrow"] * 4


def test_a_store_that_is_larger_than_its_cache_is_read_whole(bucket: Counted, tmp_path: Path) -> None:
    plain = snapshot.take(bucket, stream())
    most = 2 * max(entry.bytes for entry in plain.entries)
    cache = Cache(tmp_path, most)
    through = snapshot.take(bucket, stream(), cache=cache, verify=True)
    for _ in range(3):
        for expected, found in zip(plain.segments, through.segments, strict=True):
            assert found.batch.equals(expected.batch)
            assert taken(tmp_path) <= most
    assert cache.counts.fetched == 3 * SEGMENTS
    # What was evicted is let go of, but for what is held here.
    assert MAPS.read_text().count(str(tmp_path)) <= 3
    assert {path.suffix for path in files(tmp_path)} == {".arrow"}


def test_what_is_open_is_not_what_was_used_longest_ago(
    bucket: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = snapshot.take(bucket, stream()).entries
    monkeypatch.setattr(opening, "_TOUCH_SECONDS", 0.0)
    cache = Cache(tmp_path, 2 * max(entry.bytes for entry in entries))
    opener = Opener(bucket, stream(), cache=cache)
    opener.open(entries[0])
    for entry in entries[1:]:
        age(tmp_path)
        opener.open(entries[0])
        opener.open(entry)
    assert cache.counts.fetched == SEGMENTS


def test_a_store_in_an_object_store_is_read_through_the_users_cache(s3_url: str, own_cache: Path) -> None:
    writer = Writer(open_bucket(s3_url), stream())
    writer.commit(0, episodes(writer.spec, [3]))
    replay = Replay.open(s3_url)
    assert not own_cache.exists()
    assert [episode.episode for episode in replay.episodes()] == [0]
    writer.commit(0, episodes(writer.spec, [3], first=1, closed_offset=1))
    assert replay.refresh()
    assert [episode.episode for episode in replay.episodes()] == [0, 1]
    assert [path.suffix for path in files(own_cache / "penstock")] == [".arrow"] * 2
    # Segments alone: a commit could be read before it is there.
    assert all("segments" in path.name for path in files(own_cache / "penstock"))


def test_a_folder_and_memory_need_no_cache(tmp_path: Path, own_cache: Path) -> None:
    for url in (str(tmp_path / "store"), (tmp_path / "other").as_uri(), "memory://"):
        bucket = open_bucket(url)
        writer = Writer(bucket, stream())
        writer.commit(0, episodes(writer.spec, [3]))
        assert list(Replay.open(bucket).episodes())
    assert not own_cache.exists()


def test_the_names_of_files_are_those_of_segments(
    bucket: Counted, entries: tuple[SegmentEntry, ...], tmp_path: Path
) -> None:
    Cache(tmp_path).read(bucket, entries[0])
    (file,) = files(tmp_path)
    assert layout.written_for(file.name.replace("-", "/", 2)) == 0
