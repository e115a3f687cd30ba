from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import obstore.exceptions
import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.metrics import ConsumerMetrics
from penstock_consumers.replay import Replay
from penstock_consumers.service import consume
from penstock_consumers.settings import ConsumerSettings
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import create_once, open_bucket
from penstock_consumers.store.objects import Objects, Patience
from penstock_consumers.verify import verify
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreError, StoreUnavailableError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.service import Health, load
from tests.consumers.messages import STREAM, TOPIC, Row, ScriptedProducer, open_partition, stored_episodes, take_all
from tests.consumers.s3 import Fault, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_consumers.store.bucket import Bucket

SECONDS = 60.0
HASTY = Patience(retries=1)
# Each operation, by which of S3's methods it is done, and how a failure names it.
OPERATIONS: dict[str, tuple[Callable[[Bucket], object], str, str]] = {
    "create": (lambda bucket: create_once(bucket, "a/1", b"x"), "PUT", "write 'a/1'"),
    "put": (lambda bucket: bucket.put("a/1", b"x"), "PUT", "write 'a/1'"),
    "read": (lambda bucket: bucket.read("a/0").to_pybytes(), "GET", "read 'a/0'"),
    "open": (lambda bucket: bucket.open("a/0").read(), "GET", "read 'a/0'"),
    "modified": (lambda bucket: bucket.modified("a/0"), "HEAD", "read 'a/0'"),
    "list": (lambda bucket: list(bucket.list("a/")), "GET", "list 'a/'"),
    "folders": (lambda bucket: list(bucket.folders("")), "GET", "list ''"),
    "delete": (lambda bucket: bucket.delete("a/0"), "POST", "delete 'a/0'"),
}


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.LOST, Fault.HALF, Fault.BUSY, Fault.BROKEN])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_that_passes_is_not_seen(operation: str, fault: Fault, proxy: Proxy, s3_url: str) -> None:
    do, method, _ = OPERATIONS[operation]
    bucket = open_bucket(s3_url)
    bucket.put("a/0", b"before " * 100)
    expected = do(open_bucket(s3_url))
    bucket.put("a/0", b"before " * 100)
    if method == "PUT":
        bucket.delete("a/1")
    proxy.next(method, fault)
    if fault is Fault.HALF and operation in {"list", "folders", "delete"}:
        # Half an answer to these is not asked for again by obstore; the caller may.
        with pytest.raises(StoreUnavailableError, match="Interrupted"):
            do(bucket)
    answer = do(bucket)
    assert proxy.exhausted
    assert operation == "modified" or answer == expected


def test_a_create_that_was_repeated_below_says_that_it_exists_and_is_known_as_ones_own(
    proxy: Proxy, s3_url: str
) -> None:
    bucket = open_bucket(s3_url)
    proxy.next("PUT", Fault.LOST)
    assert not bucket.create("a/1", b"mine")
    proxy.next("PUT", Fault.LOST)
    assert create_once(bucket, "a/2", b"mine")
    assert not create_once(bucket, "a/2", b"another's")
    assert bucket.read("a/2").to_pybytes() == b"mine"


def test_a_conflict_is_not_taken_for_an_object(proxy: Proxy, s3_url: str) -> None:
    bucket = open_bucket(s3_url)
    proxy.next("PUT", Fault.CONFLICT, Fault.CONFLICT)
    assert create_once(bucket, "a/1", b"mine")
    assert bucket.read("a/1").to_pybytes() == b"mine"
    proxy.always(Fault.CONFLICT, "PUT")
    with pytest.raises(StoreUnavailableError, match=r"cannot write 'a/2': 5 times it said that the object exists"):
        create_once(bucket, "a/2", b"mine")
    with pytest.raises(StoreUnavailableError, match=r"cannot write 'a/1': .*409 Conflict: ConditionalRequestConflict"):
        bucket.put("a/1", b"mine")


