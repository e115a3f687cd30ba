from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock_consumers.replay.runs import Rank


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.booleans())
def test_a_rank_finds_what_a_search_finds(lengths: list[int], sparse: bool) -> None:
    """Stretches of no steps among them, at the end too."""
    lengths = [length * (50 if sparse else 1) for length in lengths]
    steps = sum(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    asked = np.arange(steps)
    np.testing.assert_array_equal(Rank(starts, steps)(asked), np.searchsorted(starts, asked, side="right") - 1)
