from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.store.bucket import create_once, is_remote, on_answer, open_bucket
from penstock_schemas.errors import StoreError, StoreUnavailableError
from tests.consumers.messages import WrappedBucket
from tests.consumers.s3 import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket

# A file of an object store's that is larger goes up in parts.
PART = 5 << 20


@pytest.fixture(params=["folder", "file-url", "memory", "s3", pytest.param("versity", marks=pytest.mark.chaos)])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Bucket]:
    """Opens one new bucket of a kind, any number of times."""
    if request.param == "memory":
        only = open_bucket("memory://")
        return lambda: only
    folder = tmp_path / "a store"
    urls: dict[str, Callable[[], str]] = {
        "folder": lambda: str(folder),
        "file-url": folder.as_uri,
        "s3": lambda: str(request.getfixturevalue("s3_url")),
        "versity": lambda: str(request.getfixturevalue("versity_url")),
    }
    url = urls[request.param]()
    return lambda: open_bucket(url)


@pytest.fixture
def bucket(open_again: Callable[[], Bucket]) -> Bucket:
    return open_again()


def test_what_was_put_is_read(bucket: Bucket) -> None:
    for data in (b"bytes", pa.py_buffer(b"a buffer"), b"", bytes(range(256)) * 1000):
        bucket.put("a/b/c", data)
        assert bucket.read("a/b/c").to_pybytes() == bytes(data)


def test_what_is_missing(bucket: Bucket) -> None:
    bucket.put("a/1", b"x")
    for name in ("nothing", "no/where", "a/2"):
        for ask in (bucket.read, bucket.open, bucket.modified):
            with pytest.raises(FileNotFoundError):
                ask(name)
    for prefix in ("no/", "no/where/"):
        assert (list(bucket.list(prefix)), list(bucket.folders(prefix)), list(bucket.leftovers(prefix))) == ([], [], [])


def test_put_overwrites_the_whole(bucket: Bucket) -> None:
    bucket.put("a", b"long " * PART)
    assert bucket.read("a").size == 5 * PART
    bucket.put("a", b"sh", pa.py_buffer(b"ort"))
    assert bucket.read("a").to_pybytes() == b"short"


def test_create_is_exclusive(bucket: Bucket) -> None:
    assert bucket.create("commits/1", b"first")
    assert not bucket.create("commits/1", b"second")
    assert not bucket.create("commits/1", b"first")
    assert bucket.read("commits/1").to_pybytes() == b"first"


def test_create_is_exclusive_between_writers(open_again: Callable[[], Bucket]) -> None:
    names, writers = [f"commits/{number}" for number in range(10)], 4
    together = threading.Barrier(writers)

    def write(writer: int) -> list[bool]:
        bucket = open_again()
        created = []
        for name in names:
            together.wait(60)
            created.append(bucket.create(name, b"%d" % writer * 100))
        return created

    with ThreadPoolExecutor(writers) as threads:
        created = list(threads.map(write, range(writers)))
    bucket = open_again()
    for at, name in enumerate(names):
        winners = [writer for writer in range(writers) if created[writer][at]]
        assert [b"%d" % writer * 100 for writer in winners] == [bucket.read(name).to_pybytes()]


def test_parts_of_an_object_are_read(bucket: Bucket) -> None:
    data = np.random.default_rng(0).bytes(3 << 20)
    bucket.put("a/1", data)
    with bucket.open("a/1") as file:
        assert file.size() == len(data)
        file.seek(1000)
        assert file.read(300) == data[1000:1300]
        assert file.tell() == 1300
        assert file.read_at(7, len(data) - 7) == data[-7:]
        for start, length in ((0, 1 << 20), ((1 << 18) - 5, 10), ((1 << 18) - 1, 1 << 18), (1 << 18, 1), (5, 1 << 19)):
            file.seek(start)
            assert file.read(length) == data[start : start + length]
        file.seek(len(data) - 1)
        assert (file.read(100), file.read(100)) == (data[-1:], b"")
    bucket.put("a/empty", b"")
    with bucket.open("a/empty") as file:
        assert (file.size(), file.read()) == (0, b"")


def test_a_table_is_read_by_its_parts(bucket: Bucket) -> None:
    written = pa.record_batch({"a": list(range(1000)), "b": ["x"] * 1000})
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, written.schema) as writer:
        writer.write_batch(written)
    bucket.put("a", file.getvalue())
    with bucket.open("a") as opened, pa.ipc.open_file(opened) as reader:
        assert reader.get_batch(0).equals(written)


