"""A real Apache Kafka broker on this machine, as a child process: KRaft, one node, on loopback only.

    with LocalKafka() as kafka:
        ...  # kafka.bootstrap_servers

`python -m deploy.local.kafka` runs one in the foreground. It takes Java 17, and Maven the first time, to fetch
the jars that `pom.xml` names.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Self
from xml.etree import ElementTree as ET

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from deploy.local import leash
from penstock_schemas.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST = "127.0.0.1"
_POM = Path(__file__).with_name("pom.xml")
_JAVA_AT_LEAST = 17
_FETCH_SECONDS = 600.0
_TOOL_SECONDS = 60.0
_POLL_SECONDS = 0.05
_LAST_LINES = 12
_INSTEAD = "or set KAFKA_BOOTSTRAP_SERVERS to a cluster that runs"

# Quick to start and small, rather than fast at its peak: the broker shares two cores with everything else.
_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "auto.create.topics.enable": "false",
    "log.message.timestamp.type": "LogAppendTime",
    # One node: internal topics have one replica, and one partition is enough.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Their default, 100 kB, makes a fetch of megabytes a long exchange of short turns; -1 leaves it to the system.
    "socket.send.buffer.bytes": "-1",
    "socket.receive.buffer.bytes": "-1",
    # Groups form at once, and may notice a dead member within a second.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a SIGKILL the controller refuses the broker until the session of its last life is over.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    # Its default, 128 MiB, costs half a second at the start.
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
}


def kafka_version() -> str:
    """Return the version of Apache Kafka that `pom.xml` names."""
    version = ET.parse(_POM).findtext("{*}properties/{*}kafka.version")  # noqa: S314 - it is our own file
    if version is None:
        raise BrokerError(f"{_POM} names no property kafka.version: restore it")
    return version


def default_cache() -> Path:
    """Return the folder that keeps fetched jars: PENSTOCK_CACHE, or penstock in the user's cache folder."""
    if given := os.environ.get("PENSTOCK_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def fetch_jars(cache: Path) -> Path:
    """Return the folder of Kafka's jars below `cache`, fetched with Maven unless it is there.

    The folder appears under its name only when it is whole, so a fetch may be killed, or race with another.
    Raises `BrokerError` where Maven is missing or fails.
    """
    jars = cache / f"kafka-{kafka_version()}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerError(
            f"mvn is not on the PATH, and {jars} does not hold Kafka's jars yet: install Maven, {_INSTEAD}"
        )
    _make_folder(cache)
    with tempfile.TemporaryDirectory(prefix=f"{jars.name}.", dir=cache) as temporary:
        fetched = Path(temporary) / "jars"
        command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        _run([*command, f"-DoutputDirectory={fetched}"], _FETCH_SECONDS, "check Maven's access to its repositories")
        try:
            fetched.rename(jars)
        except OSError:
            if not jars.is_dir():  # Another process has fetched them in the meantime: theirs are as good.
                raise
    return jars


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BrokerError(f"cannot make the folder {path} ({error}): choose one that can be written") from error


def _run(command: Sequence[str], seconds: float, remedy: str) -> str:
    """Run a tool to its end and return what it printed, on either stream."""
    try:
        done = subprocess.run(  # noqa: S603 - java and mvn, with arguments made here
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BrokerError(f"{command[0]} ran for more than {seconds:g} s: {remedy}, {_INSTEAD}") from None
    except OSError as error:
        raise BrokerError(f"{command[0]} does not run ({error}): {remedy}, {_INSTEAD}") from error
    if done.returncode:
        raise BrokerError(
            f"{command[0]} failed with exit status {done.returncode}: {remedy}, {_INSTEAD}; it said:\n"
            + _last_lines(done.stdout)
        )
    return done.stdout


def _last_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-_LAST_LINES:])


def _find_java() -> str:
    """Return a java that is new enough: JAVA_HOME's, else the PATH's."""
    install = f"install Java {_JAVA_AT_LEAST} or newer"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise BrokerError(f"java is not on the PATH: {install}, {_INSTEAD}")
    said = _run([java, "-version"], _TOOL_SECONDS, install)
    named = re.search(r'version "(?:1\.)?(\d+)', said)  # Java 8 still called itself 1.8.
    if named is None:
        raise BrokerError(f"{java} -version names no version: {install}, {_INSTEAD}; it said:\n{_last_lines(said)}")
    if int(named[1]) < _JAVA_AT_LEAST:
        raise BrokerError(f"{java} is Java {named[1]}: {install}, {_INSTEAD}")
    return java


def _bind(probe: socket.socket, port: int) -> int:
    """Bind to `port`, a free one where it is 0, and return it; raises `BrokerError` where it is taken."""
    # As the broker itself will: connections of its last life that linger do not count.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((_HOST, port))
    except (OSError, OverflowError) as error:
        raise BrokerError(
            f"cannot listen on {_HOST}:{port} ({error}): stop what holds the port, choose another, {_INSTEAD}"
        ) from error
    return int(probe.getsockname()[1])


