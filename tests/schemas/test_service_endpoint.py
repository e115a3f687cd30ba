from __future__ import annotations

import logging
import platform
import socket
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock_schemas.errors import SettingsError
from penstock_schemas.service import MESSAGE_BYTES, SECONDS, Endpoint, Health, build_info

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health("kafka", "policy", clock=clock, beat_limit=30)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def endpoint(registry: CollectorRegistry, health: Health) -> Iterator[Endpoint]:
    with Endpoint(registry, health, "127.0.0.1", 0) as endpoint:
        yield endpoint


def ask(endpoint: Endpoint, path: str, method: str = "GET", accept: str = "*/*") -> tuple[int, str, str]:
    """Status, content type and body."""
    url = f"http://127.0.0.1:{endpoint.port}{path}"
    try:
        with urlopen(Request(url, method=method, headers={"Accept": accept}), timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_are_served_as_text_and_as_openmetrics(endpoint: Endpoint, registry: CollectorRegistry) -> None:
    Counter("penstock_steps", "Steps.", registry=registry).inc(3)

    status, content_type, body = ask(endpoint, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert "penstock_steps_total 3.0\n" in body
    assert "# EOF" not in body

    status, content_type, body = ask(endpoint, "/metrics?x=1", accept="application/openmetrics-text; version=1.0.0")
    assert (status, content_type.split(";")[0]) == (200, "application/openmetrics-text")
    assert "penstock_steps_total 3.0\n" in body
    assert body.endswith("# EOF\n")


def test_ready_is_503_with_a_line_for_each_condition_that_fails(endpoint: Endpoint, health: Health) -> None:
    health.unready("policy", "no version\nyet")
    status, _, body = ask(endpoint, "/readyz")
    assert status == 503
    assert body.splitlines() == ["kafka: not reported yet", "policy: no version yet"]

    health.ready("kafka")
    health.ready("policy")
    assert ask(endpoint, "/readyz")[::2] == (200, "ok\n")


def test_healthy_is_503_while_the_main_loop_is_silent(endpoint: Endpoint, health: Health, clock: Clock) -> None:
    assert ask(endpoint, "/healthz")[::2] == (200, "ok\n")
    clock.now = 31.0
    status, _, body = ask(endpoint, "/healthz")
    assert (status, body) == (503, "no beat of the main loop for 31.0 s, the limit is 30 s\n")
    health.beat()
    assert ask(endpoint, "/healthz")[0] == 200


def test_other_paths_are_404(endpoint: Endpoint) -> None:
    status, _, body = ask(endpoint, "/")
    assert status == 404
    assert "/metrics" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(endpoint: Endpoint, method: str) -> None:
    assert ask(endpoint, "/metrics", method)[0] == 501


def test_head_has_the_head_only(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as connection:
        connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        with connection.makefile("rb") as answer:
            told = answer.read()
    assert told.startswith(b"HTTP/1.0 200 ")
    assert b"\r\nContent-Length: 3\r\n" in told
    assert told.endswith(b"\r\n\r\n")


def test_a_broken_request_costs_only_itself(
    endpoint: Endpoint, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down() -> float:
        raise OSError("the gauge is broken")

    Gauge("penstock_broken", "Breaks.", registry=registry).set_function(break_down)
    with pytest.raises(OSError, match="closed connection"):
        ask(endpoint, "/metrics")
    assert ask(endpoint, "/healthz")[0] == 200
    assert "the gauge is broken" in caplog.text


def test_requests_are_not_logged_above_debug(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask(endpoint, "/healthz")
    assert caplog.text == ""


def test_a_port_that_is_taken_is_named(registry: CollectorRegistry, health: Health) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SettingsError,
            match=rf"--metrics-host 127\.0\.0\.1 --metrics-port {port}: Address already in use; choose",
        ):
            Endpoint(registry, health, "127.0.0.1", port)


def test_a_host_that_is_not_ours_is_named(registry: CollectorRegistry, health: Health) -> None:
    with pytest.raises(SettingsError, match=r"--metrics-host 192\.0\.2\.1 --metrics-port 0"):
        Endpoint(registry, health, "192.0.2.1", 0)


def test_the_port_is_free_again_after_it(registry: CollectorRegistry, health: Health) -> None:
    with Endpoint(registry, health, "127.0.0.1", 0) as endpoint:
        port = endpoint.port
        assert ask(endpoint, "/healthz")[0] == 200
    with Endpoint(registry, health, "127.0.0.1", port) as again:
        assert again.port == port
        assert ask(again, "/healthz")[0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_an_endpoint_is_entered_once(registry: CollectorRegistry, health: Health) -> None:
    with Endpoint(registry, health, "127.0.0.1", 0) as endpoint, pytest.raises(RuntimeError, match="once"):
        endpoint.__enter__()


def test_the_build_is_told(endpoint: Endpoint, registry: CollectorRegistry) -> None:
    build_info(registry, "producer")
    labels = f'component="producer",python="{platform.python_version()}",version="{version("penstock")}"'
    assert f"penstock_build_info{{{labels}}} 1.0\n" in ask(endpoint, "/metrics")[2]


def test_buckets_rise() -> None:
    for buckets in (SECONDS, MESSAGE_BYTES):
        assert list(buckets) == sorted(set(buckets))
        Histogram("penstock_size", "What a histogram takes.", buckets=buckets, registry=CollectorRegistry())
