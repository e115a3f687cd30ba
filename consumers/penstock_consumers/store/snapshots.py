"""Named snapshots: commits that are kept readable until their name is removed.

A snapshot names a commit of each partition, and the segments of whole episodes that live there, which are not collected
while it exists.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock_consumers.store import commits, layout
from penstock_consumers.store.bucket import create_once
from penstock_consumers.store.commits import Live
from penstock_schemas.errors import CorruptStoreError, StoreError, StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_consumers.store.bucket import Bucket

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Held:
    """What a snapshot holds of a partition: the number of a commit, and the segments of whole episodes there."""

    commit: int
    live: Live


def create(bucket: Bucket, name: str) -> dict[int, Held]:
    """Name the newest commits of all partitions, which stay readable from now on; gives what is held, by partition.

    Raises `StoreError` where the name is taken, or is none; where the store has no commits; and where it changes
    faster than it can be named.
    """
    for _ in range(_TRIES):
        held = _newest(bucket)
        if _held(bucket, name, held):
            return held
    raise StoreError(
        f"store {bucket.url}: it was compacted or retired each of the {_TRIES} times that it was to be named {name!r}: "
        "try again"
    )


def hold(bucket: Bucket, name: str, held: Mapping[int, Held]) -> None:
    """Name commits that a reader holds, which stay readable from now on.

    Raises `StoreError` where the name is taken, or is none; where nothing is held; and where not all of it lives any
    more, though it may be there still: a collection may be under way.
    """
    # Asked first, so that whoever is killed leaves no name of what is gone.
    if not (_live(bucket, held) and _held(bucket, name, held)):
        raise StoreError(
            f"store {bucket.url}: segments that were to be named {name!r} were joined or retired since they were read, "
            "and may be collected any time: refresh(), and name that; name a snapshot as soon as it is opened"
        )


def names(bucket: Bucket) -> list[str]:
    """Name the snapshots, as a listing shows them."""
    return sorted(filter(None, map(layout.snapshot_named, bucket.list(layout.SNAPSHOTS))))


def load(bucket: Bucket, name: str) -> dict[int, Held]:
    """Read what a snapshot holds, by partition; raises `StoreError` where there is none of that name."""
    held = find(bucket, name)
    if held is None:
        known = ", ".join(names(bucket)) or "none"
        raise StoreError(f"store {bucket.url}: no snapshot {name!r} in it; there are: {known}")
    return held


def find(bucket: Bucket, name: str) -> dict[int, Held] | None:
    """Read what a snapshot holds, by partition; None where there is none of that name."""
    path = _path(bucket, name)
    try:
        data = bucket.read(path).to_pybytes()
    except FileNotFoundError:
        return None
    return _from_json(data, path)


def remove(bucket: Bucket, name: str) -> None:
    """Remove a name, though it may not read; what it alone held is collected in time.

    Raises `StoreError` where there is none.
    """
    with suppress(CorruptStoreError, StoreFormatError):
        load(bucket, name)
    bucket.delete(_path(bucket, name))


def segments_held(bucket: Bucket, partition: int) -> set[str]:
    """Name the segments of a partition that snapshots hold; raises `CorruptStoreError` where one does not read."""
    found: set[str] = set()
    for name in names(bucket):
        held = find(bucket, name)
        # It may have been removed meanwhile.
        if held and partition in held:
            found |= held[partition].live.names
    return found


def _held(bucket: Bucket, name: str, held: Mapping[int, Held]) -> bool:
    """Give a name to commits; False, and no name, where not all that they hold lives any more."""
    path = _path(bucket, name)
    if not held:
        raise StoreError(f"store {bucket.url}: it has no commits yet, so there is nothing to name {name!r}")
    if not create_once(bucket, path, _to_json(held)):
        raise StoreError(
            f"store {bucket.url}: there is a snapshot {name!r} already: choose another name, or remove it first"
        )
    lives = False
    try:
        # A collection that was under way before it had this name takes nothing that lives at a newer commit.
        lives = _live(bucket, held)
    finally:
        if not lives:
            bucket.delete(path)
    return lives


def _path(bucket: Bucket, name: str) -> str:
    path = layout.snapshot(name)
    if path is None:
        raise StoreError(
            f"store {bucket.url}: {name!r} is no name for a snapshot: take up to 100 letters, digits, dots, dashes and "
            "underscores, the first a letter or digit"
        )
    return path


def _newest(bucket: Bucket) -> dict[int, Held]:
    return {
        # What is open no reader opens, and it changes with every commit.
        commit.partition: Held(commit.number, Live(commits.live_at(bucket, commit).segments))
        for commit in commits.newest_of_each(bucket)
    }


def _live(bucket: Bucket, held: Mapping[int, Held]) -> bool:
    """Tell whether all that is held lives at the newest commits, whatever a listing shows of them."""
    newest = {number: commits.newest(bucket, number, known=of.commit) for number, of in held.items()}
    return all(held[at].live.names <= commits.live_at(bucket, commit).names for at, commit in newest.items() if commit)


def _to_json(held: Mapping[int, Held]) -> bytes:
    described = {
        "format": layout.FORMAT,
        # No two are the same bytes, so that whoever creates one knows whether it did.
        "writer": uuid.uuid4().hex,
        "partitions": {str(number): asdict(of) for number, of in held.items()},
    }
    return json.dumps(described, separators=(",", ":")).encode()


def _from_json(data: bytes, path: str) -> dict[int, Held]:
    try:
        read: dict[str, Any] = json.loads(data)
        version = read["format"]
        if version == layout.FORMAT:
            return {
                int(number): Held(int(of["commit"]), Live.from_json(of["live"]))
                for number, of in read["partitions"].items()
            }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(f"snapshot {path}: does not read: {error!r}; remove or restore it") from error
    raise StoreFormatError(
        f"snapshot {path}: format version {version}, this Penstock reads {layout.FORMAT}: "
        "use the version of Penstock that wrote it"
    )
