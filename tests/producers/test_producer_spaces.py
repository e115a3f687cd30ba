from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from penstock_producers.spaces import Role, from_gymnasium
from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces import Box, Discrete


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (gym.spaces.Box(-1, 1, (3,), np.float64), Box((3,), np.dtype(np.float64), (-1.0,), (1.0,))),
        (gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), Box((4, 4, 3), np.dtype(np.uint8), (0.0,), (255.0,))),
        (gym.spaces.Box(-np.inf, np.inf, ()), Box((), np.dtype(np.float32))),
        (
            gym.spaces.Box(np.array([[-1, -2], [0, 0]]), np.array([[1, 2], [0, np.inf]]), dtype=np.float64),
            Box((2, 2), np.dtype(np.float64), (-1.0, -2.0, 0.0, 0.0), (1.0, 2.0, 0.0, np.inf)),
        ),
        (gym.spaces.Discrete(3), Discrete(3)),
        (gym.spaces.Discrete(4, start=-2), Discrete(4, -2)),
    ],
)
def test_spaces_are_described(space: gym.Space[Any], expected: object) -> None:
    assert from_gymnasium(space, "observation") == expected


BITS = gym.spaces.Box(0, 1, (3,), np.bool_)  # type: ignore[arg-type]  # gymnasium takes it, its types do not


class Special(gym.spaces.Box):
    """A subclass may mean its values otherwise."""


@pytest.mark.parametrize(
    ("role", "remedy"), [("observation", "FlattenObservation for example"), ("action", "TransformAction for example")]
)
@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Dict({"a": gym.spaces.Discrete(2)}),
        gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiBinary(3),
        gym.spaces.Text(3),
        Special(0, 1),
    ],
)
def test_a_space_that_is_not_mapped_is_refused_by_name_with_its_remedy(
    space: gym.Space[Any], role: Role, remedy: str
) -> None:
    told = f"{role} space {type(space).__name__}: it is not mapped to Arrow, only Box and Discrete are"
    with pytest.raises(SpaceError, match=f"{re.escape(told)}.*wrappers.{remedy}"):
        from_gymnasium(space, role)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (BITS, "Box of dtype bool: not mapped to Arrow; use one of float16"),
        (gym.spaces.Box(0, 1, (3, 0)), "Box of shape (3, 0): an empty box holds nothing to record"),
    ],
)
def test_a_box_that_arrow_does_not_have_is_refused(space: gym.Space[Any], told: str) -> None:
    with pytest.raises(SpaceError, match=re.escape(told)):
        from_gymnasium(space, "observation")
