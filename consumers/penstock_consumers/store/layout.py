"""The names of a store's objects.

<root>/store.json                               what the store is
<root>/segments/<partition>/<N>-<uuid>.arrow    whole episodes; N is the commit that it was written for
<root>/open/<partition>/<N>-<uuid>.arrow        rows of episodes that were open at commit N
<root>/commits/<partition>/<N>.json             created only if absent, never deleted
<root>/policies/<version>-<digest>.safetensors  the weights that acted
"""

from __future__ import annotations

import re
import uuid

FORMAT = 1
MANIFEST = "store.json"
COMMITS = "commits/"
# The `FOLDER` of `penstock_schemas.policies`, which needs more than a learner has.
POLICIES = "policies/"

_COMMIT = re.compile(r"commits/(?P<partition>[0-9]{5,})/(?P<number>[0-9]{12,})\.json")
_POLICY = re.compile(r"policies/(?P<version>[0-9]{12,})-[0-9a-f]{64}\.safetensors")


def commits(partition: int) -> str:
    """The prefix of a partition's commits."""
    return f"{COMMITS}{partition:05d}/"


def commit(partition: int, number: int) -> str:
    """The name of a commit; numbers are padded so that names sort as numbers do."""
    return f"{commits(partition)}{number:012d}.json"


def commit_named(name: str) -> tuple[int, int] | None:
    """The partition and the number in a commit's name; None where the name is no commit's."""
    found = _COMMIT.fullmatch(name)
    return (int(found["partition"]), int(found["number"])) if found else None


def policy_version(name: str) -> int | None:
    """The version in the name of a policy's weights; None where the name is no policy's."""
    found = _POLICY.fullmatch(name)
    return int(found["version"]) if found else None


def partition_of(name: str) -> int:
    """The partition in the name of a segment."""
    return int(name.split("/")[1])


def segment(partition: int, number: int) -> str:
    """A new name for a segment of whole episodes."""
    return f"segments/{partition:05d}/{number:012d}-{uuid.uuid4().hex}.arrow"


def open_segment(partition: int, number: int) -> str:
    """A new name for a segment of rows whose episodes are open."""
    return f"open/{partition:05d}/{number:012d}-{uuid.uuid4().hex}.arrow"
