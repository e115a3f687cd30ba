"""The names of a store's objects.

<root>/store.json                               what the store is
<root>/segments/<partition>/<N>-<uuid>.arrow    whole episodes; N is the commit that it was written for
<root>/open/<partition>/<N>-<uuid>.arrow        rows of episodes that were open at commit N
<root>/commits/<partition>/<N / 1000>/<N>.json  created only if absent, never deleted
<root>/snapshots/<name>.json                    named snapshots: commits that are kept readable
<root>/policies/<version>.json                  who claimed a version; created only if absent, never deleted
<root>/policies/<version>-<digest>.safetensors  the weights that acted
"""

from __future__ import annotations

import re
import uuid

FORMAT = 3
MANIFEST = "store.json"
COMMITS = "commits/"
# Of whole episodes, and open ones.
SEGMENTS = ("segments/", "open/")
SNAPSHOTS = "snapshots/"
# Folders that grow without end are slow to list: a folder of commits holds this many at most.
COMMITS_PER_FOLDER = 1000
# The `FOLDER` of `penstock_schemas.policies`, which needs more than a learner has.
POLICIES = "policies/"

_PARTITION = re.compile(r"commits/(?P<partition>[0-9]{5,})/")
_SEGMENTS_FOLDER = re.compile(r"(segments|open)/(?P<partition>[0-9]{5,})/")
_COMMIT_FOLDER = re.compile(r"commits/[0-9]{5,}/[0-9]{9,}/")
_COMMIT = re.compile(r"commits/(?P<partition>[0-9]{5,})/[0-9]{9,}/(?P<number>[0-9]{12,})\.json")
_SEGMENT = re.compile(r"(segments|open)/(?P<partition>[0-9]{5,})/(?P<number>[0-9]{12,})-[0-9a-f]{32}\.arrow")
_SNAPSHOT = re.compile(r"snapshots/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,99})\.json")
_POLICY = re.compile(r"policies/(?P<version>[0-9]{12,})((?P<digest>-[0-9a-f]{64})\.safetensors|\.json)")


def commits(partition: int) -> str:
    """The prefix of a partition's commits."""
    return f"{COMMITS}{partition:05d}/"


def commit_folder(partition: int, number: int) -> str:
    """The prefix of the commits that a commit lies among."""
    return f"{commits(partition)}{number // COMMITS_PER_FOLDER:09d}/"


def commit(partition: int, number: int) -> str:
    """The name of a commit; numbers are padded so that names sort as numbers do."""
    return f"{commit_folder(partition, number)}{number:012d}.json"


def commit_named(name: str) -> tuple[int, int] | None:
    """The partition and the number in a commit's name; None where the name is no commit's."""
    found = _COMMIT.fullmatch(name)
    return (int(found["partition"]), int(found["number"])) if found else None


def partition_folder(prefix: str) -> int | None:
    """The partition whose commits lie below a prefix; None where that is no partition's."""
    found = _PARTITION.fullmatch(prefix)
    return int(found["partition"]) if found else None


def segments_folder(prefix: str) -> int | None:
    """The partition whose segments lie below a prefix; None where that is no partition's."""
    found = _SEGMENTS_FOLDER.fullmatch(prefix)
    return int(found["partition"]) if found else None


def is_commit_folder(prefix: str) -> bool:
    """Tell whether commits lie directly below a prefix."""
    return _COMMIT_FOLDER.fullmatch(prefix) is not None


def policy_claim(version: int) -> str:
    """The name of the claim on a version of the policy."""
    return f"{POLICIES}{version:012d}.json"


def policy_version(name: str) -> int | None:
    """The version in the name of a policy's weights, or of the claim on it; None where the name is neither."""
    found = _POLICY.fullmatch(name)
    return int(found["version"]) if found else None


def is_weights(name: str) -> bool:
    """Tell whether a name is that of a policy's weights."""
    found = _POLICY.fullmatch(name)
    return found is not None and found["digest"] is not None


def partition_of(name: str) -> int:
    """The partition in the name of a segment."""
    return int(name.split("/")[1])


def written_for(name: str) -> int | None:
    """The number of the commit that a segment was written for; None where the name is no segment's."""
    found = _SEGMENT.fullmatch(name)
    return int(found["number"]) if found else None


def segments(partition: int) -> tuple[str, str]:
    """The prefixes of a partition's segments, of whole episodes and open ones."""
    return f"segments/{partition:05d}/", f"open/{partition:05d}/"


def snapshot(name: str) -> str | None:
    """The name of a named snapshot's object; None where `name` can be none: letters, digits, dots, dashes."""
    found = f"{SNAPSHOTS}{name}.json"
    return found if _SNAPSHOT.fullmatch(found) else None


def snapshot_named(name: str) -> str | None:
    """The name in a named snapshot's object; None where that is none."""
    found = _SNAPSHOT.fullmatch(name)
    return found["name"] if found else None


def segment(partition: int, number: int) -> str:
    """A new name for a segment of whole episodes."""
    return f"segments/{partition:05d}/{number:012d}-{uuid.uuid4().hex}.arrow"


def open_segment(partition: int, number: int) -> str:
    """A new name for a segment of rows whose episodes are open."""
    return f"open/{partition:05d}/{number:012d}-{uuid.uuid4().hex}.arrow"