def refused(operation: str, bucket: Bucket, error: type[Exception], told: str) -> None:
    do, _, named = OPERATIONS[operation]
    with pytest.raises(error, match=rf"^store '{bucket.url}': cannot {named}: .*{told}.*; check that ") as failed:
        do(bucket)
    assert type(failed.value) is error
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_that_is_gone_may_come_back(operation: str, proxy: Proxy, s3_url: str) -> None:
    bucket = Objects.from_url(s3_url, HASTY)
    bucket.put("a/0", b"x")
    proxy.always(Fault.BUSY)
    refused(operation, bucket, StoreUnavailableError, "503" if operation in {"open", "modified"} else "SlowDown")
    proxy.always(Fault.CUT)
    refused(operation, bucket, StoreUnavailableError, r"error sending request")
    proxy.close()
    refused(operation, bucket, StoreUnavailableError, r"error sending request \(Connect\)")
    proxy.listen()
    proxy.always(None)
    OPERATIONS[operation][0](bucket)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_no_waiting_mends(operation: str, proxy: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket(s3_url)
    proxy.always(Fault.FORBIDDEN)
    refused(operation, bucket, StoreError, "403" if operation in {"open", "modified"} else "InvalidAccessKeyId")
    proxy.always(None)
    if operation not in {"open", "modified"}:  # a HEAD's answer does not tell an absent bucket from an absent object
        refused(operation, open_bucket("s3://absent/store"), StoreError, "NoSuchBucket")


@pytest.mark.parametrize(
    ("fault", "error", "told"),
    [(Fault.KEY_DENIED, StoreError, "AccessDenied"), (Fault.KEY_BROKEN, StoreUnavailableError, "InternalError")],
)
def test_a_key_that_is_not_deleted_though_the_store_answers_well(
    fault: Fault, error: type[Exception], told: str, proxy: Proxy, s3_url: str
) -> None:
    proxy.always(fault, "POST")
    refused("delete", open_bucket(s3_url), error, told)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_that_does_not_answer_is_given_up(operation: str, proxy: Proxy, s3_url: str) -> None:
    bucket = Objects.from_url(s3_url, Patience(stall_seconds=0.2, retry_seconds=0.1))
    proxy.always(Fault.HANG)
    started = time.monotonic()
    refused(operation, bucket, StoreUnavailableError, r"error sending request \(Timeout\)")
    assert time.monotonic() - started < 15


def test_a_name_that_can_be_none_is_refused(s3_url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot write 'a//b': .*empty path segment"):
        open_bucket(s3_url).put("a//b", b"x")


def test_the_environment_may_ask_for_other_limits(proxy: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_READ_TIMEOUT", "200ms")
    proxy.always(Fault.HANG)
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="Timeout"):
        open_bucket(s3_url).create("a/1", b"x")
    assert time.monotonic() - started < 15


def test_what_fails_is_named_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:secret@127.0.0.1:9")
    for name, value in {"ALLOW_HTTP": "true", "ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = Objects.from_url("s3://bucket/path", HASTY)
    for operation in OPERATIONS:
        with pytest.raises(
            StoreUnavailableError, match=r"^store 's3://bucket/path': .*127\.0\.0\.1:9/bucket"
        ) as failed:
            OPERATIONS[operation][0](bucket)
        assert "secret" not in str(failed.value)
        assert "?" not in str(failed.value)
        assert isinstance(failed.value.__cause__, obstore.exceptions.GenericError)


@pytest.fixture
def log() -> MemoryLog:
    """Episodes that end at once, and one that stays open over a restart."""
    log = MemoryLog()
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3, Ends.TERMINATED), Row(1, 0, 0, 0, 2))
    producer.send(Row(0, 1, 0, 0, 2, Ends.TRUNCATED))
    return log


def finish(log: MemoryLog) -> None:
    producer = ScriptedProducer(log)
    producer.incarnation, producer.sequence = 0, 2
    producer.send(Row(0, 2, 0, 0, 4, Ends.TERMINATED), Row(1, 0, 1, 2, 2, Ends.TERMINATED))


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.02)


