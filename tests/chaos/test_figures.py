from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.figures import measure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.chaos
def test_the_figures_of_the_gate_hold(tmp_path: Path) -> None:
    missed = [str(figure) for figure in measure(tmp_path) if not figure.holds]
    assert not missed
