from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.store.bucket import open_bucket
from tests.consumers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket


@pytest.fixture(params=["folder", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """A bucket that is empty, of either kind that needs no server."""
    return open_bucket(tmp_path / "store" if request.param == "folder" else "memory://")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's caches, in which segments of object stores are kept: a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server with a bucket, `bucket`."""
    with s3.moto(tmp_path_factory.mktemp("moto")) as endpoint:
        s3.make_bucket(endpoint, "bucket")
        yield endpoint


@pytest.fixture
def s3_url(moto: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store on S3 that is new; the environment says where and with which credentials."""
    _environment(monkeypatch, moto)
    return f"s3://bucket/stores/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of Versity's S3 gateway with a bucket, `bucket`."""
    from tests.consumers import versity  # noqa: PLC0415  (its client takes a second to import)

    if versity.go() is None:
        # Skipped, the only S3 that checks signatures would go untested, and nobody would notice.
        pytest.fail(
            "there is no go command to build Versity's S3 gateway with: install Go, or leave out its tests with "
            "-k 'not versity'",
            pytrace=False,
        )
    with versity.versity(tmp_path_factory.mktemp("versity"), "bucket") as endpoint:
        yield endpoint


@pytest.fixture
def versity_url(versity: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store on that gateway that is new."""
    _environment(monkeypatch, versity)
    return f"s3://bucket/stores/{uuid.uuid4().hex}"


@pytest.fixture
def proxy(moto: str, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Proxy]:
    """A proxy between the store at `s3_url` and the S3 server."""
    passing = s3.Proxy(moto)
    _environment(monkeypatch, passing.url)
    yield passing
    passing.close()


def _environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    for name, value in (*s3.CREDENTIALS.items(), ("AWS_ENDPOINT_URL", endpoint), ("AWS_ALLOW_HTTP", "true")):
        monkeypatch.setenv(name, value)
