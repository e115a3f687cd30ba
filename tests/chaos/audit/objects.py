"""A store's objects as plain bytes by name, wherever they lie."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket


def folder_objects(root: Path) -> dict[str, bytes]:
    """Every file below a folder, but those that a writer has not finished (their names begin with a dot)."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def bucket_objects(bucket: Bucket) -> dict[str, bytes]:
    """Every object of a store in any bucket, one listing after the other."""
    found: dict[str, bytes] = {}
    waiting = ["commits/", "segments/", "open/", "snapshots/"]
    with suppress(FileNotFoundError):
        found["store.json"] = bucket.read("store.json").to_pybytes()
    while waiting:
        prefix = waiting.pop()
        waiting += bucket.folders(prefix)
        for name in bucket.list(prefix):
            if name not in found:
                found[name] = bucket.read(name).to_pybytes()
    return found
