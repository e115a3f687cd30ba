"""Versity's S3 gateway over a folder: another S3 than moto's, which checks signatures, for the same contract."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from deploy.local import leash
from tests.consumers.s3 import CREDENTIALS, START_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
BUILD_SECONDS = 900
_ROOT = Path(__file__).resolve().parents[2]


def go() -> str | None:
    """The go command, where there is one."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def build() -> Path:
    """Build the gateway unless it is built; gives its file."""
    folder = _ROOT / "build" / "versitygw" / VERSION
    binary = folder / "versitygw"
    command = go()
    if not binary.exists() and command is not None:
        folder.mkdir(parents=True, exist_ok=True)
        # In an environment of its own: GOBIN is where go puts it.
        subprocess.run(  # noqa: S603  (the command is fixed)
            ["/usr/bin/env", f"GOBIN={folder}", command, "install", MODULE], check=True, timeout=BUILD_SECONDS
        )
    return binary


@contextmanager
def versity(folder: Path, bucket: str) -> Iterator[str]:
    """Run the gateway over a folder, with one bucket; gives its URL."""
    (folder / "objects").mkdir()
    port = _free_port()
    access = ["--access", CREDENTIALS["AWS_ACCESS_KEY_ID"], "--secret", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
    command = [str(build()), *access, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder / "objects")]
    with (folder / "versity.log").open("wb") as log:
        process = leash.spawn(command, log)
        try:
            until = time.monotonic() + START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the gateway did not start: {(folder / 'versity.log').read_text()}")
                time.sleep(0.02)
            endpoint = f"http://127.0.0.1:{port}"
            _client(endpoint).create_bucket(Bucket=bucket)
            yield endpoint
        finally:
            leash.kill(process)


def _client(endpoint: str) -> boto3.client:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=CREDENTIALS["AWS_REGION"],
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
