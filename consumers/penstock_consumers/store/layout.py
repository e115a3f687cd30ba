"""The names of a store's objects.

<root>/store.json                               what the store is
<root>/segments/<partition>/<N>-<uuid>.arrow    whole episodes; N is the commit that it was written for
<root>/open/<partition>/<N>-<uuid>.arrow        rows of episodes that were open at commit N
<root>/commits/<partition>/<N>.json             created only if absent, never deleted
<root>/policies/<version>-<digest>.safetensors  the weights that acted
"""

from __future__ import annotations

import uuid

FORMAT = 1
MANIFEST = "store.json"
COMMITS = "commits/"
POLICIES = "policies/"


def commits(partition: int) -> str:
    """The prefix of a partition's commits."""
    return f"{COMMITS}{partition:05d}/"


def commit(partition: int, number: int) -> str:
    """The name of a commit; numbers are padded so that names sort as numbers do."""
    return f"{commits(partition)}{number:012d}.json"


def commit_number(name: str) -> int:
    """The number in a commit's name."""
    return int(name.rpartition("/")[2].removesuffix(".json"))


def partition_of(name: str) -> int:
    """The partition in the name of a commit or a segment."""
    return int(name.split("/")[1])


def segment(partition: int, number: int) -> str:
    """A new name for a segment of whole episodes."""
    return f"segments/{partition:05d}/{number:012d}-{uuid.uuid4().hex}.arrow"


def open_segment(partition: int, number: int) -> str:
    """A new name for a segment of rows whose episodes are open."""
    return f"open/{partition:05d}/{number:012d}-{uuid.uuid4().hex}.arrow"
