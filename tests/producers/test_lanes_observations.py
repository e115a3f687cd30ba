from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock_producers.envs.lanes.buffers import heap
from penstock_producers.envs.lanes.containment import Fault
from penstock_producers.envs.lanes.observations import Observations
from penstock_schemas.spaces import Box

BOUND = st.floats(-9, 9, width=32)
MANY = 40


def is_taken(space: Box, observation: np.ndarray, n: int) -> bool:
    observations = Observations(space, n, heap, check_bounds=True)
    try:
        observations.put(0, [observation] * n)
    except Fault:
        return False
    return True


@given(st.data(), st.sampled_from(["float32", "float64"]), st.booleans())
def test_few_observations_are_taken_just_where_many_are(data: st.DataObject, dtype: str, alike: bool) -> None:
    size = 1 if alike else 3
    low = tuple(data.draw(st.lists(BOUND | st.just(-np.inf), min_size=size, max_size=size)))
    high = tuple(data.draw(st.lists(BOUND | st.just(np.inf), min_size=size, max_size=size)))
    space = Box((3,), np.dtype(dtype), low, high)
    # Just on a bound, and just beside it, too.
    values = st.sampled_from([*low, *high, np.nan, np.inf, -np.inf]) | BOUND
    observation = np.array(data.draw(st.lists(values, min_size=3, max_size=3)), dtype)
    observation = np.nextafter(observation, data.draw(st.sampled_from([observation[0], 99, -99])), dtype=dtype)
    expected = bool(space.contains(observation[None])[0])
    assert is_taken(space, observation, 1) == is_taken(space, observation, MANY) == expected
