from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import obstore.exceptions
import pyarrow as pa
import pytest
from obstore.store import S3Store

from penstock_consumers.store.bucket import create_once, open_bucket
from penstock_consumers.store.objects import Objects
from penstock_schemas.errors import StoreError
from tests.consumers.messages import WrappedBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_consumers.store.bucket import Bucket

# Each operation, and how a failure names it.
OPERATIONS: dict[str, tuple[Callable[[Bucket], object], str]] = {
    "create": (lambda bucket: bucket.create("a/1", b"x"), "write 'a/1'"),
    "put": (lambda bucket: bucket.put("a/1", b"x"), "write 'a/1'"),
    "read": (lambda bucket: bucket.read("a/1"), "read 'a/1'"),
    "list": (lambda bucket: list(bucket.list("a/")), "list 'a/'"),
}


@pytest.fixture(params=["folder", "file-url", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    store = tmp_path / "a store"
    return open_bucket({"folder": str(store), "file-url": store.as_uri(), "memory": "memory://"}[request.param])


def test_what_was_put_is_read(bucket: Bucket) -> None:
    for data in (b"bytes", pa.py_buffer(b"a buffer"), b"", bytes(range(256)) * 1000):
        bucket.put("a/b/c", data)
        assert bucket.read("a/b/c").to_pybytes() == bytes(data)


def test_what_is_missing(bucket: Bucket) -> None:
    for name in ("nothing", "no/where"):
        with pytest.raises(FileNotFoundError):
            bucket.read(name)
    assert list(bucket.list("no/")) == []


def test_create_is_exclusive(bucket: Bucket) -> None:
    assert bucket.create("commits/1", b"first")
    assert not bucket.create("commits/1", b"second")
    assert not bucket.create("commits/1", b"first")
    assert bucket.read("commits/1").to_pybytes() == b"first"


def test_create_is_exclusive_between_threads(bucket: Bucket) -> None:
    names, writers = [f"commits/{number}" for number in range(20)], 6
    together = threading.Barrier(writers)

    def write(writer: int) -> list[bool]:
        together.wait(10)
        return [bucket.create(name, b"%d" % writer) for name in names]

    with ThreadPoolExecutor(writers) as threads:
        created = list(threads.map(write, range(writers)))
    for at, name in enumerate(names):
        winners = [writer for writer in range(writers) if created[writer][at]]
        assert [b"%d" % writer for writer in winners] == [bucket.read(name).to_pybytes()]


def test_list_names_what_lies_below_a_prefix(bucket: Bucket) -> None:
    for name in ("a/1", "a/b/2", "ab/3", "4"):
        bucket.put(name, b"x")
    bucket.create("a/5", b"x")
    assert sorted(bucket.list("a/")) == ["a/1", "a/5", "a/b/2"]


def test_what_was_read_stays_although_the_object_is_replaced(bucket: Bucket) -> None:
    bucket.put("a", b"before")
    held = bucket.read("a")
    bucket.put("a", b"after!")
    assert (held.to_pybytes(), bucket.read("a").to_pybytes()) == (b"before", b"after!")


def test_create_once_knows_its_own(bucket: Bucket) -> None:
    assert create_once(bucket, "a", b"mine")
    assert create_once(bucket, "a", b"mine")
    assert not create_once(bucket, "a", b"another's")


def test_create_once_although_the_answer_was_lost(bucket: Bucket) -> None:
    class LostAnswer(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            self.inner.create(name, data)
            return self.inner.create(name, data)

    assert create_once(LostAnswer(bucket), "a", b"mine")
    assert not create_once(LostAnswer(bucket), "a", b"another's")


def test_a_memory_url_is_a_new_bucket_each_time() -> None:
    open_bucket("memory://").put("a", b"x")
    assert list(open_bucket("memory://").list("")) == []


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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_fails_in_an_object_store_is_named_without_secrets(operation: str) -> None:
    unreachable = S3Store(
        "bucket",
        endpoint="http://127.0.0.1:9",
        region="us-east-1",
        skip_signature=True,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    do, named = OPERATIONS[operation]
    with pytest.raises(StoreError, match=rf"^store 's3://bucket/path': cannot {named}: .*127.*; check ") as failed:
        do(Objects(unreachable, "s3://user:secret@bucket/path?token=secret"))
    assert "\n" not in str(failed.value)
    assert "secret" not in str(failed.value)
    assert isinstance(failed.value.__cause__, obstore.exceptions.GenericError)


@pytest.mark.parametrize("operation", ["create", "put"])
def test_a_full_disk_is_named_and_not_filled_further(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    do, named = OPERATIONS[operation]
    with pytest.raises(StoreError, match=rf"cannot {named}: .*No space left on device; check "):
        do(open_bucket(tmp_path))
    assert list((tmp_path / "a").iterdir()) == []


def test_a_link_that_fails_for_another_reason_is_not_laid_to_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match=r"cannot write 'a/1': .*No space left on device; check "):
        open_bucket(tmp_path).create("a/1", b"x")
    assert list((tmp_path / "a").iterdir()) == []


def test_an_object_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, link, rename = os.fsync, os.link, Path.rename

    def logged_fsync(descriptor: int) -> None:
        synced = str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(tmp_path))
        done.append(f"sync {synced.partition('.')[0]}")
        fsync(descriptor)

    def logged_link(source: Path, target: Path) -> None:
        done.append("link")
        link(source, target)

    def logged_rename(path: Path, target: Path) -> Path:
        done.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "link", logged_link)
    monkeypatch.setattr(Path, "rename", logged_rename)
    bucket = open_bucket(tmp_path / "store")
    bucket.create("a/1", b"x")
    assert done == ["sync ", "sync /store", "sync /store/a/", "link", "sync /store/a"]
    done.clear()
    bucket.put("a/2", b"x")
    assert done == ["sync /store/a/", "rename", "sync /store/a"]


def test_an_unknown_kind_of_url_is_refused_without_its_secrets() -> None:
    with pytest.raises(StoreError, match=r"store 'nonsense://host/path': cannot be opened: GenericError") as refused:
        open_bucket("nonsense://user:secret@host/path?token=secret")
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    with pytest.raises(StoreError, match=r"cannot be opened: .*Unable to recognise URL"):
        open_bucket("nonsense://host/path")


def test_a_buckets_name_holds_no_secrets() -> None:
    assert open_bucket("s3://user:secret@bucket/path?token=secret").url == "s3://bucket/path"
    assert open_bucket("memory://").url == "memory://"


def test_reading_a_folder_copies_nothing(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    bucket.put("a", bytes(1 << 24))
    before = pa.total_allocated_bytes()
    held = bucket.read("a")
    assert (held.size, pa.total_allocated_bytes()) == (1 << 24, before)