@contextmanager
def consuming(log: MemoryLog, store: str) -> Iterator[Health]:
    """A consumer in a thread; what it raises is raised here."""
    settings = load(ConsumerSettings, ["--stream", STREAM, "--store", store, "--commit-seconds", "0.01"])
    health = Health("log", "store", clock=time.monotonic, beat_limit=SECONDS)
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            consume(settings, log, ConsumerMetrics(CollectorRegistry()), health, stop)
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is raised below)
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield health
    finally:
        stop.set()
        thread.join(SECONDS)
        for failure in failures:
            raise failure
    assert not thread.is_alive()


def high_water(bucket: Bucket) -> int:
    newest = commits.newest(bucket, 0)
    return newest.high_water if newest else 0


def test_a_whole_store(s3_url: str, log: MemoryLog) -> None:
    bucket = open_bucket(s3_url)
    with consuming(log, s3_url):
        wait_until(lambda: high_water(bucket) == 3)
    replay = Replay.open(s3_url)
    assert (replay.episodes_stored, replay.steps) == (2, 5)
    finish(log)
    with consuming(log, s3_url):
        wait_until(lambda: high_water(bucket) == 4)
    report = verify(bucket, log)
    assert report.ok, report
    assert replay.refresh()
    assert sorted(episode.length for episode in replay.episodes()) == [2, 3, 4, 4]
    assert len(next(iter(replay.transitions(8, seed=1)))["reward"]) == 8


def test_an_outage_of_the_store_is_waited_out(proxy: Proxy, s3_url: str, moto: str, log: MemoryLog) -> None:
    bucket = open_bucket(s3_url)
    with consuming(log, s3_url) as health:
        wait_until(lambda: high_water(bucket) == 3)
        proxy.close()
        finish(log)
        wait_until(lambda: f"store '{s3_url}': cannot" in str(health.failing()))
        proxy.listen()
        wait_until(lambda: high_water(bucket) == 4)
        wait_until(lambda: not health.failing())
    assert verify(bucket, log).ok
    assert len(stored_episodes(bucket)) == 4


def test_a_store_that_is_away_at_the_start_is_waited_for(proxy: Proxy, s3_url: str, log: MemoryLog) -> None:
    proxy.close()
    with consuming(log, s3_url) as health:
        wait_until(lambda: f"store '{s3_url}': cannot read 'store.json'" in str(health.failing()))
        proxy.listen()
        wait_until(lambda: not health.failing())
        wait_until(lambda: high_water(open_bucket(s3_url)) == 3)


def test_what_a_commit_costs(proxy: Proxy, s3_url: str) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    partition = open_partition(log, open_bucket(s3_url))
    producer = ScriptedProducer(log)
    producer.begin()

    def asked(*rows: Row) -> list[str]:
        producer.send(*rows)
        take_all(partition, log)
        before = len(proxy.requests)
        partition.commit()
        prefix = f"/{s3_url.removeprefix('s3://')}/"
        return [
            f"{method} {path.removeprefix(prefix).partition('/')[0]}"
            for method, path in (request.split(" ") for request in proxy.requests[before:])
        ]

    assert asked(Row(0, 0, 0, 0, 3, Ends.TERMINATED)) == ["PUT segments", "PUT commits"]
    assert asked(Row(0, 1, 0, 0, 3, Ends.TERMINATED)) == ["PUT segments", "PUT commits"]
    opened = asked(Row(0, 2, 0, 0, 3), Row(1, 0, 0, 0, 3, Ends.TERMINATED))
    assert [request for request in opened if request.startswith("PUT")] == ["PUT segments", "PUT open", "PUT commits"]
    before = len(proxy.requests)
    open_partition(log, open_bucket(s3_url))
    # What begins at the newest commit: the manifest, two listings, the commits since the last full one, one beyond
    # them, and the open segments.
    assert len(proxy.requests) - before <= 10
