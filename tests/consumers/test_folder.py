from __future__ import annotations

import errno
import io
import os
import re
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_consumers.store.bucket import Bucket

# Each operation, and how a failure names it.
OPERATIONS: dict[str, tuple[Callable[[Bucket], object], str]] = {
    "create": (lambda bucket: bucket.create("a/1", b"x"), "write 'a/1'"),
    "put": (lambda bucket: bucket.put("a/1", b"x"), "write 'a/1'"),
    "read": (lambda bucket: bucket.read("a/1"), "read 'a/1'"),
    "list": (lambda bucket: list(bucket.list("a/")), "list 'a/'"),
}


def test_no_temporary_is_left_behind_nor_listed(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    bucket.put("a/1", b"x")
    bucket.create("a/2", b"x")
    bucket.create("a/2", b"y")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["1", "2"]
    (tmp_path / "a" / ".3.deadbeef").write_bytes(b"a writer died here")
    assert sorted(bucket.list("a/")) == ["a/1", "a/2"]


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    bucket = open_bucket(tmp_path / "store")
    with pytest.raises(StoreError, match=rf"store '{tmp_path / 'store'}': its file system has no hard links"):
        bucket.create("commits/1", b"x")
    assert list((tmp_path / "store" / "commits").iterdir()) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_fails_in_a_folder_is_named(operation: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_bytes(b"a file where the folder is to be")
    do, named = OPERATIONS[operation]
    with pytest.raises(StoreError, match=rf"^store '{store}': cannot {named}: .*; check ") as failed:
        do(open_bucket(store))
    assert isinstance(failed.value.__cause__, OSError)


@pytest.mark.parametrize("call", ["fsync", "link", "mkdir", "rename", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_whatever_fails_is_named_and_leaves_nothing_behind(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_bucket(tmp_path).put("a/0", b"x")
    expected = StoreError if code in {errno.EROFS, errno.EACCES} else StoreUnavailableError

    def failing(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    bucket = open_bucket(tmp_path)
    write = {"link": lambda: bucket.create("a/1", b"x"), "mkdir": lambda: bucket.put("b/1", b"x")}
    with monkeypatch.context() as broken:
        broken.setattr(io if call == "open" else os, call, failing)
        with pytest.raises(expected, match=rf"cannot write './1': .*{os.strerror(code)}.*; check that the store is "):
            write.get(call, lambda: bucket.put("a/1", b"x"))()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["0"]
    bucket.put("b/1", b"x")
    assert bucket.create("a/1", b"x")


def test_a_disk_that_fills_up_while_a_file_is_written(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    bucket.put("a/0", b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot write 'a/1': .*File too large; check "):
            bucket.put("a/1", bytes(9_000), bytes(9_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["0"]


@pytest.fixture
def another_user() -> Iterator[Path]:
    """A folder that this process may not write to, nor read what is closed in it."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder) / "theirs"
        theirs.mkdir()
        (theirs / "closed").mkdir()
        (theirs / "closed" / "1").write_bytes(b"x")
        (theirs / "closed").chmod(0)
        theirs.chmod(0o555)
        Path(folder).chmod(0o711)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65_534)
        yield theirs
        if root:
            os.seteuid(0)
        theirs.chmod(0o755)
        (theirs / "closed").chmod(0o755)


def test_a_folder_that_is_another_users(another_user: Path) -> None:
    bucket = open_bucket(another_user)
    tries: dict[str, Callable[[], object]] = {
        "write 'a/1'": lambda: bucket.put("a/1", b"x"),
        "write 'b'": lambda: bucket.create("b", b"x"),
        "read 'closed/1'": lambda: bucket.read("closed/1"),
        "list ''": lambda: list(bucket.list("")),
        "list 'closed/'": lambda: list(bucket.folders("closed/")),
        "delete 'closed/1'": lambda: bucket.delete("closed/1"),
    }
    for named, act in tries.items():
        with pytest.raises(StoreError, match=rf"^store '.*/theirs': cannot {named}: .*ermission denied.*; check "):
            act()


def test_a_folder_may_lie_in_one_that_is_closed(tmp_path: Path) -> None:
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as closed:
        store = Path(closed) / "store"
        store.mkdir()
        if root:
            os.chown(store, 65_534, -1)
        Path(closed).chmod(0o311)
        if root:
            os.seteuid(65_534)
        try:
            assert open_bucket(store).create("a/1", b"x")
        finally:
            if root:
                os.seteuid(0)
            Path(closed).chmod(0o755)


def test_what_dead_writers_left_is_named_with_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket(tmp_path)
    bucket.put("a/b/1", b"x")
    (tmp_path / "a" / ".nfs0001").write_bytes(b"is another's")
    (tmp_path / "a" / "b" / f".1.{'0' * 32}.swp").write_bytes(b"is another's too")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", killed)
        patched.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            bucket.create("a/b/2", b"y")
    ((name, written),) = bucket.leftovers("a/b/")
    assert re.fullmatch(r"a/b/\.2\.[0-9a-f]{32}", name)
    assert written == bucket.modified(name) <= time.time()
    assert list(bucket.leftovers()) == list(bucket.leftovers("a/")) == []
    assert list(bucket.list("")) == ["a/b/1"]
    bucket.delete(name)
    assert list(bucket.leftovers("a/b/")) == list(bucket.leftovers("no/where/")) == []


def test_what_a_writer_takes_away_while_it_is_looked_for_is_no_leftover(tmp_path: Path) -> None:
    leftovers = [tmp_path / f".{number}.{'0' * 32}" for number in range(3)]
    for path in leftovers:
        path.write_bytes(b"x")
    found = open_bucket(tmp_path).leftovers()
    next(found)
    for path in leftovers:
        path.unlink()
    assert list(found) == []


def test_a_folder_may_be_made_by_another_writer_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket(tmp_path)
    bucket.put("a/1", b"x")
    sync = os.fsync

    def meanwhile(descriptor: int) -> None:
        (tmp_path / "b").mkdir(exist_ok=True)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    bucket.put("b/1", b"x")
    assert bucket.create("b/2", b"x")


def test_what_is_written_leaves_no_file_open(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        bucket.put(f"a{number}/1", b"x")
        bucket.create(f"a{number}/2", b"x")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_an_object_is_as_old_as_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(temporary: Path, path: Path) -> None:
        """Link what was written long ago."""
        os.utime(temporary, (1.0, 1.0))
        link(temporary, path)

    monkeypatch.setattr(os, "link", late)
    bucket = open_bucket(tmp_path)
    bucket.create("commits/1", b"x")
    assert bucket.modified("commits/1") > time.time() - 60.0


def test_a_store_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path / "store")
    bucket.put("a/1", b"x")
    shutil.rmtree(tmp_path / "store")
    bucket.put("a/1", b"x")
    assert list(bucket.list("")) == ["a/1"]


def test_a_bucket_may_be_the_root_of_all_folders(tmp_path: Path) -> None:
    open_bucket("/").put(f"{tmp_path}/a/1".removeprefix("/"), b"x")
    assert (tmp_path / "a" / "1").read_bytes() == b"x"


def test_reading_a_folder_copies_nothing(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    bucket.put("a", bytes(1 << 24))
    before = pa.total_allocated_bytes()
    held = bucket.read("a")
    assert (held.size, pa.total_allocated_bytes()) == (1 << 24, before)