class LocalKafka:
    """One broker, which dies with this process, and which can be stopped or killed and started again.

    Ports, cluster id and data stay the same over a restart. `data_dir` is kept when the broker is closed; without
    one the data lies in a temporary folder that goes with `close`. `port` is a free one unless given; `cache` is
    where `fetch_jars` keeps the jars. `start_seconds` bounds the wait for the broker's first answer.
    A process forked from this one owns neither the broker, which counts as stopped there, nor its data.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int | None = None,
        cache: Path | None = None,
        *,
        start_seconds: float = 60.0,
    ) -> None:
        self._cache = default_cache() if cache is None else cache
        self._start_seconds = start_seconds
        with socket.socket() as broker, socket.socket() as controller:
            self._port, self._controller_port = _bind(broker, port or 0), _bind(controller, 0)
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="penstock-kafka-")) if data_dir is None else data_dir.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        _give_up_in_forks(self)

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect to, as host:port."""
        return f"{_HOST}:{self._port}"

    @property
    def log_file(self) -> Path:
        """What the broker says: warnings and errors only, of all its lives."""
        return self.data_dir / "broker.log"

    @property
    def running(self) -> bool:
        """Whether the broker's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The broker's process id; raises `BrokerError` where it does not run."""
        if self._process is None or not self.running:
            raise BrokerError(f"the broker on {self.bootstrap_servers} does not run: start it first")
        return self._process.pid

    def start(self) -> None:
        """Start the broker and return once it answers; raises `BrokerError`, leaving nothing running."""
        if self.running:
            raise BrokerError(f"the broker on {self.bootstrap_servers} runs already (pid {self.pid}): stop it first")
        self.kill()
        java = _find_java()
        jars = fetch_jars(self._cache)
        for port in (self._port, self._controller_port):
            with socket.socket() as probe:
                _bind(probe, port)
        command = [java, *_JVM, "-cp", f"{jars}/*"]
        properties = self._write_properties()
        cluster_id = self._format([*command, "kafka.tools.StorageTool"], properties)
        with self.log_file.open("ab") as log:
            said_before = log.tell()
            self._process = leash.spawn([*command, "kafka.Kafka", str(properties)], log)
        try:
            self._await_answer(cluster_id, said_before)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout: float = 15.0) -> None:
        """Ask the broker to shut down, and kill it after `timeout` seconds; does nothing if it does not run."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the broker with SIGKILL; does nothing if it does not run."""
        if self._process is not None:
            leash.kill(self._process)
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send the broker a signal, as SIGSTOP and SIGCONT; raises `BrokerError` where it does not run."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """Stop the broker for good; temporary data go."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def wait(self) -> int:
        """Wait until the broker's process ends, and return its exit status."""
        if self._process is None:
            raise BrokerError(f"the broker on {self.bootstrap_servers} does not run: start it first")
        return self._process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _disown(self) -> None:
        """Let go of the broker and its data, which are the process's that this one was forked from."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self._temporary = False

    def _write_properties(self) -> Path:
        broker, controller = f"{_HOST}:{self._port}", f"{_HOST}:{self._controller_port}"
        settings = _SETTINGS | {
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "controller.quorum.voters": f"{_SETTINGS['node.id']}@{controller}",
            "log.dirs": str(self.data_dir / "log"),
        }
        _make_folder(self.data_dir)
        path = self.data_dir / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        return path

    def _format(self, storage_tool: Sequence[str], properties: Path) -> str:
        """Format the storage unless it is, and return its cluster id."""
        meta = self.data_dir / "log" / "meta.properties"
        if not meta.exists():
            cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
            # As one word with its flag: an id may start with a dash.
            command = [*storage_tool, "format", f"--cluster-id={cluster_id}", "--config", str(properties)]
            _run(command, _TOOL_SECONDS, f"see whether {self.data_dir} can be written")
        named = re.search(r"^cluster\.id=(.+)$", meta.read_text(encoding="utf-8"), re.MULTILINE)
        if named is None:
            raise BrokerError(f"{meta} names no cluster.id: it is not a broker's data, choose another folder")
        return named[1]

    def _await_answer(self, cluster_id: str, said_before: int) -> None:
        deadline = time.monotonic() + self._start_seconds
        while not self._answers(cluster_id):
            if self._process is None or (status := self._process.poll()) is not None:
                raise BrokerError(
                    f"the broker died while starting, with exit status {status}: mend what its log names, {_INSTEAD}; "
                    f"the end of {self.log_file}:\n{self._said_since(said_before)}"
                )
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"the broker on {self.bootstrap_servers} did not answer within {self._start_seconds:g} s and was "
                    f"killed: free the machine or allow more seconds, {_INSTEAD}; "
                    f"the end of {self.log_file}:\n{self._said_since(said_before)}"
                )
            time.sleep(_POLL_SECONDS)

    def _answers(self, cluster_id: str) -> bool:
        try:
            # The client alone would try for long, and log each refusal.
            socket.create_connection((_HOST, self._port), timeout=1.0).close()
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap_servers, bootstrap_timeout_ms=5000, request_timeout_ms=5000
            )
        except (OSError, KafkaError):
            return False
        try:
            return bool(admin.describe_cluster()["cluster_id"] == cluster_id)
        except KafkaError:
            return False
        finally:
            admin.close()

    def _said_since(self, position: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(position)
            return _last_lines(log.read().decode("utf-8", errors="replace"))


def _give_up_in_forks(broker: LocalKafka) -> None:
    """Let go of the broker's leash in forked processes, which would else keep the broker alive after this one's end."""
    weak = weakref.ref(broker)

    def give_up() -> None:
        if (inherited := weak()) is not None:
            inherited._disown()  # noqa: SLF001 - a part of the class that must not keep its instances alive

    os.register_at_fork(after_in_child=give_up)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until Ctrl-C or SIGTERM; return 0, or 1 where the broker fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.kafka", description=main.__doc__)
    parser.add_argument("--port", type=int, help="the port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--data-dir", type=Path, help="where data are kept (default: a temporary folder)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalKafka(options.data_dir, options.port) as broker:
            print(broker.bootstrap_servers, flush=True)
            status = broker.wait()
            print(f"the broker ended with exit status {status}", file=sys.stderr)
            return 1
    except BrokerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
