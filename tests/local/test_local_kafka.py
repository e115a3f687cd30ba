from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from deploy.local import kafka as local
from deploy.local.kafka import LocalKafka, fetch_jars, kafka_version
from penstock_schemas.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
LOG_APPEND_TIME = 1
INSTEAD = "KAFKA_BOOTSTRAP_SERVERS"


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def refuses(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return True
    return False


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # An orphan stays a zombie where the container's first process waits for nobody.
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def append(bootstrap: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        producer.send("kept", value, partition=0).get(timeout=20)
    finally:
        producer.close()


def read_first(bootstrap: str) -> tuple[int, bytes, int]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=10_000)
    try:
        consumer.assign([TopicPartition("kept", 0)])
        consumer.seek_to_beginning()
        record = next(consumer)
        return record.offset, record.value, record.timestamp_type
    finally:
        consumer.close()


def make_topic(bootstrap: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics({"kept": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    finally:
        admin.close()


def cluster_id(bootstrap: str) -> str:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        return str(admin.describe_cluster()["cluster_id"])
    finally:
        admin.close()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary data of this test's brokers go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that seems to hold the jars."""
    (tmp_path / "cache" / f"kafka-{kafka_version()}").mkdir(parents=True)
    return tmp_path / "cache"


@pytest.fixture
def formatted(tmp_path: Path) -> Path:
    """A data folder that seems to be formatted."""
    log = tmp_path / "data" / "log"
    log.mkdir(parents=True)
    (log / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n")
    return log.parent


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME whose java says that it is Java 17, and nothing else."""
    home = tmp_path / "java"
    monkeypatch.setenv("JAVA_HOME", str(home))
    script(home / "bin" / "java", "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2")
    return home


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH; empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


# The broker's life


def test_a_broker_keeps_its_ports_cluster_and_data_over_kill_and_stop(tmp_path: Path) -> None:
    with LocalKafka(tmp_path) as broker:
        bootstrap, first = broker.bootstrap_servers, broker.pid
        cluster = cluster_id(bootstrap)
        make_topic(bootstrap)
        append(bootstrap, b"a step")
        with pytest.raises(BrokerError, match=f"runs already.*{first}"):
            broker.start()

        broker.kill()
        assert gone(first)
        assert refuses(bootstrap)
        assert not broker.running
        with pytest.raises(BrokerError, match="does not run"):
            _ = broker.pid

        broker.start()
        assert broker.bootstrap_servers == bootstrap
        assert broker.pid != first
        assert read_first(bootstrap) == (0, b"a step", LOG_APPEND_TIME)

        # Gone behind our back: start() still finds its way.
        os.kill(broker.pid, signal.SIGTERM)
        assert until(lambda: not broker.running)
        broker.start()
        assert cluster_id(bootstrap) == cluster
        last = broker.pid
    assert gone(last)
    assert (tmp_path / "log" / "meta.properties").exists()


def test_a_broker_is_gone_with_its_parent_though_a_fork_of_it_lives_on(temporary: Path) -> None:
    program = """
import os, signal
from deploy.local.kafka import LocalKafka
broker = LocalKafka()
broker.start()
fork = os.fork()
if fork == 0:
    broker.close()  # It is not the fork's: neither the broker nor its data go.
    signal.pause()
print(broker.bootstrap_servers, broker.pid, broker.data_dir, fork, flush=True)
signal.pause()
"""
    parent = subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert parent.stdout is not None
    bootstrap, pid, data, fork = parent.stdout.readline().split()
    try:
        assert cluster_id(bootstrap)
        assert (Path(data) / "server.properties").exists()
        parent.kill()
        parent.wait()
        assert until(lambda: gone(int(pid)))
        # An orphan may count as gone, as a zombie, while its last threads still hold its sockets.
        assert until(lambda: refuses(bootstrap))
        assert not gone(int(fork))
    finally:
        parent.kill()
        parent.wait()
        os.kill(int(fork), signal.SIGKILL)
        parent.stdout.close()


def test_the_command_runs_a_broker_until_it_is_told_to_end(temporary: Path) -> None:
    command = [sys.executable, "-m", "deploy.local.kafka"]
    with subprocess.Popen(  # noqa: S603 - this Python
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"TMPDIR": str(temporary)}
    ) as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip()
        assert cluster_id(bootstrap)
        assert list(temporary.iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert refuses(bootstrap)
    assert not list(temporary.iterdir())


# What keeps a broker from starting


@pytest.mark.usefixtures("path")
def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with (
        pytest.raises(BrokerError, match=f"java is not on the PATH: install Java 17 .*{INSTEAD}"),
        LocalKafka(cache=cache),
    ):
        pass


def test_a_java_home_without_java_is_named(java_home: Path, cache: Path) -> None:
    (java_home / "bin" / "java").unlink()
    with pytest.raises(BrokerError, match=f"{java_home}/bin/java does not run.*install Java 17"):
        LocalKafka(cache=cache).start()


@pytest.mark.parametrize(("version", "major"), [("11.0.2", "11"), ("1.8.0_402", "8")])
def test_an_old_java_is_named(java_home: Path, cache: Path, version: str, major: str) -> None:
    script(java_home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    with pytest.raises(BrokerError, match=f"java is Java {major}: install Java 17 or newer, .*{INSTEAD}"):
        LocalKafka(cache=cache).start()


@pytest.mark.usefixtures("java_home", "path")
def test_missing_maven_is_named_where_jars_are_not_cached(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=f"mvn is not on the PATH.*{tmp_path}.*install Maven, .*{INSTEAD}"):
        LocalKafka(cache=tmp_path / "none").start()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BrokerError, match=f"127.0.0.1:{port} .*stop what holds the port.*{INSTEAD}"):
            LocalKafka(port=port)


@pytest.mark.usefixtures("java_home")
def test_a_port_that_is_taken_between_two_starts_is_named(cache: Path, formatted: Path) -> None:
    broker = LocalKafka(formatted, cache=cache)
    with socket.socket() as other:
        host, port = broker.bootstrap_servers.split(":")
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(BrokerError, match=f"127.0.0.1:{port} .*stop what holds the port"):
            broker.start()


def test_a_broker_that_dies_while_starting_shows_the_end_of_its_log(formatted: Path) -> None:
    meta = formatted / "log" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    broker = LocalKafka(formatted)
    (formatted / "broker.log").write_text("of an earlier life\n")
    with pytest.raises(BrokerError, match=f"died while starting, with exit status 1.*{INSTEAD}") as raised:
        broker.start()
    assert re.search(r"Stored node id 7 doesn't match previous node id 1", str(raised.value))
    assert "of an earlier life" not in str(raised.value)
    assert not broker.running


def test_a_broker_that_does_not_answer_is_killed(java_home: Path, cache: Path, formatted: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script(
        java_home / "bin" / "java",
        f"""
[ "$1" = -version ] && echo 'openjdk version "21"' && exit
echo $$ >{pid}; echo still thinking >&2; exec /bin/sleep 600""",
    )
    broker = LocalKafka(formatted, cache=cache, start_seconds=1.0)
    with pytest.raises(BrokerError, match=f"did not answer within 1 s and was killed.*{INSTEAD}") as raised:
        broker.start()
    assert "still thinking" in str(raised.value)
    assert gone(int(pid.read_text()))
    assert not broker.running


def test_a_failing_format_shows_what_the_tool_said(java_home: Path, cache: Path, tmp_path: Path) -> None:
    script(
        java_home / "bin" / "java",
        """[ "$1" = -version ] && echo 'openjdk version "17"' && exit; echo no space left; exit 3""",
    )
    with pytest.raises(BrokerError, match=r"(?s)failed with exit status 3.*no space left"):
        LocalKafka(tmp_path / "data", cache=cache).start()


@pytest.mark.usefixtures("java_home")
def test_data_of_something_else_are_refused(cache: Path, formatted: Path) -> None:
    (formatted / "log" / "meta.properties").write_text("something else\n")
    with pytest.raises(BrokerError, match=f"{formatted}.*names no cluster.id.*choose another folder"):
        LocalKafka(formatted, cache=cache).start()


@pytest.mark.usefixtures("java_home")
def test_a_data_folder_that_cannot_be_made_is_named(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match=f"cannot make the folder {tmp_path}/file/data"):
        LocalKafka(tmp_path / "file" / "data", cache=cache).start()


def test_temporary_data_go_with_a_start_that_fails(java_home: Path, cache: Path, temporary: Path) -> None:
    script(java_home / "bin" / "java", "exit 1")
    with pytest.raises(BrokerError), LocalKafka(cache=cache):
        pass
    assert not list(temporary.iterdir())


# The cache

# Finds DIR in -DoutputDirectory=DIR, the last argument.
OUTPUT = 'for last; do :; done; out=${last#-DoutputDirectory=}; /bin/mkdir -p "$out"; echo half >"$out/a.jar"'


def test_a_failing_maven_shows_its_last_lines_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    script(path / "mvn", f"{OUTPUT}; echo '[ERROR] no route to host'; exit 1")
    with pytest.raises(BrokerError, match=f"(?s)exit status 1: check Maven's access.*{INSTEAD}.*no route to host"):
        fetch_jars(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_killed_fetch_leaves_no_half_cache(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    script(path / "mvn", f"{OUTPUT}; kill -9 $PPID")
    program = f"from pathlib import Path; from deploy.local.kafka import fetch_jars; fetch_jars(Path({str(cache)!r}))"
    fetching = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)  # noqa: S603 - this Python
    assert fetching.returncode == -signal.SIGKILL

    script(path / "mvn", f'{OUTPUT}; echo whole >"$out/b.jar"')
    jars = fetch_jars(cache)
    assert jars == cache / f"kafka-{kafka_version()}"
    assert {jar.name for jar in jars.iterdir()} == {"a.jar", "b.jar"}

    (path / "mvn").unlink()
    assert fetch_jars(cache) == jars


def test_a_fetch_that_loses_a_race_takes_the_winners_jars(path: Path, tmp_path: Path) -> None:
    jars = tmp_path / "cache" / f"kafka-{kafka_version()}"
    script(path / "mvn", f"{OUTPUT}; /bin/mkdir -p {jars}; echo theirs >{jars}/a.jar")
    assert fetch_jars(tmp_path / "cache") == jars
    assert (jars / "a.jar").read_text() == "theirs\n"
    assert list((tmp_path / "cache").iterdir()) == [jars]


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    assert local.default_cache() == tmp_path / "xdg" / "penstock"
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    assert local.default_cache() == tmp_path / "own"


# The container


def test_compose_has_the_version_and_the_settings_of_the_local_broker() -> None:
    compose = (ROOT / "deploy" / "local" / "compose.yaml").read_text()
    assert re.findall(r"image: (\S+)", compose) == [f"apache/kafka:{kafka_version()}"]
    environment = dict(re.findall(r'^ +KAFKA_(\w+): "(.*)"$', compose, re.MULTILINE))
    shared = {name.replace(".", "_").upper(): value for name, value in local._SETTINGS.items()}
    assert shared.items() <= environment.items()
