from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.figures import main, measure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.chaos
def test_the_figures_of_the_gate_hold(tmp_path: Path) -> None:
    missed = [str(figure) for figure in measure(tmp_path) if not figure.holds]
    assert not missed


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--hlep", 2)])
def test_a_word_measures_nothing(word: str, status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == status
