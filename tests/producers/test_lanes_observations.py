from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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


INT8, UINT8, INT32, FLOAT16, FLOAT32 = (np.dtype(name) for name in ("int8", "uint8", "int32", "float16", "float32"))


@pytest.mark.parametrize(
    ("space", "observation", "taken"),
    [
        (Box((), INT8, (-100.0,), (100.0,)), 100, True),
        (Box((), INT8, (-100.0,), (100.0,)), 256, False),
        (Box((2,), INT8), [300, 1], False),
        (Box((), INT32), np.int64(2**32 + 5), False),
        (Box((), UINT8), 5, True),
        (Box((2,), UINT8), [5, -1], False),
        (Box((2,), UINT8), [np.int8(-1), np.int8(4)], False),
        (Box((), np.dtype(np.uint64)), -1, False),
        (Box((2,), FLOAT32), [1, 2.5], True),
        (Box((), FLOAT32), np.float64(0.1), True),
        (Box((), FLOAT32), np.float64(1e300), False),
        (Box((), FLOAT32), np.float64(np.inf), True),
        (Box((2,), FLOAT16), [1e6, 1], False),
    ],
)
@pytest.mark.parametrize("check_bounds", [True, False])
def test_plain_numbers_are_taken_where_the_space_s_dtype_holds_them(
    space: Box, observation: Any, taken: bool, check_bounds: bool
) -> None:
    observations = Observations(space, 1, heap, check_bounds=check_bounds)
    if not taken:
        with pytest.raises(Fault, match=f"which its space's dtype {space.dtype} does not hold"):
            observations.put(0, [observation])
        return
    observations.put(0, [observation])
    np.testing.assert_array_equal(observations.leaves[0][0], np.asarray(observation, space.dtype))
