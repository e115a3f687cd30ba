"""What `make bench` relies on and no other test touches."""

from __future__ import annotations

from benchmarks.opening import _commit
from penstock_consumers.store.commits import Commit


def test_the_commits_of_the_store_that_is_opened_are_as_consumers_make_them() -> None:
    commit = _commit(0, 3)
    assert Commit.from_json(commit.to_json(), commit.name) == commit
