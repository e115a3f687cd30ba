"""What `make bench` relies on and no other test touches."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.opening import _commit
from penstock_consumers.store.commits import Commit


def test_the_commits_of_the_store_that_is_opened_are_as_consumers_make_them() -> None:
    commit = _commit(0, 3)
    assert Commit.from_json(commit.to_json(), commit.name) == commit


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--hlep", 2)])
def test_a_word_measures_nothing(word: str, status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == status
