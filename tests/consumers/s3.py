"""S3 on this machine: moto's server in a child process, and a proxy before it that fails as networks and stores do."""

from __future__ import annotations

import http.client
import re
import socket
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from enum import Enum, auto
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deploy.local import leash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

START_SECONDS = 60.0
PAGE = 100
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "penstock", "AWS_SECRET_ACCESS_KEY": "penstock-secret", "AWS_REGION": "us-east-1"}
_PORT = re.compile(rb"Running on http://127\.0\.0\.1:(\d+)")
# One request at a time: moto looks whether an object exists and then puts it, and two at once would both succeed.
_MOTO = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
"""
_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """Run moto's server, which lists `PAGE` objects at a time; gives its URL."""
    command = ["env", f"MOTO_S3_DEFAULT_MAX_KEYS={PAGE}", sys.executable, "-c", _MOTO]
    with served(command, folder / "moto.log", _PORT) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def served(command: Sequence[str], log: Path, port: re.Pattern[bytes]) -> Iterator[int]:
    """Run a server until the block ends; gives the port that it says that it listens on."""
    with log.open("wb") as out:
        process = leash.spawn(command, out)
        try:
            until = time.monotonic() + START_SECONDS
            while (found := port.search(log.read_bytes())) is None:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{command[0]} did not start: {log.read_text()}")
                time.sleep(0.02)
            yield int(found[1])
        finally:
            leash.kill(process)


class Fault(Enum):
    """How a request may go wrong."""

    CUT = auto()
    """The connection ends before the request has reached the store."""
    LOST = auto()
    """The store does as it is asked, and the connection ends before its answer has come."""
    HALF = auto()
    """The connection ends in the middle of the answer's body."""
    HANG = auto()
    """No answer comes."""
    BUSY = auto()
    """The store answers 503, as S3 does to whom it wants to be slower."""
    BROKEN = auto()
    """The store answers 500."""
    FORBIDDEN = auto()
    """The store answers 403, as S3 does to a key that it does not know."""
    CONFLICT = auto()
    """The store answers 409, as S3 does to a conditional put beside a delete; nothing is written."""
    KEY_DENIED = auto()
    """The store answers 200, and in it that a key may not be deleted, as S3 does."""
    KEY_BROKEN = auto()
    """The store answers 200, and in it that a key was not deleted for a fault of its own."""


_ANSWERS = {
    Fault.BUSY: (503, "SlowDown", "Please reduce your request rate."),
    Fault.BROKEN: (500, "InternalError", "We encountered an internal error. Please try again."),
    Fault.FORBIDDEN: (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
    Fault.CONFLICT: (409, "ConditionalRequestConflict", "A conflicting operation occurred. Please try again."),
    Fault.KEY_DENIED: (200, "AccessDenied", "Access Denied"),
    Fault.KEY_BROKEN: (200, "InternalError", "We encountered an internal error. Please try again."),
}


class Proxy:
    """Passes requests on to a store, counts them, and lets some go wrong."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.requests: list[str] = []
        self._plan: deque[tuple[str, Fault]] = deque()
        self._always: Fault | None = None
        self._of: str | None = None
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def next(self, method: str, *faults: Fault) -> None:
        """Let the next requests of a method go wrong, one after the other."""
        self._plan.extend((method, fault) for fault in faults)

    @property
    def exhausted(self) -> bool:
        """Whether all that was to go wrong next has."""
        return not self._plan

    def always(self, fault: Fault | None, method: str | None = None) -> None:
        """Let every request that is not planned for go wrong, or every one of a method, until told otherwise."""
        self._always, self._of = fault, method

    def listen(self) -> None:
        """Take connections, at the same port as before."""
        self._closing.clear()
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for connection in list(self._connections):
            _cut(connection)

    def fault(self, method: str) -> Fault | None:
        if self._plan and self._plan[0][0] == method:
            return self._plan.popleft()[1]
        return self._always if self._of in {None, method} else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut is what a test wanted."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.proxy._connections.add(self.connection)

    def finish(self) -> None:
        self.server.proxy._connections.discard(self.connection)
        super().finish()

    def do(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy.requests.append(f"{self.command} {self.path}")
        fault = proxy.fault(self.command)
        if fault in _ANSWERS:
            status, code, message = _ANSWERS[fault]
            told = f"<Code>{code}</Code><Message>{message}</Message>"
            if status == HTTPStatus.OK:
                key = body.partition(b"<Key>")[2].partition(b"</Key>")[0].decode()
                told = f"<DeleteResult><Error><Key>{key}</Key>{told}</Error></DeleteResult>"
            else:
                told = f"<Error>{told}</Error>"
            self.answer(status, [("Content-Type", "application/xml")], told.encode())
            return
        if fault is Fault.HANG:
            proxy._closing.wait()
        if fault in {Fault.HANG, Fault.CUT}:
            _cut(self.connection)
            return
        status, headers, data = self.forward(body)
        if fault is Fault.LOST:
            _cut(self.connection)
            return
        self.answer(status, headers, data, half=fault is Fault.HALF)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do  # noqa: N815  (the names are http.server's)

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(self.server.proxy.upstream, timeout=30)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OF_ONE_HOP]
            if self.command == "HEAD":
                headers.append(("Content-Length", answer.getheader("Content-Length", "0")))
            return answer.status, headers, data
        finally:
            upstream.close()

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, half: bool = False) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if half else data)
        if half:
            self.wfile.flush()
            _cut(self.connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name is http.server's)
        """What matters is counted."""


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        connection.close()


def make_bucket(endpoint: str, name: str) -> None:
    """Make a bucket on a server that checks no signatures."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == http.HTTPStatus.OK
    connection.close()
