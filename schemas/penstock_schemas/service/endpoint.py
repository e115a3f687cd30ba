"""The HTTP endpoint of a process: `/metrics` for Prometheus, `/healthz` and `/readyz` for Kubernetes."""

from __future__ import annotations

import logging
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client.exposition import choose_encoder

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from penstock_schemas.service.health import Health

log = logging.getLogger(__name__)

TEXT: Final = "text/plain; charset=utf-8"


class Endpoint:
    """Serves `/metrics`, `/healthz` and `/readyz` from a thread of its own while its context is open.

    Port 0 takes a free one. Raises `SettingsError` where the address cannot be had, and `RuntimeError` when
    it is entered a second time. Methods other than GET and HEAD are refused (501).
    """

    def __init__(self, registry: CollectorRegistry, health: Health, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"cannot serve metrics at --metrics-host {host} --metrics-port {port}: "
                f"{error.strerror or error}; choose another, or port 0 for a free one"
            ) from error
        self._server.registry = registry
        self._server.health = health
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="metrics-endpoint", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that is really listened on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        log.info("metrics and health at http://%s:%d", self._server.server_address[0], self.port)
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingTCPServer):
    # HTTPServer would look its own name up in the DNS before it listens, which can take seconds in a pod.
    allow_reuse_address = True
    daemon_threads = True
    registry: CollectorRegistry
    health: Health

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature is the library's
        log.warning("a request from %s failed", client_address, exc_info=sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # seconds in which a client sends its request and takes the answer, or loses its thread

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(self.server.registry), content_type)
            case "/healthz":
                stalled = self.server.health.stalled()
                self._verdict([stalled] if stalled else [])
            case "/readyz":
                self._verdict([f"{name}: {why}" for name, why in self.server.health.failing().items()])
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _verdict(self, failures: list[str]) -> None:
        lines = [" ".join(failure.split()) for failure in failures] or ["ok"]
        status = HTTPStatus.SERVICE_UNAVAILABLE if failures else HTTPStatus.OK
        self._answer(status, ("\n".join(lines) + "\n").encode())

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = TEXT) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature is the library's
        log.debug(format, *args)