def test_what_takes_long_tells_that_it_goes_on() -> None:
    bucket = open_bucket("memory://")
    told: list[None] = []
    token = on_answer.set(lambda: told.append(None))

    def times(operation: Callable[[], object]) -> int:
        told.clear()
        operation()
        return len(told)

    file = pa.BufferOutputStream()
    batch = pa.record_batch({"a": np.arange(PART // 8)})
    with pa.ipc.new_file(file, batch.schema) as writer:
        for _ in range(3):
            writer.write_batch(batch)
    try:
        assert times(lambda: bucket.put("large", file.getvalue())) > 3
        with bucket.open("large") as opened, pa.ipc.open_file(opened) as reader:
            assert times(lambda: [reader.get_batch(number) for number in range(3)]) >= 3
        for number in range(200):
            bucket.create(f"many/{number}", b"x")
        assert 1 < times(lambda: list(bucket.list("many/"))) < 200
    finally:
        on_answer.reset(token)


def test_delete_is_repeatable(bucket: Bucket) -> None:
    bucket.put("a/1", b"x")
    bucket.put("a/2", b"x")
    for _ in range(2):
        bucket.delete("a/1")
    bucket.delete("no/where")
    assert list(bucket.list("")) == ["a/2"]
    assert bucket.create("a/1", b"again")


def test_modified_goes_with_the_storages_clock(bucket: Bucket) -> None:
    before = time.time()
    bucket.put("a", b"1")
    bucket.create("b", b"2")
    bucket.put("c", b"3")
    times = [bucket.modified(name) for name in "abc"]
    assert times == sorted(times)
    # Some storages count whole seconds.
    assert before - 2 <= times[0] <= times[-1] <= time.time() + 2


def test_more_objects_than_a_listing_shows_at_once(bucket: Bucket) -> None:
    names = [f"many/{number // 2:03d}/{number}" for number in range(2 * PAGE + 10)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: bucket.put(name, b"x"), names))
    assert sorted(bucket.list("many/")) == sorted(names)
    assert len(list(bucket.folders("many/"))) == PAGE + 5


def test_folders_are_one_step_below_a_prefix(bucket: Bucket) -> None:
    for name in ("a/b/c/1", "a/d/2", "a/3", "ab/4", "5"):
        bucket.put(name, b"x")
    assert sorted(bucket.folders("")) == ["a/", "ab/"]
    assert sorted(bucket.folders("a/")) == ["a/b/", "a/d/"]
    assert list(bucket.folders("a/d/")) == []


@pytest.mark.parametrize("name", ["a b", "ü漢", "a%20b", "a+b", "a&b=c", "a#b?", "x~*'()", '[x]{y}^`|<>"', "x.", "-"])
def test_names_with_odd_characters(name: str, bucket: Bucket) -> None:
    assert bucket.create(f"odd/{name}/{name}", b"1")
    assert not bucket.create(f"odd/{name}/{name}", b"2")
    assert list(bucket.folders("odd/")) == [f"odd/{name}/"]
    assert list(bucket.list(f"odd/{name}/")) == [f"odd/{name}/{name}"]
    assert bucket.read(f"odd/{name}/{name}").to_pybytes() == b"1"
    bucket.delete(f"odd/{name}/{name}")
    assert list(bucket.list("")) == []


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


def test_create_once_although_the_store_says_of_nothing_that_it_exists() -> None:
    class Conflict(WrappedBucket):
        conflicts = 0

        def create(self, name: str, data: bytes) -> bool:
            self.conflicts -= 1
            return self.conflicts < 0 and bool(self.inner.create(name, data))

    bucket = Conflict(open_bucket("memory://"))
    bucket.conflicts = 2
    assert create_once(bucket, "a", b"mine")
    bucket.conflicts = 100
    with pytest.raises(StoreUnavailableError, match=r"^store 'memory://': cannot write 'b': 5 times it said that the "):
        create_once(bucket, "b", b"mine")
    assert list(bucket.list("")) == ["a"]


def test_a_memory_url_is_a_new_bucket_each_time() -> None:
    open_bucket("memory://").put("a", b"x")
    assert list(open_bucket("memory://").list("")) == []


def test_an_unknown_kind_of_url_is_refused_without_its_secrets() -> None:
    with pytest.raises(StoreError, match=r"store 'nonsense://host/path': cannot be opened: GenericError") as refused:
        open_bucket("nonsense://user:secret@host/path")
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    with pytest.raises(StoreError, match=r"cannot be opened: .*Unable to recognise URL"):
        open_bucket("nonsense://host/path")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("file:///data/exp#1", r"'file:///data/exp': its URL goes on .* write %3F or %23"),
        ("file:///data/exp?1", r"'file:///data/exp': its URL goes on"),
        ("s3://bucket/a#b", r"'s3://bucket/a': its URL goes on"),
        ("s3://bucket/a?token=secret", r"'s3://bucket/a': its URL goes on"),
        ("https://host/a#b", r"'https://host/a': its URL goes on"),
        ("file://data/store", r"'file://data/store': its URL .* names a host or no path: write file:///"),
        ("file://~/store", r"'file://~/store': its URL .* names a host"),
        ("s3://[user:secret@bucket/a", r"'s3://…': its URL names no host"),
        ("s3://user:secret\u2100@bucket/a", r"'s3://…': its URL names no host"),
    ],
)
def test_a_url_that_would_open_another_store_is_refused(url: str, told: str) -> None:
    with pytest.raises(StoreError, match=rf"^store {told}") as refused:
        open_bucket(url)
    assert "secret" not in str(refused.value)


def test_a_url_names_a_store_with_odd_characters(tmp_path: Path) -> None:
    for name in ("a#b", "a?b", "a b"):
        url = (tmp_path / name).as_uri()
        assert open_bucket(url).url == open_bucket(url.replace("://", "://localhost")).url == str(tmp_path / name)


def test_what_is_remote(tmp_path: Path) -> None:
    near = (str(tmp_path), tmp_path.as_uri(), "memory://")
    far = ("s3://bucket/store", "gs://bucket/store", "az://account/container/store")
    assert [is_remote(open_bucket(url)) for url in near] == [False] * 3
    assert all(is_remote(open_bucket(url)) for url in far[:1])


def test_a_buckets_name_holds_no_secrets() -> None:
    assert open_bucket("s3://user:secret@bucket/path").url == "s3://bucket/path"
    assert open_bucket("https://host/path?token=secret").url == "https://host/path"
    assert open_bucket("memory://").url == "memory://"
